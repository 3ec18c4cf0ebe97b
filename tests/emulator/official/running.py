"""Examples as launches of the emulator: the compiled host function says the grid, the boxes and the parameters."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from layoutgemm.emulator.host.launcher import HostFunction
from layoutgemm.emulator.host.types import parameter_of
from layoutgemm.emulator.machine.interpreter import Launch, Policy
from layoutgemm.emulator.mutation.mutants import edited
from layoutgemm.emulator.mutation.run import EARLY, IN_TURN, LaunchCase
from layoutgemm.emulator.ptx.parser import PtxKernel, read_instruction
from tests.emulator.official.cases import Inputs, Tensor, inputs
from tests.emulator.official.compiled import compiled
from tests.emulator.official.examples import Constant, Example, Matrix, Number, Pointer, Scales, Shape, Sizes, Stream

RACES = ("geforce_f16", "geforce_bf16_mnn")  # the stores of whose epilogue race with the next tile's stmatrix


class Marked(np.ndarray):
    """An array with masks of the extents and strides that are run-time arguments."""

    dynamic_shapes_mask: tuple[bool, ...]
    dynamic_strides_mask: tuple[bool, ...]


@functools.cache
def host(example: Example) -> HostFunction:
    """The example's host function, linked."""
    made = compiled(example)
    parameters = [parameter_of(*types, f"argument {number}") for number, types in enumerate(made.types)]
    return HostFunction.link(made.object, made.ptx, parameters)


def kernel(example: Example) -> PtxKernel:
    """The example's kernel."""
    (found,) = host(example).kernels
    return found


def repaired(example: Example) -> PtxKernel:
    """The example's kernel, with its missing barrier (FINDINGS.md) added."""
    original = kernel(example)
    if example.name not in RACES:
        return original
    edits = {}
    for before, ins in itertools.pairwise(original.instructions):
        if ins.words[0] == "stmatrix" != before.words[0]:
            edits[ins.pc] = (read_instruction(original, "bar.sync 9, 128", ins.line, None), ins)
    return edited(original, edits)


def _view(of: Matrix | Scales, tensor: Tensor) -> Marked:
    width = tensor.bits.itemsize
    shape, strides = tensor.shape, tuple(stride * width for stride in tensor.strides)
    view = np.lib.stride_tricks.as_strided(tensor.bits, shape, strides).view(Marked)
    if isinstance(of, Scales):
        view.dynamic_shapes_mask = (False, False, True, False, True, True)
        view.dynamic_strides_mask = (False, False, True, False, False, True)
    else:
        view.dynamic_shapes_mask = tuple(mode != "1" for mode in of.modes or "1")
        view.dynamic_strides_mask = tuple(mode != of.major for mode in of.modes) or (False,)
    return view


def arguments(example: Example, given: Inputs) -> list[Any]:
    """The arguments of the host function, without the stream and compile-time constants."""
    out: list[Any] = []
    for argument in example.arguments:
        if isinstance(argument, Pointer):
            out.append(given.tensors[argument.of.name].bits)
        elif isinstance(argument, Matrix | Scales):
            out.append(_view(argument, given.tensors[argument.name]))
        elif isinstance(argument, Sizes):
            out.append(given.shape)
        elif isinstance(argument, Number):
            out.append(argument.value)
        else:
            assert isinstance(argument, Constant | Stream)
    return out


class Run:
    """One shape of an example: `launch` makes it anew each time, `check` looks at the results of the latest."""

    def __init__(self, example: Example, shape: Shape) -> None:
        self.example, self.shape = example, shape
        self.inputs: Inputs

    def launch(self) -> Launch:
        """Fresh inputs and outputs, and the launch over them."""
        self.inputs = inputs(self.example, self.shape)
        arrays, (made,) = host(self.example).call(arguments(self.example, self.inputs))
        return Launch(made.grid, made.block, made.parameters, arrays.memory, made.cluster, made.dynamic_shared)

    def check(self, launch: Launch) -> str | None:
        """The error of the results, or None."""
        return self.inputs.wrong()


def case(example: Example, shape: Shape, policy: Policy | None = None) -> LaunchCase:
    """A shape of an example as a case of `mutate`."""
    run = Run(example, shape)
    return LaunchCase(f"{example.name} {'x'.join(map(str, shape))}", run.launch, run.check, policy or IN_TURN)


# Orders that differ in what a kernel has to wait for: all late, in the order of issue, waits that fail, all early.
ORDERS = (
    IN_TURN, Policy(fences="writers", lands="oldest"), Policy(fences="writers", waits="reluctant", elect="highest"),
    EARLY,
)  # fmt: skip


# Breaks the rule of PTX that wgmma.fence stands for, in the open: see the test of it.
LAX = ("hopper_fp8_2xacc",)


def cases(example: Example, orders: tuple[Policy, ...] = ORDERS, shapes: tuple[Shape, ...] = ()) -> list[LaunchCase]:
    """All shapes of an example, or these, in these orders. Hopper's examples must keep the wgmma.fence rule, and do."""
    if example.arch == "sm_90a" and example.name not in LAX:
        orders = tuple([replace(order, register_strict=True) for order in orders])
    return [case(example, shape, order) for order in orders for shape in shapes or example.shapes]


def few(example: Example) -> tuple[Shape, ...]:
    """The shapes of an example that show wrong operands: the longest k, the most tiles, a ragged one."""
    shapes = example.shapes
    ragged = [shape for shape in shapes if shape[2] % example.tile[2]]
    return max(shapes, key=lambda shape: shape[2]), shapes[1], (ragged or shapes)[-1]
