"""Parameters of experts that a checkpoint has as blocks of MXFP4, as gpt-oss does. Packed, or dequantised.

experts.gate_up_proj_blocks (experts, n, k / 32, 16)  }
experts.gate_up_proj_scales (experts, n, k / 32)      }  ->  experts.gate_up_proj (experts, k, n) or (experts, n, k)

Those of a module whose own forward, tried on small weights and biases, agrees, become an `ExpertsMLP`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..errors import OperandError, TensorError
from ..kernels.quantized.checkpoints import from_float4, scale_values
from ..kernels.quantized.formats import MXFP4
from ..torch_op.quantized import QuantizedExperts, QuantizedWeight
from .checkpoint import StoredTensor
from .experts import ExpertsMLP, OwnGate, PackedGroups
from .stored_experts import compared

_BYTES = (MXFP4.group or 0) * MXFP4.bits // 8  # of a block


@dataclass(frozen=True, eq=False)
class StoredBlocks:
    """A parameter of three dimensions, and whether its last two are (in features, out features).

    name    of the module in the model
    key     of the parameter
    """

    name: str
    key: str
    parameter: torch.Tensor
    transposed: bool

    @property
    def tensors(self) -> tuple[str, str]:
        """The names of the blocks and of their scales."""
        front = f"{self.name}.{self.key}" if self.name else self.key
        return f"{front}_blocks", f"{front}_scales"

    def check(self, read: Callable[[str], torch.Tensor]) -> None:
        """Raise OperandError for a scale that is NaN."""
        scale_values(self.tensors[1], read(self.tensors[1]).numpy())

    def value(self, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """The parameter's value, dequantised, in its type."""
        made = torch.empty(self.parameter.shape, dtype=self.parameter.dtype, device="cpu")
        blocks, scales = (read(name) for name in self.tensors)
        for e, into in enumerate(made):
            dense = torch.from_numpy(from_float4(blocks[e].numpy(), scales[e].numpy()).dense())
            into.copy_(dense.mT if self.transposed else dense)
        return made


@dataclass(frozen=True, eq=False)
class BlockExperts:
    """A module of experts whose parameters are blocks.

    parts   its parameters that are, in the module's order
    reason  why no `ExpertsMLP` can be in the module's place, or ""
    """

    module: torch.nn.Module
    parts: tuple[StoredBlocks, ...]
    reason: str

    @property
    def biases(self) -> tuple[str, ...]:
        """The keys of its biases, which are dense in the checkpoint."""
        names = [f"{one.key}_bias" for one in self.parts]
        return tuple([name for name in names if self.module._parameters.get(name) is not None])

    def packed(self, read: Callable[[str], torch.Tensor], bias: Mapping[str, torch.Tensor]) -> ExpertsMLP:
        """The module in its place, on the CPU. `bias` has the values of `biases`.

        Raises OperandError, naming the tensor, for weights that bfloat16 does not hold.
        """
        layers = []
        for one in self.parts:
            blocks, scales = (read(name).numpy() for name in one.tensors)
            try:
                every = [QuantizedWeight.pack(from_float4(*each), one.parameter.dtype) for each in zip(blocks, scales)]
            except OperandError as error:
                raise OperandError(f"{one.tensors[0]}: {error}") from error
            value = bias.get(f"{one.key}_bias")
            added = None if value is None else torch.nn.Parameter(value.to(one.parameter.dtype))
            layers.append(PackedGroups(QuantizedExperts.of(every), bias=added))
        first, down = layers
        gate = OwnGate(self.module, first.out_features == 2 * down.in_features)
        return ExpertsMLP(first, down, gate).train(self.module.training)


def find_block_experts(
    modules: Mapping[str, torch.nn.Module], blocks: Sequence[StoredBlocks], stored: Mapping[str, StoredTensor]
) -> list[BlockExperts]:
    """The modules of blocks, and why a module keeps its parameters: they are then dequantised."""
    found: dict[str, list[StoredBlocks]] = {}
    for one in blocks:
        found.setdefault(one.name, []).append(one)
    return [
        BlockExperts(modules[name], tuple(parts), _reason(modules[name], parts, stored))
        for name, parts in found.items()
    ]


