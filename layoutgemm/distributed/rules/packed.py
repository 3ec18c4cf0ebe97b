"""Products with packed weights of DTensors. Each process multiplies its own units by an operator of their sizes.

The operator has the weights' sizes as numbers, which a sharding rule does not change. So DTensor calls these functions:

    units           x          scales of columns, bias    result
    --------------  ---------  -------------------------  ----------------------------------------------
    Replicate       Shard(0)   Replicate                  Shard(0)
    Shard(0): n     Replicate  Shard(0)                   Shard(1), column-wise
    Shard(1): k     Shard(1)   Replicate                  Partial, row-wise; then bias and activation

Units are blocks of 64 out features and 128 in features. Experts' units have these dimensions behind the experts'.
x, scales and bias are redistributed to what units ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch

from ...errors import OperandError
from ...kernels.quantized.formats import UNIT_K, UNIT_ROWS
from ...torch_op.bias_activation import by_torch
from ...torch_op.checks import stored_as
from .signature import Placement, whole_partial_shard

DTensor: TypeAlias = "torch.distributed.tensor.DTensor"
Arguments = dict[str, object]
Handler = Callable[..., object]
_WAY_OUT = "distribute_tensor(x, mesh, placements) makes one"


class _Spread(NamedTuple):
    """Placements of a product along each dimension of a mesh.

    n, k   the sizes of this process
    along  whether K is cut
    """

    x: list[Placement]
    columns: list[Placement]
    result: list[Placement]
    n: int
    k: int
    along: bool


def _arguments(
    operator: torch._ops.OpOverload, args: Sequence[object], named: Mapping[str, object] | None
) -> Arguments:
    """An operator's arguments by name, with its defaults."""
    schema = operator._schema.arguments
    given = {x.name: x.default_value for x in schema if x.has_default_value()}
    return {**given, **{x.name: value for x, value in zip(schema, args)}, **(named or {})}


def _tensor(given: Arguments, name: str) -> DTensor:
    """The operand `name`, a DTensor. Raises OperandError for a plain tensor."""
    found = given[name]
    if not isinstance(found, torch.distributed.tensor.DTensor):
        raise OperandError(f"{name} is a plain {type(found).__name__}, and others are DTensors: {_WAY_OUT}")
    return found


def _spread(given: Arguments, x: DTensor | None, first: int) -> _Spread:
    """The placements that units ask for; `first` is the dimension of their row blocks."""
    whole, partial, shard = whole_partial_shard()
    units, n, k, along = _tensor(given, "units"), given["n"], given["k"], False
    assert isinstance(n, int) and isinstance(k, int)
    of_x: list[Placement] = []
    columns: list[Placement] = []
    result: list[Placement] = []
    for at, placed in enumerate(units.placements):
        parts = units.device_mesh.size(at)
        if placed == shard(first):
            n = _part(n, UNIT_ROWS, parts, f"units are {placed}, and n", "out")
            ways = whole, shard(first), shard(1)
        elif placed == shard(first + 1):
            k, along = _part(k, UNIT_K, parts, f"units are {placed}, and k", "in"), True
            ways = shard(1), whole, partial
        elif placed == whole:
            rows = x is not None and first == 0 and x.placements[at] == shard(0) and x.device_mesh == units.device_mesh
            ways = (shard(0), whole, shard(0)) if rows else (whole, whole, whole)
        else:
            raise OperandError(f"units are {placed}: Replicate, Shard({first}) by rows or Shard({first + 1}) by K")
        for found, way in zip((of_x, columns, result), ways):
            found.append(way)
    return _Spread(of_x, columns, result, n, k, along)


def _part(size: int, unit: int, parts: int, name: str, features: str) -> int:
    """A process's part of a size. Raises OperandError where it is no whole units."""
    if size % (unit * parts):
        said = f"units of {unit} {features} features are cut into {parts} parts"
        way_out = "replicate these weights, or pad them with zeros before they are packed"
        raise OperandError(
            f"{name} = {size}: {said}, and {size} = {unit} * {parts} * {size / (unit * parts):g}; {way_out}"
        )
    return size // parts


