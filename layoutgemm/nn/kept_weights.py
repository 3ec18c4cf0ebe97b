"""Master weights that stay quantised between calls, for inference.

    keep_quantized()   quantises the weights now, into memory that stays while their shape and device do
    eval(), a change   quantise them anew, into the same memory: captured graphs and compiled code read it
    train()            what is kept is not read, and is stale

A call in eager mode compares the weight itself, its address and its count of writes. Compiled code and graphs do not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from ..arguments import refusal
from ..errors import OperandError
from ..torch_op.checks import PLAIN, autocast_type, cast, differentiated, transforms
from ..torch_op.fp8.api import quantize
from ..torch_op.fp8.launch import AS_QUANTIZE, Pair, computed_into

M = TypeVar("M", bound="MasterWeights")


class KeptWeight:
    """A weight as it was quantised last.

    pair    values and scales, or None
    seen    the weight, its address and count of writes then; None if it has changed past the count
    region  the type of the autocast region that it was quantised in, or None

    Copies and pickles of a module quantise their own.
    """

    def __init__(self) -> None:
        self.pair: Pair | None = None
        self.seen: tuple[weakref.ref[torch.Tensor], int, int] | None = None
        self.region: torch.dtype | None = None

    def __reduce__(self) -> tuple[type[KeptWeight], tuple[()]]:
        return KeptWeight, ()

    def now(self, weight: torch.Tensor, recipe: str, region: torch.dtype | None) -> Pair | None:
        """Values and scales of the weight, quantised anew where it or its type has changed.

        None where a trace or a graph would record that, and for a weight without elements of its own.
        """
        if torch.compiler.is_compiling():
            return self.pair if self.seen is not None and self.region == region else None
        if type(weight) not in PLAIN or transforms():
            return None
        seen = self.seen
        if (
            seen is None or seen[1] != weight.data_ptr() or seen[2] != _writes(weight) or self.region != region
            or seen[0]() is not weight
        ):  # fmt: skip
            if not has_elements(weight) or (weight.is_cuda and torch.cuda.is_current_stream_capturing()):
                return None  # what is quantised in a graph's capture is there once the graph has run
            self.fill(weight, recipe, region)
        return self.pair

    def fill(self, weight: torch.Tensor, recipe: str, region: torch.dtype | None) -> None:
        """Quantise the weight, into the same memory if it fits, and wait for it. Calls on other streams read it."""
        seen = weakref.ref(weight), weight.data_ptr(), _writes(weight)
        self.seen = None
        with torch.inference_mode(False), torch.no_grad():
            read, pair = cast(weight.detach(), region), self.pair
            if pair is not None and pair[0].shape == read.shape and pair[0].device == read.device:
                computed_into(read, AS_QUANTIZE._replace(recipe=recipe), *pair)
            else:
                self.pair = quantize(read, recipe)
        if weight.is_cuda:
            torch.cuda.current_stream(weight.device).synchronize()
        self.seen, self.region = seen, region


def has_elements(weight: torch.Tensor) -> bool:
    """True for a plain tensor whose elements can be read. It is not sharded, faked, or of a freed storage."""
    return (
        type(weight) in PLAIN and not transforms() and weight.device.type in ("cuda", "cpu")
        and weight.untyped_storage().nbytes() >= weight.nbytes
    )  # fmt: skip


def _writes(x: torch.Tensor) -> int:
    """Writes that torch has counted; it counts none of a tensor of inference mode."""
    return -1 if x.is_inference() else x._version


class MasterWeights(torch.nn.Module):
    """A module whose parameter `weight` is quantised at each call, or kept quantised for inference.

    recipe_b  of the weight's scales
    """

    weight: torch.nn.Parameter
    recipe_b: str
    _kept: KeptWeight | None = None

    def keep_quantized(self: M, keep: bool = True) -> M:
        """Quantise the weights now, for calls in eval mode that record no derivatives.

        Returns the module.

        keep  False drops what is kept: the weights are quantised at each call again. No captured graph may read it

        Results have the same bits. It takes a byte a weight and its scales, which are in no state dict.

        A change of the weight is seen where torch counts it: optimizers, load_state_dict, `.to()`, another parameter.
        They are quantised anew in the next call in eager mode, and by eval() after train(). Writes past the count, by
        `.data` or by collectives, are not seen: call `keep_quantized()` again. A captured graph and
        code of torch.compile see no change. They read the memory that this call, and any in eager mode, fills.

        Raises OperandError for a weight without elements here, as a sharded or a faked one.

        >>> from layoutgemm.nn import MasterLinear
        >>> layer = MasterLinear(128, 2, bias=False).requires_grad_(False).eval().keep_quantized()
        >>> _ = layer.weight.fill_(2)
        >>> layer(torch.ones(1, 128)).round().tolist()
        [[256.0, 256.0]]
        """
        if not isinstance(keep, bool):
            raise OperandError(refusal(keep, "keep of keep_quantized", "True or False"))
        if not keep:
            self._kept = None
            return self
        weight = self.weight
        if not has_elements(weight):
            kind = type(weight)
            raise OperandError(
                f"keep_quantized() of a weight that is a {kind.__module__}.{kind.__qualname__} on {weight.device}: "
                "a plain tensor on a GPU or the CPU has elements to quantise"
            )
        if self._kept is None:
            self._kept = KeptWeight()
        self._kept.fill(weight, self.recipe_b, autocast_type(weight))
        return self

    def _quantized(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Pair | None:
        """The kept weight for a call with x, or None. A module searches for its parameters, so they are given."""
        kept = self._kept
        if kept is None or self.training or differentiated(x, weight, bias):
            return None
        return kept.now(weight, self.recipe_b, autocast_type(x))

    def _changed(self) -> None:
        """The weight may have changed past torch's count: what is kept is stale, and in eval mode made anew."""
        kept = self._kept
        if kept is not None:
            kept.seen = None
            if not self.training and has_elements(self.weight):
                kept.fill(self.weight, self.recipe_b, kept.region)

    def train(self: M, mode: bool = True) -> M:
        """As torch.nn.Module has it. What is kept is stale in training, and made anew by eval()."""
        was = self.training
        super().train(mode)
        if mode or was:
            self._changed()
        return self

    def _apply(self: M, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> M:
        """As torch.nn.Module has it: `.to()`, `.half()` and their like."""
        super()._apply(fn, recurse)
        self._changed()
        return self

    def _load_from_state_dict(self, state: Mapping[str, object], *others: object) -> None:
        super()._load_from_state_dict(state, *others)
        self._changed()
