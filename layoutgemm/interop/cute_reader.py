"""from_cute converts other libraries' layouts by class and module name, and imports nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..arguments import checked, refusal, shown
from ..atoms import CopyAtom, MmaAtom, TiledCopy, TiledMma
from ..dtypes import DType, dtype
from ..errors import LayoutError, OperandError
from ..layouts import ComposedLayout, Layout, ScaledBasis, Swizzle
from ..layouts.swizzle import as_unit
from . import dsl_atoms, dsl_layouts
from .dsl_layouts import Symbols, TensorLayout
from .unsupported import UnsupportedObject

_OURS = (Layout, ComposedLayout, Swizzle, ScaledBasis, MmaAtom, CopyAtom, TiledMma, TiledCopy)
_TAKEN = (
    "layouts, swizzles, tensors, operations, atoms, tiled copies and tiled products of the CuTe DSL; Layout, Swizzle "
    "and ComposedLayout of pycute and tensor_layouts; torch tensors and NumPy arrays"
)


# Classes of the DSL, the derived ones first -> how they are read, with the spaces of a copy.
_ATOMS: dict[str, Callable[[Any, tuple[str, str]], object]] = {
    "TiledMma": lambda x, spaces: dsl_atoms.tiled_mma(x),
    "MmaAtom": lambda x, spaces: dsl_atoms.mma_atom(x),
    "TiledCopy": dsl_atoms.tiled_copy,
    "CopyAtom": dsl_atoms.copy_atom,
    "MmaOp": lambda x, spaces: dsl_atoms.product_of(x),
    "CopyOp": lambda x, spaces: dsl_atoms.copy_of(x),
}


@checked()
def from_cute(
    x: object,
    *,
    names: Sequence[object] | None = None,
    element: DType | str | None = None,
    unit: int | str | None = None,
    spaces: tuple[str, str] = ("gmem", "rmem"),
) -> Any:
    """Another package's object as ours, equal as a function.

        the CuTe DSL, inside @cute.jit and @cute.kernel or outside          here
        ----------------------------------------------------------------    -----------------------------------------
        Layout; Swizzle; ComposedLayout                                      Layout; Swizzle; ComposedLayout
        Tensor: of a trace, from_dlpack's, a fake one                        its Layout or ComposedLayout
        Tensor of coordinates                                                its Layout, or a CoordinateTensor
        TiledMma, ThrMma; MmaAtom and MmaOp                                  TiledMma; MmaAtom
        TiledCopy, ThrCopy; CopyAtom and CopyOp                              TiledCopy; CopyAtom
        pycute's and tensor_layouts' Layout, Swizzle, ComposedLayout         Layout, Swizzle, ComposedLayout
        torch tensors, NumPy arrays                                          Layout of their strides, in elements

    Take the DSL's objects where they are made: one that outlives its trace ends the process when it is touched, by the
    DSL itself too. Operations, and tensors outside a trace, are Python objects and have no such end.

    Atoms and tiled ones are compared with the DSL's own maps before they are returned. Its copy atoms do not say
    whether an integer has a sign: they are counted in signed ones.

    names    for run-time extents and strides, in the order in which they are written: a name, or a symbol made with
             `dim`. A name given twice says that the two are one integer; without names each is its own, unlike those
             of every other object: n0, or n0_1 where another symbol is called n0. Of an extent it
             is known that it is at least 1, of a stride that it is not negative, and of both what divides them.
    element  what a composed layout counts; tensors say it themselves
    unit     what a composed layout's swizzle counts. None: what the layout counts, as the DSL evaluates the object.
             "bytes": byte addresses, as with `allocate_tensor(element, x.outer, swizzle=x.inner)`; the official layouts
             of Hopper and Blackwell tiles are made for that, and are then recast to `element`. Or a number of bits.
    spaces   source and target of a CopyUniversalOp, which does not say them

    Raises LayoutError, or AtomError for an instruction that has no atom here, saying what it is and what is known of
    it; UnsupportedObject, a LayoutError and a TypeError, for anything else.

    >>> import numpy as np
    >>> from_cute(np.zeros((4, 8), np.float32)), from_cute(np.zeros((4, 8))[:, ::2].T)
    (Layout((4, 8), (8, 1)), Layout((4, 4), (2, 8)))
    >>> from_cute("(4,8):(8,1)")
    Traceback (most recent call last):
        ...
    layoutgemm.interop.unsupported.UnsupportedObject: from_cute takes layouts, swizzles, tensors, operations, atoms, \
