"""Master weights that stay quantised between calls, for inference, and between an optimizer's steps.

    keep_quantized()   quantises the weights now, into memory that stays while their shape and device do
    eval(), a change   quantise them anew, into the same memory: captured graphs and compiled code read it
    train()            what is kept is not read, and is stale

    quantize_once()    calls in training quantise the weights once, in both layouts, and others read that
    step(), a change   drop it: the memory is free until the next call

A call in eager mode compares the weight itself, its memory and its count of writes. Compiled code and graphs do not.
Torch counts no writes of its fused optimizers: a hook behind their steps says which weights they wrote.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..arguments import refusal
from ..errors import OperandError
from ..torch_op.checks import PLAIN, autocast_type, cast, differentiated, modes_of_dispatch, transforms
from ..torch_op.fp8.api import quantize
from ..torch_op.fp8.launch import AS_QUANTIZE, Pair, computed_into

M = TypeVar("M", bound="MasterWeights")


class Seen(NamedTuple):
    """A weight as it was when it was quantised. An id may come to be another object's, a storage's does not.

    weight  its id
    facts   address, shape, strides and count of writes
    memory  of its storage, which gets no other storage while this is held; it keeps no elements
    asked   the recipe of its scales, and the type of the autocast region or None
    """

    weight: int
    facts: tuple[object, ...]
    memory: StorageWeakRef
    asked: tuple[str, torch.dtype | None]

    @classmethod
    def of(cls, weight: torch.Tensor, recipe: str, region: torch.dtype | None) -> Seen:
        """The weight as it is now."""
        return cls(id(weight), _facts(weight), StorageWeakRef(weight.untyped_storage()), (recipe, region))

    def holds(self, weight: torch.Tensor, recipe: str, region: torch.dtype | None) -> bool:
        """True if nothing has changed since, as far as torch counts."""
        return (
            self.weight == id(weight) and self.facts == _facts(weight) and self.asked == (recipe, region)
            and self.memory.cdata == weight.untyped_storage()._cdata
        )  # fmt: skip


class KeptWeight:
    """A weight as it was quantised last.

    pair   values and scales, or None
    seen   the weight then; None if it has changed past the count
    asked  the recipe of the scales and the autocast region's type

    Copies and pickles of a module quantise their own.
    """

    def __init__(self) -> None:
        self.pair: Pair | None = None
        self.seen: Seen | None = None
        self.asked: tuple[str, torch.dtype | None] | None = None
        _hook()
        _ALL.add(self)

    def __reduce__(self) -> tuple[type[KeptWeight], tuple[()]]:
        return KeptWeight, ()

    def now(self, weight: torch.Tensor, recipe: str, region: torch.dtype | None) -> Pair | None:
        """Values and scales of the weight, quantised anew where it or its type has changed.

        None where a trace or a graph would record that, and for a weight without elements of its own.
        """
        seen = self.seen
        if torch.compiler.is_compiling():
            return self.pair if seen is not None and self.asked == (recipe, region) else None
        if type(weight) not in PLAIN or transforms():
            return None
        if seen is None or not seen.holds(weight, recipe, region):
            if not has_elements(weight) or (weight.is_cuda and torch.cuda.is_current_stream_capturing()):
                return None  # what is quantised in a graph's capture is there once the graph has run
            self.fill(weight, recipe, region)
        return self.pair

    def fill(self, weight: torch.Tensor, recipe: str, region: torch.dtype | None) -> None:
        """Quantise the weight, into the same memory if it fits, and wait for it. Calls on other streams read it."""
        seen, fits = Seen.of(weight, recipe, region), self.asked is None or self.asked[0] == recipe
        self.seen = None
        with torch.inference_mode(False), torch.no_grad():
            read, pair = cast(weight.detach(), region), self.pair
            if pair is not None and fits and pair[0].shape == read.shape and pair[0].device == read.device:
                computed_into(read, AS_QUANTIZE._replace(recipe=recipe), *pair)
            else:
                self.pair = quantize(read, recipe)
        if weight.is_cuda:
            torch.cuda.current_stream(weight.device).synchronize()
        self.seen, self.asked = seen, seen.asked


class WeightOnce:
    """A weight that training quantises once between an optimizer's steps.

    pairs  of the weight and of its transpose (turned), each with the weight and the stream as they were

    Copies and pickles of a module quantise their own.
    """

    def __init__(self) -> None:
        self.pairs: dict[bool, tuple[Seen, int, Pair]] = {}
        _hook()
        _ONCE.add(self)

    def __reduce__(self) -> tuple[type[WeightOnce], tuple[()]]:
        return WeightOnce, ()

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept now."""
        return sum(x.untyped_storage().nbytes() for *_, pair in self.pairs.values() for x in pair)

    def pair(self, weight: torch.Tensor, recipe: str, region: torch.dtype | None, turned: bool) -> Pair | None:
        """Values and scales of the weight or its transpose, made anew where it changed.

        None where a trace or a graph would record that: a graph's own launches quantise what it reads at each replay.
        """
        if torch.compiler.is_compiling() or modes_of_dispatch() or not has_elements(weight):
            return None
        stream = 0
        if weight.is_cuda:
            if torch.cuda.is_current_stream_capturing():
                return None
            stream = torch.cuda.current_stream(weight.device).cuda_stream
        found = self.pairs.get(turned)
        if found is not None and found[1] == stream and found[0].holds(weight, recipe, region):
            return found[2]
        found = self.pairs.pop(turned, None)  # its memory goes first
        del found
        seen = Seen.of(weight, recipe, region)
        with torch.inference_mode(False), torch.no_grad():
            read = cast(weight.detach(), region)
            made = quantize(read.mT if turned else read, recipe)
        self.pairs[turned] = seen, stream, made
        return made

    def turned_of(self, weight: torch.Tensor, recipe: str, region: torch.dtype | None) -> Callable[[], Pair | None]:
        """The transpose's pair for a backward pass to come. It has None once the weight has changed."""
        seen = Seen.of(weight, recipe, region)
        return lambda: self.pair(weight, recipe, region, True) if seen.holds(weight, recipe, region) else None


