"""Torch's operators, captured below autograd and autocast: values, gradients, and saved tensors.

A function of torch is captured as the operators that it runs. Their results have memory, which each replay fills
again: what a backward function has saved, too. Operators read memory as it lay at the capture: a script may change a
tensor's form, or a list of tensors, later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...turns import OwnStack
from ..graphs.graph import NodeKind
from .products import tensors_in
from .streams import asked_of, refuse_read, touched_by

if TYPE_CHECKING:
    from torch import Tensor

_RECORDERS: OwnStack[object] = OwnStack()
_WITHOUT_VALUES = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")


@contextmanager
def recorded(
    torch: ModuleType, drawn: Callable[[], AbstractContextManager[object]], place: Callable[[object], None] | None
) -> Iterator[None]:
    """Within it each operator of torch is captured.

    drawn  in which torch draws the GPU's random numbers
    place  puts a new tensor where a GPU's allocations lie, or None
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class OperatorCapture(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: object, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
        ) -> object:
            return _operator(torch, func, args, dict(kwargs or {}), drawn, place)

    if _RECORDERS.items:
        yield
        return
    _RECORDERS.items.append(None)
    try:
        with OperatorCapture():
            yield
    finally:
        _RECORDERS.items.pop()


@contextmanager
def replayed(torch: ModuleType, written: list[Tensor]) -> Iterator[None]:
    """Within it a graph's work is done again. Versions of the memory stay: autograd does not see replays."""
    versions = tuple(x for x in written if not x.is_inference())
    with torch.inference_mode(), torch.autograd._unsafe_preserve_version_counter(versions):
        yield


def _with_tensors(torch: ModuleType, value: object, made: Callable[[Tensor], object]) -> object:
    """A value with other tensors in place of its own, in new lists."""
    if isinstance(value, torch.Tensor):
        return made(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_with_tensors(torch, one, made) for one in value])
    return value


def _as_it_lies(torch: ModuleType, x: Tensor) -> Tensor:
    """A tensor of the same memory, whose form is that of now."""
    return x.detach() if type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided else x


def _has_known_shape(torch: ModuleType, named: dict[str, object]) -> bool:
    """True where an operator needs no values for its result's shape: of indices, and with a size that is given."""
    masks = (torch.bool, torch.uint8)
    indexed = "indices" in named and all(x.dtype not in masks for x in tensors_in(torch, [named["indices"]]))
    return indexed or named.get("output_size") is not None


def _operator(
    torch: ModuleType, func: Any, args: tuple[object, ...], kwargs: dict[str, object],
    drawn: Callable[[], AbstractContextManager[object]], place: Callable[[object], None] | None,
) -> object:  # fmt: skip
    """Capture one operator. Its result, of which a replay makes the values."""
    name = func._schema.name.partition("::")[2]
    named = {**dict(zip([one.name for one in func._schema.arguments], args)), **kwargs}
    if torch.Tag.data_dependent_output in func.tags or (
        torch.Tag.dynamic_output_shape in func.tags and not _has_known_shape(torch, named)
    ):
        raise refuse_read(name)
    if torch.Tag.inplace_view in func.tags:  # as squeeze_: of the form alone
        return func(*args, **kwargs)
    if name == "lift_fresh":  # of numbers in the script: each replay copies them, and may change the copy
        func = torch.ops.aten.clone.default
    draws = drawn if torch.Tag.nondeterministic_seeded in func.tags else nullcontext
    written = {one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write}
    if named.get("training"):  # batch norm's schema does not say that it writes them
        written |= {"running_mean", "running_var"}
    changed = [x for key, value in named.items() if key in written for x in tensors_in(torch, [value])]
    copies = {id(x): x.clone() for x in changed}  # memory of the script changes at replays alone

    def done_by(made: Callable[[Tensor], object]) -> object:
        given = [_with_tensors(torch, value, made) for value in args]
        with draws():
            return func(*given, **{key: _with_tensors(torch, value, made) for key, value in kwargs.items()})

    done = done_by(lambda x: copies.get(id(x), x))
    originals = {id(copies[id(x)]): x for x in changed}
    for copy, x in [(copies[id(x)], x) for x in changed]:
        if copy.shape != x.shape:
            x.resize_(copy.shape)  # of an `out` without elements
    known = {x.untyped_storage().data_ptr() for x in (*tensors_in(torch, named.values()), *copies.values())}
    results = list(tensors_in(torch, done if isinstance(done, (list, tuple)) else [done]))
    fresh = [x.numel() > 0 and x.untyped_storage().data_ptr() not in known for x in results]
    if place is not None:
        for x in [x for x, is_new in zip(results, fresh) if is_new]:
            place(x)
    if (any(fresh) and name not in _WITHOUT_VALUES) or changed:
        with torch._C.DisableTorchFunction():
            lying = {id(x): _as_it_lies(torch, x) for x in (*tensors_in(torch, named.values()), *results)}
        args = tuple([_with_tensors(torch, one, lambda x: lying[id(x)]) for one in args])
        kwargs = {key: _with_tensors(torch, one, lambda x: lying[id(x)]) for key, one in kwargs.items()}
        places = [lying[id(x)] for x, is_new in zip(results, fresh) if is_new]
        touched = [lying[id(x)] for x in changed]

        def run() -> None:
            with torch._C.DisableTorchFunction(), draws(), replayed(torch, [*touched, *places]):
                again = func(*args, **kwargs)
                values = list(tensors_in(torch, again if isinstance(again, (list, tuple)) else [again]))
                for to, value in zip(places, [x for x, is_new in zip(values, fresh) if is_new]):
                    to.copy_(value)

        kind = NodeKind.MEMCPY if name == "copy_" else NodeKind.KERNEL
        asked_of(None, run, kind, name, touched_by(tensors_in(torch, named.values()), [*touched, *places]))
    return _with_tensors(torch, done, lambda x: originals.get(id(x), x))
