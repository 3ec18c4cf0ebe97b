"""Torch's operators, captured below autograd: gradients, and what an operator saves for them.

A function of torch that autograd follows is captured as the operators that it runs. Their results have memory, which
each replay fills again: what a backward function has saved, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...turns import OwnStack
from .products import tensors_in
from .streams import asked_of, refuse_read, touched_by

if TYPE_CHECKING:
    from torch import Tensor

_RECORDERS: OwnStack[object] = OwnStack()
_WITHOUT_VALUES = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")


def is_recording() -> bool:
    """True where operators are captured below autograd."""
    return bool(_RECORDERS.items)


@contextmanager
def recorded(torch: ModuleType, drawn: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Within it each operator of torch is captured. `drawn`: in which torch draws the GPU's random numbers."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class OperatorCapture(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: object, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
        ) -> object:
            return _operator(torch, func, args, dict(kwargs or {}), drawn)

    if is_recording():
        yield
        return
    _RECORDERS.items.append(None)
    try:
        with OperatorCapture():
            yield
    finally:
        _RECORDERS.items.pop()


@contextmanager
def not_recorded() -> Iterator[None]:
    """Within it functions are captured as a whole, though a recorder is on."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes() if is_recording() else nullcontext():
        yield


@contextmanager
def replayed(torch: ModuleType, written: list[Tensor]) -> Iterator[None]:
    """Within it a graph's work is done again. Versions of the memory stay: autograd does not see replays."""
    versions = tuple(x for x in written if not x.is_inference())
    with torch.inference_mode(), torch.autograd._unsafe_preserve_version_counter(versions):
        yield


def fill_again(torch: ModuleType, places: list[Tensor], again: Callable[[], object]) -> None:
    """Capture that results are computed again, into the memory that they have."""

    def run() -> None:
        with replayed(torch, places):
            for place, value in zip(places, tensors_in(torch, [again()])):
                if place.data_ptr() != value.data_ptr():
                    place.copy_(value)

    asked_of(None, run, label="torch", touched=touched_by((), places))


def _operator(
    torch: ModuleType, func: Any, args: tuple[object, ...], kwargs: dict[str, object],
    drawn: Callable[[], AbstractContextManager[object]],
) -> object:  # fmt: skip
    """Capture one operator. Its result, of which a replay makes the values."""
    name = func._schema.name.partition("::")[2]
    if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        raise refuse_read(name)
    if torch.Tag.inplace_view in func.tags:  # as squeeze_: of the form alone
        return func(*args, **kwargs)
    draws = drawn if torch.Tag.nondeterministic_seeded in func.tags else nullcontext
    named = list(zip([one.name for one in func._schema.arguments], args)) + list(kwargs.items())
    written = {one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write}
    changed = [x for key, value in named if key in written for x in tensors_in(torch, [value])]
    copies = {id(x): x.clone() for x in changed}  # memory of the script changes at replays alone

    def copied(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return copies.get(id(value), value)
        return type(value)(map(copied, value)) if isinstance(value, (list, tuple)) else value

    with draws():
        done = func(*map(copied, args), **{key: copied(value) for key, value in kwargs.items()})
    originals = {id(copy): x for x in changed for copy in [copies[id(x)]]}

    def restored(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return originals.get(id(value), value)
        return type(value)(map(restored, value)) if isinstance(value, (list, tuple)) else value

    given = [x for _, value in named for x in tensors_in(torch, [value])]
    known = {x.untyped_storage().data_ptr() for x in (*given, *copies.values())}
    results = list(tensors_in(torch, done if isinstance(done, (list, tuple)) else [done]))
    fresh = [x.numel() > 0 and x.untyped_storage().data_ptr() not in known for x in results]
    if (any(fresh) and name not in _WITHOUT_VALUES) or changed:
        with torch._C.DisableTorchFunction():  # in the form of now, which the script may change in place
            places = [x.detach() for x, is_new in zip(results, fresh) if is_new]

        def run() -> None:
            with torch._C.DisableTorchFunction(), draws(), replayed(torch, [*changed, *places]):
                again = func(*args, **kwargs)
                values = list(tensors_in(torch, again if isinstance(again, (list, tuple)) else [again]))
                for place, value in zip(places, [x for x, is_new in zip(values, fresh) if is_new]):
                    place.copy_(value)

        asked_of(None, run, label=name, touched=touched_by(given, [*changed, *places]))
    return restored(done)