tiled copies and tiled products of the CuTe DSL; Layout, Swizzle and ComposedLayout of pycute and tensor_layouts; \
torch tensors and NumPy arrays, not str
    """
    counted = None if element is None else dtype(element)
    Symbols(names)  # names of another kind are refused for every object
    as_unit(unit)
    if not (isinstance(spaces, (tuple, list)) and len(spaces) == 2 and all(isinstance(s, str) for s in spaces)):
        raise LayoutError(refusal(spaces, "spaces of from_cute", "2 strings"))
    if isinstance(x, _OURS):
        return x
    bases = _bases(x)
    if any(name.startswith("cutlass.cute.") for name in bases):
        return _of_dsl(x, bases, names, counted, unit, spaces)
    if _is_array(bases):
        return _array(x, bases).layout
    return _of_python(x, bases, counted, unit)


def tensor_layout(x: Any, *, names: Sequence[Any] | None = None) -> TensorLayout:
    """The layout of a tensor, with its element type, memory space and alignment.

    x       a tensor of the CuTe DSL (of a trace, from_dlpack's, a fake one), a torch tensor or a NumPy array
    names   as for from_cute

    A swizzle of a tensor's pointer is in the layout, in elements. Raises UnsupportedObject for anything else, and
    LayoutError where a swizzled tensor begins within a period of its swizzle: no layout says where its elements lie.

    >>> import numpy as np
    >>> facts = tensor_layout(np.zeros((4, 8), np.float32))
    >>> print(facts.layout, facts.element, facts.space)
    (4,8):(8,1) f32 None
    """
    bases = _bases(x)
    if _is_array(bases):
        return _array(x, bases)
    if not bases & {"cutlass.cute.typing.Tensor", "cutlass.cute.typing.TypedTensor"}:
        raise UnsupportedObject(
            f"tensor_layout takes tensors of the CuTe DSL and torch and NumPy arrays, not {_what(x)}"
        )
    symbols = Symbols(names)
    if "cutlass.cute.tensor._Tensor" in bases:
        out = dsl_layouts.memref(str(x.value.type), _element(x), symbols)
    else:
        out = TensorLayout(
            dsl_layouts.tensor_of_integers(x.shape, x.stride, symbols),
            _element(x),
            str(x.memspace.name).lower(),
            getattr(x, "_assumed_align", None),
        )
    symbols.check_used(out.layout)
    return out


def _element(x: Any) -> DType | None:
    name = getattr(x.element_type, "__name__", "")
    return dtype(dsl_layouts.ELEMENTS[name]) if name in dsl_layouts.ELEMENTS else None


def _of_dsl(x: Any, bases: set[str], names: Any, element: Any, unit: Any, spaces: tuple[str, str]) -> Any:
    if "cutlass.cute.core.Swizzle" in bases:
        return Swizzle(x.num_bits, x.num_base, x.num_shift, unit)
    if bases & {"cutlass.cute.typing.Tensor", "cutlass.cute.typing.TypedTensor"}:
        return tensor_layout(x, names=names).layout
    if "cutlass.cute.core.ScaledBasis" in bases:
        return ScaledBasis(x.value, tuple(x.mode))
    if bases & {"cutlass.cute.typing.Layout", "cutlass.cute.core._ComposedLayout"}:
        symbols = Symbols(names)
        out = dsl_layouts.layout_of(dsl_layouts.quoted(x.type), symbols, element, unit)
        symbols.check_used(out)
        return out
    if "cutlass.cute.typing.ComposedLayout" in bases:
        raise LayoutError(f"{x} begins with {shown(x.inner)}, a Python function: no layout says what that does")
    for name, read in _ATOMS.items():
        if f"cutlass.cute.atom.{name}" in bases:
            return read(x, spaces)
    raise UnsupportedObject(f"from_cute takes {_TAKEN}, not {_what(x)}")


def _of_python(x: Any, bases: set[str], element: Any, unit: Any) -> Any:
    """Plain Python classes of pycute and its kin, by their names and attributes."""
    names = {name.rpartition(".")[2] for name in bases}
    if "Swizzle" in names and all(hasattr(x, part) for part in ("bits", "base", "shift")):
        return Swizzle(x.bits, x.base, x.shift, unit)
    if "ComposedLayout" in names:
        # pycute: layoutB(offset + layoutA(c)); tensor_layouts: outer(offset + inner(c)).
        for first, last in (("layoutB", "layoutA"), ("outer", "inner")):
            if hasattr(x, first) and hasattr(x, last):
                return _composed(x, from_cute(getattr(x, first)), from_cute(getattr(x, last)), element, unit)
    if "Layout" in names and hasattr(x, "shape") and hasattr(x, "stride"):
        return Layout(x.shape, x.stride)
    raise UnsupportedObject(f"from_cute takes {_TAKEN}, not {_what(x)}")


def _composed(x: Any, first: Any, last: Any, element: Any, unit: Any) -> Any:
    if isinstance(first, Swizzle) and isinstance(last, Layout):
        return dsl_layouts.swizzled(first, x.offset, last, element, unit)
    if isinstance(first, Swizzle) and isinstance(last, ComposedLayout) and element is unit is None:
        return ComposedLayout(first, x.offset, last)
    if isinstance(first, Layout) and x.offset == 0 and isinstance(last, (Layout, ComposedLayout)):
        return first.compose(last)
    raise LayoutError(
        f"{shown(x)}: what is composed with {last} at the offset {x.offset} is {first}, and no layout says it"
    )


def _is_array(bases: set[str]) -> bool:
    return "numpy.ndarray" in bases or any(n.startswith("torch.") and n.endswith(".Tensor") for n in bases)


def _array(x: Any, bases: set[str]) -> TensorLayout:
    if "numpy.ndarray" in bases:
        size, kind = x.dtype.itemsize, x.dtype
        for stride in x.strides:
            if size == 0 or stride % size:
                raise LayoutError(f"strides of {x.strides} bytes are no whole elements of {size} bytes ({x.dtype})")
        shape, stride = x.shape, tuple([d // size for d in x.strides])
    else:
        shape, stride, kind = tuple(x.shape), tuple(x.stride()), x.dtype
    try:
        element = dtype(kind)
    except OperandError:  # complex numbers, booleans: no format here, and a layout all the same
        element = None
    return TensorLayout(Layout(shape, stride), element)


def _bases(x: object) -> set[str]:
    """The dotted names of the classes of an object."""
    return {f"{kind.__module__}.{kind.__qualname__}" for kind in type(x).__mro__}


def _what(x: object) -> str:
    kind = type(x)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
