"""Call sites of Inductor's code: after its first call a site writes addresses, and launches.

Inductor fixes the shapes, strides and types of a site's tensors, and the GPU; its results are memory of their own. So
of what an eager call checks only the addresses can differ: their lowest bits, and those of a freed storage. A
site's first call is recorded. It is kept if it was one launch of which every argument is known, as `kept_launches` has
it. A call that torch's dispatcher has to see decides nothing: of a graph's first one torch analyses each operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...kernels.run.capture import first_call
from ..checks import needs_dispatcher
from ..emulated_gpu import adopt
from ..launch import DirectLaunch, ProductCall, Recording, recorded
from ..prepared import PREPARED
from .guards import ALIGNED, FIRST_GPU, LEAST_ADDRESS

_reinterpreted: Callable[..., torch.Tensor] = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None),
    "_reinterpret_tensor",
    lambda x, size, stride, more: x.as_strided(size, stride, x.storage_offset() + more),
)

View = tuple[tuple[int, ...], tuple[int, ...], int]  # sizes, strides, and elements from the tensor's first


class CallSite:
    """One place in generated code that calls a product into `out`.

    call   the product, with all arguments but the tensors
    views  of each tensor that it is called with, the view that the product reads, or None. () where it reads them all

    >>> site = CallSite(lambda a, b, *, out: torch.mm(a, b, out=out))
    >>> result = torch.empty(2, 2)
    >>> site(torch.eye(2), torch.ones(2, 2), out=result)
    >>> result.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    __slots__ = ("_call", "_views")

    def __init__(self, call: Callable[..., None], views: tuple[View | None, ...] = ()) -> None:
        self._call, self._views = call, views

    def __call__(self, *tensors: torch.Tensor, out: torch.Tensor) -> None:
        """The product of these tensors into `out`. Raises what the product raises."""
        launch = LAUNCHES.get(self, _not_called)
        if launch is _not_called:
            return self._first([*self._read(tensors), out], tensors)
        if launch(out, *tensors) is None:
            self._call(*self._read(tensors), out=out)
        return None

    def of(self, count: int | None) -> Callable[..., None]:
        """The site as a function of `count` tensors and `out`; None: of any number.

        Two and three tensors have functions of their own, which make no tuple of tensors.
        """
        launches, key, not_called = LAUNCHES, self, _not_called

        def of_two(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
            if launches.get(key, not_called)(out, a, b) is None:
                key(a, b, out=out)

        def of_three(a: torch.Tensor, b: torch.Tensor, third: torch.Tensor, *, out: torch.Tensor) -> None:
            if launches.get(key, not_called)(out, a, b, third) is None:
                key(a, b, third, out=out)

        few: dict[int | None, Callable[..., None]] = {2: of_two, 3: of_three}
        return few.get(count, self)

    def _read(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The tensors that the product reads."""
        if not self._views:
            return tensors
        return [x if view is None else _reinterpreted(x, *view) for x, view in zip(tensors, self._views)]

    def _first(self, tensors: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> None:
        """A call that is recorded, of what the product reads and writes; `given` is what the site is called with."""
        adopt(tensors)
        *read, out = tensors
        addresses = [x.data_ptr() for x in tensors]
        if any(at & ALIGNED for at in addresses) or min(addresses) < LEAST_ADDRESS or needs_dispatcher(*tensors):
            return self._call(*read, out=out)
        before = [_writes(x) for x in tensors]
        with first_call(), recorded() as record:
            self._call(*read, out=out)
        added = [None if count is None else (_writes(x) or 0) - count for x, count in zip(tensors, before)]
        once = all(count is None or count <= (x is out) for x, count in zip(tensors, added))
        if len(LAUNCHES) >= MAX_SITES:
            LAUNCHES.clear()
        found = launch_at(record, addresses) if once else None
        if found is not None:
            direct, memory = found
            LAUNCHES[self] = direct.into([*[at - x.data_ptr() for at, x in zip(addresses, given)], 0], memory)
        else:
            LAUNCHES[self] = _product_alone
        return None


MAX_SITES = 1 << 16  # beyond, all begin anew
LAUNCHES: dict[CallSite, ProductCall] = {}  # of `out` and the tensors; None where the product has to be called
PREPARED.on_clear.append(LAUNCHES.clear)  # the next call of each chooses anew


def _not_called(out: torch.Tensor, *tensors: torch.Tensor) -> None:
    """A site that has not been called launches nothing."""


def _product_alone(out: torch.Tensor, *tensors: torch.Tensor) -> None:
    """A site whose calls stay calls of its product launches nothing itself."""


def _writes(x: torch.Tensor) -> int | None:
    """A tensor's count of writes; None in inference mode, which counts none."""
    return None if x.is_inference() else x._version


def launch_at(record: Recording, addresses: Sequence[int]) -> tuple[DirectLaunch, tuple[int, ...]] | None:
    """A recorded call's one launch, and the bytes of each of its workspaces.

    None where it made another number of launches, or an argument is another address. The launch takes these addresses,
    then those of workspaces.
    """
    if len(record.launches) != 1 or record.lists or record.clears or any(record.first.values()):
        return None
    [made] = record.launches
    if made.device < FIRST_GPU or min(addresses) < LEAST_ADDRESS or len({*addresses}) < len(addresses):
        return None
    places: dict[int, int] = {}
    for place, value in enumerate(made.arguments):
        if value in addresses or value in record.memory:
            if value in places:
                return None
            places[value] = place
        elif not record.knows(value):
            return None
    spaces = [at for at in places if at in record.memory]
    if any(at not in places for at in addresses):
        return None
    order = [places[at] for at in (*addresses, *spaces)]
    direct = DirectLaunch(made.compiled, made.arguments, order, made.device, made.what)
    return direct, tuple([record.memory[at] for at in spaces])
