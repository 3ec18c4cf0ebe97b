"""The way back: ours as objects of the CuTe DSL, of pycute and of tensor-layouts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from ..arguments import shown
from ..errors import LayoutError
from ..layouts import ComposedLayout, Layout, Swizzle
from ..layouts.display import converted
from .unsupported import UnsupportedObject


@converted.register(object)
def to_cute(x: object, **values: object) -> Any:
    """Ours as an object of the CuTe DSL, equal as a function. The inverse of from_cute. A method of each, too.

        Layout, Swizzle, ComposedLayout    make_layout, make_swizzle, make_composed_layout
        MmaAtom, TiledMma                  make_mma_atom, make_tiled_mma of the operation
        CopyAtom, TiledCopy                make_copy_atom, make_tiled_copy of the operation
        TmaPlan                            make_tiled_tma_atom of the DSL's tensor and the plan's tile; box compared

    values   for layouts with symbols: name -> a run-time integer of the DSL or an int (state what divides it with
             `cute.assume`); for a product with operands in shared memory a_major and b_major, "K" unless given; for a
             tensor copy tensor, the DSL's tensor in global memory

    The swizzle of a composed layout acts on what the layout counts, as the DSL evaluates `make_tensor(pointer,
    x.to_cute())`. For one on the pointer give it `x.layout.to_cute()` and `x.swizzle.recast("bytes").to_cute()`.

    It needs the CuTe DSL and a trace: call it inside @cute.jit or @cute.kernel, or under `cute_context()`. Raises
    LayoutError without one, for an atom that the DSL has no operation for, and for a symbol without a value.
    """
    return _bridge().to_cute(x, **values)


def cute_context(arch: str | None = None) -> AbstractContextManager[None]:
    """Makes objects of the CuTe DSL outside a kernel, as at a prompt.

        with cute_context("sm_90a"): ...

    arch   the architecture that the DSL checks its operations against ("sm_90a" for wgmma); None leaves it

    Its objects are of no use to a kernel and can be read as long as the process lives. Raises LayoutError within a
    trace, which has a context of its own.
    """
    context: AbstractContextManager[None] = _bridge().context(arch)
    return context


def _bridge() -> Any:
    """The one file that makes objects of the DSL, and imports it."""
    try:
        from . import to_dsl as bridge_convert
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("cutlass", "cuda"):
            raise
        raise LayoutError("to_cute needs the CuTe DSL: pip install 'layoutgemm[dsl]' (Linux)") from error
    return bridge_convert


def to_module(x: Any, module: Any) -> Any:
    """A Layout, Swizzle or ComposedLayout as one of `module`'s. That is pycute, tensor_layouts, or another with their
    classes.

    Raises LayoutError for symbols and for strides that lead to coordinates, which those have not.
    """
    kind = next((k for k in (Layout, Swizzle, ComposedLayout) if isinstance(x, k)), None)
    if kind is None:
        raise UnsupportedObject(f"to_module takes a Layout, a Swizzle or a ComposedLayout, not {type(x).__name__}")
    if not callable(getattr(module, kind.__name__, None)):
        said = getattr(module, "__name__", None) or shown(module)
        raise UnsupportedObject(f"{said} has no {kind.__name__} for {x}")
    if isinstance(x, Layout):
        if x.has_basis or x._symbolic:
            what = "leads to coordinates" if x.has_basis else "has symbols"
            raise LayoutError(f"{x} {what}: {getattr(module, '__name__', 'the module')}.Layout has integers alone")
        return module.Layout(x.shape, x.stride)
    if isinstance(x, Swizzle):
        return module.Swizzle(x.bits, x.base, x.shift)
    first, last = to_module(x.swizzle, module), to_module(x.layout, module)
    if "layoutB" in module.ComposedLayout.__init__.__code__.co_varnames:
        return module.ComposedLayout(first, x.offset, last)
    return module.ComposedLayout(first, last, offset=x.offset)