def _reason(module: torch.nn.Module, parts: Sequence[StoredBlocks], stored: Mapping[str, StoredTensor]) -> str:
    """Why a module's blocks are dequantised, or ""."""
    kinds = {one.parameter.dtype for one in parts} - {torch.bfloat16}
    if kinds:
        return f"its weights are {kinds.pop()}, and scales of MXFP4 bfloat16's"
    if not parts[0].name:
        return "it is the model itself"
    if len(parts) != 2 or len({one.transposed for one in parts}) != 1:
        return f"it has {len(parts)} of a gated MLP's two weights in blocks"
    first, second = (stored[one.tensors[1]].shape for one in parts)
    if first[1] not in ((size := second[2] * (MXFP4.group or 0)), 2 * size):
        return f"the first product has {first[1]} columns, and the second takes {size}"
    biased = any(x is not None and x.ndim == 2 for x in module._parameters.values())
    return compared(module, [one.key for one in parts], first[1] == 2 * size, parts[0].transposed, biased)[1]


def find_blocks(modules: Mapping[str, torch.nn.Module], stored: Mapping[str, StoredTensor]) -> list[StoredBlocks]:
    """The parameters that a checkpoint has as blocks and scales.

    Raises OperandError or TensorError, naming the tensor, for blocks that are not the parameter's.
    """
    found: dict[torch.Tensor, StoredBlocks] = {}
    for name, module in modules.items():
        there = [StoredBlocks(name, key, x, False) for key, x in _of_three(module)]
        there = [one for one in there if all(each in stored for each in one.tensors) and one.parameter not in found]
        ways = {one: _ways(one, stored) for one in there}
        common = set.intersection(*ways.values()) if ways else set()
        said = getattr(module, "is_transposed", None)
        if len(common) > 1 and isinstance(said, bool):
            common = {said}
        if ways and len(common) != 1:
            sizes = ", ".join(f"{one.key} {[*one.parameter.shape]}" for one in there)
            why = "its parameters are square" if common else "its parameters differ in order"
            raise OperandError(
                f"{name or 'the model'}: {sizes} are blocks of (experts, out, in features), and {why}: "
                "is_transposed of the module says whether they are (experts, in, out features)"
            )
        for one in there:
            found[one.parameter] = StoredBlocks(name, one.key, one.parameter, next(iter(common)))
    return list(found.values())


def _of_three(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of three dimensions."""
    yield from ((key, x) for key, x in module._parameters.items() if x is not None and x.ndim == 3)


def _ways(one: StoredBlocks, stored: Mapping[str, StoredTensor]) -> set[bool]:
    """The orders that a shape allows: {True} for a transposed one, {False}, or both.

    Raises OperandError or TensorError for others' blocks.
    """
    blocks, scales = (stored[name] for name in one.tensors)
    for name, of in zip(one.tensors, (blocks, scales)):
        if of.dtype != torch.uint8:
            raise OperandError(f"{name} is {of.dtype} in the checkpoint: uint8, of MXFP4")
    if len(blocks.shape) != 4 or blocks.shape[3] != _BYTES or blocks.shape[:3] != scales.shape:
        have = f"{[*blocks.shape]}, and {one.tensors[1]} {[*scales.shape]}"
        raise TensorError(f"{one.tensors[0]} has shape {have}: (experts, n, k / 32, 16) and (experts, n, k / 32)")
    experts, n, groups = scales.shape
    k, shape = groups * (MXFP4.group or 0), tuple(one.parameter.shape)
    ways = {way for way, want in ((False, (experts, n, k)), (True, (experts, k, n))) if shape == want}
    if not ways:
        raise TensorError(f"{one.tensors[0]} are {[experts, n, k]} weights, and {one.key} is {[*shape]} in the model")
    return ways