_ALL: weakref.WeakSet[KeptWeight] = weakref.WeakSet()
_ONCE: weakref.WeakSet[WeightOnce] = weakref.WeakSet()


@functools.cache
def _hook() -> None:
    """Have all optimizers say what they have written."""
    register_optimizer_step_post_hook(_stepped)


def _stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Weights that a fused optimizer has written have changed past torch's count.

    Weights that are quantised once are dropped at any step: of sharded parameters the optimizer has others, and some
    optimizers of other packages count no writes.
    """
    for once in list(_ONCE):
        once.pairs.clear()
    written = {id(x) for group in optimizer.param_groups if group.get("fused") for x in group["params"]}
    for kept in list(_ALL) if written else ():
        if kept.seen is not None and kept.seen.weight in written:
            kept.seen = None


def has_elements(weight: torch.Tensor) -> bool:
    """True for a plain tensor whose elements can be read, and whose writes torch counts.

    Not for a sharded or faked one, one of a freed storage, or one made in inference mode.
    """
    return (
        type(weight) in PLAIN and not transforms() and weight.device.type in ("cuda", "cpu")
        and not weight.is_inference()
        and weight.untyped_storage().nbytes() >= weight.nbytes
    )  # fmt: skip


def _facts(x: torch.Tensor) -> tuple[object, ...]:
    """A tensor's address, shape, strides and the writes that torch has counted."""
    return x.data_ptr(), x.shape, x.stride(), x._version


class MasterWeights(torch.nn.Module):
    """A module whose parameter `weight` is quantised at each call, or kept quantised for inference.

    recipe_b  of the weight's scales
    """

    weight: torch.nn.Parameter
    recipe_b: str
    _kept: KeptWeight | None = None
    _once: WeightOnce | None = None

    def keep_quantized(self: M, keep: bool = True) -> M:
        """Quantise the weights now, for calls in eval mode that record no derivatives.

        Returns the module.

        keep  False drops what is kept: the weights are quantised at each call again. No captured graph may read it

        Results have the same bits. It takes a byte a weight and its scales, which are in no state dict.

        A change of the weight is seen where torch counts it: optimizers, load_state_dict, `.to()`, another parameter.
        They are quantised anew in the next call in eager mode, and by eval() after train(). Writes past the count, by
        `.data` or by collectives, are not seen: call `keep_quantized()` again. A captured graph and
        code of torch.compile see no change. They read the memory that this call, and any in eager mode, fills.

        Raises OperandError for a weight without elements here, as a sharded or a faked one. And for one made in
        inference mode, whose writes torch does not count.

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
                + ", and torch counts no writes of one made in inference mode"
                * weight.is_inference()
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
        if self._once is not None:
            self._once.pairs.clear()
        kept = self._kept
        if kept is not None:
            kept.seen = None
            if not self.training and has_elements(self.weight):
                kept.fill(self.weight, self.recipe_b, kept.asked[1] if kept.asked is not None else None)

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