def _local(given: Arguments, name: str, like: DTensor, placements: Sequence[Placement]) -> torch.Tensor | None:
    """This process's part of an operand, redistributed; None for one that is not given."""
    if given[name] is None:
        return None
    x = _tensor(given, name)
    if x.device_mesh != like.device_mesh:
        raise OperandError(f"{name} is on {x.device_mesh}, and units on {like.device_mesh}: one mesh")
    found: torch.Tensor = x.redistribute(placements=list(placements)).to_local()
    return found


def _placed(local: torch.Tensor, like: DTensor, placements: list[Placement], shape: tuple[int, int]) -> DTensor:
    """The result, contiguous, of a whole shape."""
    found: DTensor = torch.distributed.tensor.DTensor.from_local(
        local, like.device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=(shape[1], 1)
    )
    return found


def _product(first: int) -> Handler:
    """The function of a product; `first` is the dimension of the units' row blocks."""

    def run(
        cls: type, operator: torch._ops.OpOverload, types: object, args: Sequence[object] = (),
        named: Mapping[str, object] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        del cls, types
        given = _arguments(operator, args, named)
        x, units = _tensor(given, "x"), _tensor(given, "units")
        (whole, _, shard), way = whole_partial_shard(), _spread(given, x, first)
        n, kind = given["n"], stored_as(x.dtype, given["out_dtype"])
        assert isinstance(n, int)
        own = {**given, "n": way.n, "k": way.k, "units": units.to_local(), "x": _local(given, "x", units, way.x)}
        own["scales"] = _local(given, "scales", units, way.columns)
        if "offsets" in given:
            own["offsets"] = _local(given, "offsets", units, [whole] * len(way.x))
        rows = [place if place == shard(0) else whole for place in way.x]
        if given["scale_x"] is not None:
            one = _tensor(given, "scale_x").numel() == 1 != x.shape[0]
            own["scale_x"] = _local(given, "scale_x", units, [whole] * len(rows) if one else rows)
        bias = given.get("bias")
        finishes = way.along and (bias is not None or given["activation"] is not None)
        each = bias is not None and _tensor(given, "bias").ndim == 2  # of experts, cut as their scales are
        if each and finishes:
            raise OperandError("bias of each expert, and units are cut along K: add it to the result")
        of_one = [shard(0) if place == shard(first) else place for place in way.columns]
        own["bias"] = None if finishes else _local(given, "bias", units, way.columns if each else of_one)
        if finishes:
            own |= {"activation": None, "out_dtype": torch.float32}
        value: torch.Tensor = _placed(operator(**own), units, way.result, (x.shape[0], n))
        if not finishes:
            return value
        sums = value.redistribute(placements=[whole if place.is_partial() else place for place in way.result])
        activation = given["activation"]
        assert activation is None or isinstance(activation, str)
        return by_torch(sums, None if bias is None else _tensor(given, "bias"), activation, kind)

    return run


def _dense(
    cls: type, operator: torch._ops.OpOverload, types: object, args: Sequence[object] = (),
    named: Mapping[str, object] | None = None,
) -> torch.Tensor:  # fmt: skip
    """The weights (n, k), cut as their units are."""
    del cls, types
    given = _arguments(operator, args, named)
    units = _tensor(given, "units")
    way, (n, k) = _spread(given, None, 0), (given["n"], given["k"])
    assert isinstance(n, int) and isinstance(k, int)
    own = {**given, "n": way.n, "k": way.k, "units": units.to_local()}
    own["scales"] = _local(given, "scales", units, way.columns)
    return _placed(operator(**own), units, list(units.placements), (n, k))


PACKED: dict[str, Handler] = {
    "quantized_matmul": _product(0),
    "quantized_grouped_matmul": _product(1),
    "dequantized": _dense,
}
