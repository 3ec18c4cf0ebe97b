"""Gradients of recorded groups by kept launches: one guard finds those of a backward pass.

forward   a product of groups, recorded
backward  the first time by `grouped_matmul`, which keeps its launches; the second time by the facts of all tensors;
          then by a guard: an allocation and a launch for each gradient, and no views
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.autograd.forward_ad as _forward

from ..autograd.products import is_stretched
from ..checks import PLAIN, modes_of_dispatch, modes_of_functions, tracing_state
from ..compiled.guards import MAX_READY, KeptCalls, LaunchesByAddress, guarded
from .kept import READY, KeptLaunch, again, by_facts
from .operators import lies_in_columns

Launches = LaunchesByAddress[KeptLaunch]


class GroupGradient(NamedTuple):
    """The kept launches of one gradient.

    launches  of its product
    first     whether dC is the product's A, else its B
    turned    whether the gradient is the product's transpose
    """

    launches: Launches
    first: bool
    turned: bool

    def run(self, other: torch.Tensor, grad: torch.Tensor, groups: torch.Tensor) -> torch.Tensor | None:
        """The gradient of what was multiplied with `other`; None for addresses of no kept launch."""
        left, right = (grad, other) if self.first else (other, grad)
        found = again(self.launches, (left, right, groups), left, right, None)
        return found.mT if found is not None and self.turned else found


Pair = tuple[torch.Tensor | None, torch.Tensor | None]
Kept = tuple[GroupGradient | None, GroupGradient | None]
BACKWARD: KeptCalls[Kept] = KeptCalls()  # guards alone
READY.on_clear.append(BACKWARD.clear)


def gradients_again(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor, said: str, wanted: Sequence[bool], grad: torch.Tensor
) -> Pair | None:
    """The wanted gradients by kept launches. None without such launches, and where torch has to see the products.

    a, b  of the one whose gradient alone is wanted, only shape, strides and type are read
    """
    if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0:
        return None
    given = (a, b, groups, grad)
    short = said, *wanted[:2], a.shape, b.shape, grad.shape
    for check, _, (of_a, of_b) in BACKWARD.seen.get(short, ()):
        if check(*given):
            left = None if of_a is None else of_a.run(b, grad, groups)
            right = None if of_b is None else of_b.run(a, grad, groups)
            whole = (left is None) == (of_a is None) and (right is None) == (of_b is None)
            return (left, right) if whole else None
    if tracing_state() is not None:
        return None
    if any(type(x) not in PLAIN for x in given) or grad.dtype != a.dtype or is_stretched(grad):
        return None
    kept_a, left = _by_facts(grad, b.mT, a, groups, said, True) if wanted[0] else (None, None)
    kept_b, right = _by_facts(a.mT, grad, b, groups, said, False) if wanted[1] else (None, None)
    if (left is None) == wanted[0] or (right is None) == wanted[1]:
        return None
    if (kept_a is None) != wanted[0] and (kept_b is None) != wanted[1]:
        guarded(BACKWARD.seen, short, given, (kept_a, kept_b), MAX_READY)
    return left, right


def _by_facts(
    left: torch.Tensor, right: torch.Tensor, like: torch.Tensor, groups: torch.Tensor, said: str, first: bool
) -> tuple[GroupGradient | None, torch.Tensor | None]:
    """The kept launches of left @ right, as `like`, and its result; None for what is not kept.

    first  whether dC is `left`
    """
    turned = lies_in_columns(like)
    if turned:
        left, right, first = right.mT, left.mT, not first
    options = said, like.dtype, None, None, None, None, True, None  # those of `grouped_matmul`
    key, found = by_facts(left, right, groups, None, (), None, options)
    if found is None:
        return None, None
    launches = READY.get(key)  # another thread may have dropped it meanwhile
    value = found.mT if turned else found
    if launches is None or any(kept.copied is not None for kept in launches.values()):  # a copy reads the views
        return None, value
    return GroupGradient(launches, first, turned), value
