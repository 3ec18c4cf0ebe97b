"""Steps of an epilogue as JSON has them, for compiling processes and compiled graphs.

    [["Bias", {"axis": "n", "dtype": "f32", "name": "bias"}], ["Activation", {"kind": "relu"}]]

A step of a class that is not this package's has no such form: another process would not know its arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...arguments import shown
from ...dtypes import DType, dtype
from ...errors import PlanError
from . import tracing
from .reductions import About, Reduction
from .steps import STEPS, ColumnGroup, Custom, EpilogueOperand, SeveralOutputs, Step, whole_names

_FUNCTIONS = ("lift", "combine", "finish", "insert")  # of a reduction, each with several results


def entry_of_steps(steps: Sequence[Step]) -> list[list[object]]:
    """Steps as JSON has them, of values that `steps_of` reads. Raises TypeError for a step of another package.

    >>> from layoutgemm.kernels.epilogue.chain import Activation
    >>> entry_of_steps([Activation("relu")])
    [['Activation', {'kind': 'relu'}]]
    """
    for step in steps:
        if STEPS.get(type(step).__name__) is not type(step):
            raise TypeError(f"{shown(step)} is not one of {', '.join(STEPS)}")
    return [[type(step).__name__, _values_of(step)] for step in steps]


def steps_of(entry: Sequence[Sequence[object]]) -> list[Step]:
    """The steps of `entry_of_steps`. Raises LayoutError, TypeError, ValueError or KeyError for another entry.

    >>> steps_of([["Clamp", {"low": 0.0, "high": 1.0}]])
    [Clamp(low=0.0, high=1.0)]
    """
    return [_step_of(name, values) for name, values in entry]


def tuples(x: object) -> Any:
    """Lists of JSON as tuples."""
    return tuple([tuples(y) for y in x]) if isinstance(x, list) else x


def _values_of(step: Step) -> Mapping[str, object]:
    if isinstance(own := getattr(step, "operation", None), Reduction):
        about = None if own.about is None else vars(own.about)
        functions = {name: tracing.entry_of_each(getattr(own, name)) for name in _FUNCTIONS}
        parts = {**vars(own), **functions, "about": about, "operands": _entries(own.operands)}
        return {**vars(step), "operation": parts}
    if not isinstance(step, Custom):
        own = vars(step)
        if own.get("of_sum", 0) is None:  # left out: measured configurations are kept by texts that are older
            own = {name: value for name, value in own.items() if name != "of_sum"}
        return {name: value.name if isinstance(value, DType) else value for name, value in own.items()}
    found = {**vars(step), "operands": _entries(step.operands)}
    return (
        {**found, "expression": tracing.entry_of_each(step.expression)}
        if isinstance(step, (ColumnGroup, SeveralOutputs))
        else found
    )


def _entries(operands: Sequence[EpilogueOperand]) -> list[dict[str, object]]:
    return [{**vars(operand), "dtype": operand.dtype.name} for operand in operands]


def _operands_of(entries: object) -> list[EpilogueOperand]:
    if not isinstance(entries, list):
        raise PlanError(f"operands of a step are {shown(entries)}: a list")
    return [EpilogueOperand(**{**entry, "dtype": dtype(entry["dtype"])}) for entry in entries]


def _step_of(name: object, values: object) -> Step:
    if not isinstance(name, str) or name not in STEPS or not isinstance(values, dict):
        raise PlanError(f"an epilogue's step is {shown(name)}: known are {', '.join(STEPS)}")
    if not issubclass(STEPS[name], Custom):
        own = values.get("operation")
        return STEPS[name](**(values if not isinstance(own, dict) else {**values, "operation": _reduction_of(own)}))
    operands = _operands_of(values["operands"])
    names = [operand.name for operand in operands]
    if name == "Custom":
        return Custom(tracing.restored(values["expression"], names, whole=whole_names(operands)), tuple(operands))
    if name == "SeveralOutputs":
        read = [operand.name for operand in operands if not operand.written]
        parts = tracing.each_of_entry(tuples(values["expression"]))
        whole = whole_names(operands)
        return SeveralOutputs(tuple([tracing.restored(part, read, whole=whole) for part in parts]), tuple(operands))
    along = [operand.name for operand in operands if "n" in operand.axes]
    each = [
        tracing.restored(part, names, along, values["columns"], whole_names(operands))
        for part in tracing.each_of_entry(tuples(values["expression"]))
    ]
    return ColumnGroup(tuple(each), tuple(operands), values["columns"], values["distance"])


def _reduction_of(entry: Mapping[str, object]) -> Reduction:
    values = {name: tuples(value) for name, value in entry.items()}
    values["operands"] = tuple(_operands_of(entry["operands"]))
    values |= {name: tracing.each_of_entry(values[name]) for name in _FUNCTIONS}
    if isinstance(about := values["about"], dict):
        values["about"] = About(tuples(about["term"]), about["merged"], tuples(about["value"]))
    made = Reduction(**values)
    made.check_laws()
    return made
