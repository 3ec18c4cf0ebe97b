"""Any call of a product as `layoutgemm.tune_call` measures it: candidates, operands, a call, its error.

The operands are copies of the caller's own, so that indices, offsets and lists of tiles are those of the call. A
candidate's results are compared with those of the usual configuration.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import torch

from ...errors import PlanError
from ...kernels.sm90.choose.candidates import candidates
from ...kernels.sm90.choose.occupancy import ClusterOccupancy
from ...kernels.sm90.choose.rules import Sm90Choice
from ..prepared import gpu
from ..tuned_store import Asked, Choice, unmeasured
from .scaled_grouped import configurations

_ESTIMATED = 8  # candidates of one product of the same sizes, before those of every shape
_ERROR = 2.0**-6  # of the largest value of a result: functions magnify an error of their argument


class CallOperands(NamedTuple):
    """Copies of a call's arguments."""

    args: tuple[object, ...]
    options: dict[str, object]


@dataclass
class TunableCall:
    """A call of `door`, with no `config`."""

    door: Callable[..., torch.Tensor]
    args: tuple[object, ...]
    options: Mapping[str, object]

    @property
    def device(self) -> torch.device:
        """The first tensor's device. The CPU for a call without one."""
        return next((x.device for x in tensors_in((self.args, dict(self.options)))), torch.device("cpu"))

    @property
    def bytes(self) -> int:
        """Bytes of all tensors of the call."""
        return sum(x.numel() * x.element_size() for x in tensors_in((self.args, dict(self.options))))

    @cached_property
    def asked(self) -> Asked:
        """The names by which the call looks for a result. Raises PlanError where it looks for none."""
        with torch.no_grad(), unmeasured() as asked:
            self.call(self.operands(), None)
        if not asked:
            raise PlanError(
                f"this call of {self.door.__name__} looks for no measured configuration: no kernel computes it, or an "
                "argument as expected_rows= chooses its tiles"
            )
        return asked

    def candidates(self) -> Iterator[Choice | None]:
        """Configurations that could be the fastest; None, the first, is the usual one."""
        yield None
        (m, n, k, count), *_ = self.asked
        places: ClusterOccupancy = gpu(torch.cuda.current_device() if torch.cuda.is_available() else -1)[0]
        near = (choice for choice in candidates(m, n, k, multiprocessors=places) if not choice.swapped)
        seen = list(islice(near, _ESTIMATED if count == 1 else 0))
        yield from dict.fromkeys([*seen, *map(Sm90Choice, configurations())])

    def operands(self) -> CallOperands:
        """Copies of the caller's arguments; tensors that share memory share it again."""
        memo: dict[int, object] = {}
        args = tuple([_copied(each, memo) for each in self.args])
        return CallOperands(args, {name: _copied(each, memo) for name, each in self.options.items()})

    def call(self, on: CallOperands, choice: Choice | None) -> torch.Tensor:
        """The product of one set of operands."""
        return self.door(*on.args, **on.options, config=choice)

    @cached_property
    def expected(self) -> list[torch.Tensor]:
        """The results of the usual configuration."""
        return self._results(None)

    def off(self, choice: Choice | None) -> float:
        """The largest distance from the usual configuration's results, in units of what it may be."""
        return max(map(_apart, self._results(choice), self.expected))

    def _results(self, choice: Choice | None) -> list[torch.Tensor]:
        """The result, and what the call writes, of operands of its own: a call may add to what is there."""
        on = self.operands()
        value = self.call(on, choice)
        written = on.options.get("given"), on.options.get("out")
        return [value, *tensors_in(written)]


def tensors_in(tree: object) -> Iterator[torch.Tensor]:
    """The tensors of tuples, lists and dicts.

    >>> [x.shape[0] for x in tensors_in(({"a": torch.zeros(1)}, [torch.zeros(2), 3]))]
    [1, 2]
    """
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list, Mapping)):
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors_in(each)


def _copied(tree: object, memo: dict[int, object]) -> object:
    """The same arguments with copies of tensors. Those of one memory have one copy of it."""
    if isinstance(tree, torch.Tensor):
        return copy.deepcopy(tree.detach(), memo)  # type: ignore[arg-type]  # its values are objects of any kind
    if isinstance(tree, (tuple, list)):
        return type(tree)([_copied(each, memo) for each in tree])
    return {name: _copied(each, memo) for name, each in tree.items()} if isinstance(tree, Mapping) else tree


def _apart(found: torch.Tensor, want: torch.Tensor) -> float:
    """The largest distance of two results, in units of what it may be."""
    if found.shape != want.shape:
        raise PlanError(f"the result has shape {list(found.shape)}, that of the usual configuration {list(want.shape)}")
    if found.numel() == 0:
        return 0.0
    if not found.dtype.is_floating_point:
        return float((found != want).double().mean() / _ERROR)
    x, y = found.double(), want.double()
    same = (x == y) | (x.isnan() & y.isnan())
    largest = torch.where(y.isfinite(), y.abs(), 0).max()
    bound = _ERROR * largest + torch.finfo(found.dtype).eps * y.abs() + 1e-6
    return float(torch.where(same, 0.0, (x - y).abs() / bound).max())
