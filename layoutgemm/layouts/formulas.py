"""Closed forms: a layout as a formula that people read. The layout of a formula is here too, where there is one.

    expr(layout, "t", "r")   ->  128*(t%4) + (t//4)%8 + 16*(t//32) + 64*(r%2) + 8*((r//2)%2) + 512*(r//4)
    from_expr(that, t=128, r=32)  ->  ((4,8,4),(2,2,8)):((128,1,16),(64,8,512))

A formula is rewritten over digits (`digits.py`): then the digits of each variable are the modes, their coefficients the
strides, and a XOR says which bits a swizzle moves. Where that does not go through and the sizes are static, all values
are computed, the modes are read off them, and a refusal names the first coordinate that no layout fits.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

from ..arguments import refusal, shown
from ..errors import LayoutError
from ..lazy_numpy import np
from . import registries
from .basis import ScaledBasis
from .int_tuple import Pair, Shape, as_nested, as_shape, coal, leaves, pack, product, show, show_coord
from .layout import Layout
from .linear import LinearLayout
from .proofs.digit_boxes import CannotRewrite, DigitBox
from .proofs.digits import Formula, NormalForm, rewrite
from .proofs.gf2 import swizzle_candidates
from .proofs.index_formulas import LIMIT, coordinate, tabulate
from .proofs.verdicts import layout_of
from .proofs.written_formulas import CALLS, as_formula, is_size
from .swizzle import ComposedLayout, Swizzle
from .symbols.dims import entry, expression, is_sympy
from .symbols.polynomial import MissingFact, Polynomial, Scalar, div, needs_div
from .symbols.polynomial import show as show_entry

NAMES = ("i", "j", "k", "l")


@registries.expression_of.register(object)
def expr(layout: object, *names: str) -> Any:
    """The value of a Layout, ComposedLayout or Swizzle as a SymPy expression of its coordinates.

    One name for each top-level mode (i, j, k, l, x4, ... unless given), or one name in all for the flat index. The
    result prints with // % ^, and evaluates in Python and NumPy (`sympy.lambdify`). Coordinates as values give a tuple.
    Raises LayoutError for a wrong number of names, and for one name twice.

    >>> expr(Layout(((4, 8, 4), (2, 2, 8)), ((128, 1, 16), (64, 8, 512))), "t", "r")
    512*(r//4) + 16*(t//32) + 64*(r%2) + 128*(t%4) + 8*((r//2)%2) + (t//4)%8
    >>> expr(Swizzle(3, 3, 3) @ Layout((64, 64), (64, 1)), "m", "k")
    64*m + (k ^ 8*(m%8))
    """
    layout = layout_of(layout)
    if not isinstance(layout, (Layout, ComposedLayout, Swizzle)):
        raise LayoutError(refusal(layout, "what expr() says", "a Layout, a ComposedLayout or a Swizzle"))
    inside = layout.layout if isinstance(layout, ComposedLayout) else layout
    sizes = getattr(inside, "symbols", ())  # which no coordinate may be called as well
    if not names:
        n = 1 if isinstance(layout, Swizzle) else layout.rank
        free = itertools.chain(NAMES, (f"x{i}" for i in itertools.count(len(NAMES))))
        names = tuple(itertools.islice((name for name in free if name not in sizes), n))
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or name in sizes:
            wanted = "an identifier that no size is called"
            raise LayoutError(refusal(name, f"the name of a coordinate of {layout}", wanted))
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise LayoutError(f"two coordinates of {layout} have the name {shown(twice)}: each needs one of its own")
    return registries.closed_form(layout, names)


@registries.layout_of_formula.register(object)
def from_expr(formula: Any, shape: Any = None, /, **extents: Any) -> Any:
    """The layout whose value is the formula, its modes the variables in order. A ComposedLayout for an offset or a XOR.

    `formula` is a Python function of the variables, a SymPy expression, or a text in Python's syntax, with + - * // %
    & | ^ ~ << >> min max. Each variable runs over 0..extent-1: extents by keyword, or as a shape in the order of a
    function's parameters; ints or symbols, or tuples where the mode is to have that shape. A formula that returns a
    tuple gives a layout onto coordinates.

    For static sizes up to 2^20 integers it answers exactly when there is a layout, with an offset and under a swizzle
    of the values' bits included. Raises LayoutError otherwise: `witness` is the first coordinate that no layout, with
    an offset, fits. At larger and symbolic sizes, and for tuples, the formula must be one that digits can rewrite; what
    cannot be rewritten raises MissingFact with the facts that would help.

    >>> def get_coord_m64n64(tid, reg):
    ...     t0, t1, t2 = tid % 4, (tid // 4) % 8, tid // 32
    ...     r0, r1, r2 = reg % 2, (reg // 2) % 2, reg // 4
    ...     return t0 * 128 + t1 + t2 * 16 + r0 * 64 + r1 * 8 + r2 * 512
    >>> print(from_expr(get_coord_m64n64, (128, 32)))
    ((4,8,4),(2,2,8)):((128,1,16),(64,8,512))
    >>> print(from_expr("64*m + (k ^ (m % 8) * 8)", m=128, k=64))
    S<3,3,3> o 0 o (128,64):(64,1)
    >>> from_expr("m * 16 + (k + m) % 16", m=4, k=16)
    Traceback (most recent call last):
    layoutgemm.errors.LayoutError: no layout, nor one under a swizzle: (3,13) gives 48, but (3,0) and (0,13) make it 64
    """
    function, profiles = _function(formula, shape, extents)
    sizes = {name: entry(product(p), f"the extent of {name}") for name, p in profiles.items()}
    try:
        result = _by_digits(function, sizes)
    except MissingFact as stuck:
        if any(n.__class__ is Polynomial for n in sizes.values()) or prod(sizes.values()) > LIMIT:
            raise
        result = _by_values(function, sizes, stuck)
    return _shaped(result, list(profiles.values()))


def _shaped(result: Any, profiles: list[Any]) -> Any:
    """The layout with its modes given the shapes that were asked for."""
    if all(p.__class__ is not tuple for p in profiles):
        return result
    if isinstance(result, ComposedLayout):
        return ComposedLayout(result.swizzle, result.offset, _shaped(result.layout, profiles))
    modes = list(result) if len(profiles) > 1 else [result]
    out = [m.with_shape(p) if p.__class__ is tuple else m for m, p in zip(modes, profiles, strict=True)]
    return out[0] if len(out) == 1 else Layout.join(*out)


# ---------------------------------------------------------------- what a formula may be


def _function(formula: object, shape: Shape, extents: dict[str, object]) -> tuple[Formula, dict[str, object]]:
    """The formula as a function of named variables, and the shape of each variable."""
    if shape is not None and extents:
        raise LayoutError("extents are given by a shape or by keyword, not both")
    function = as_formula(formula)
    if shape is None:
        return function, _checked(extents, formula)
    if isinstance(formula, str):
        names = _variables(expression(formula, "no formula"), shape)
    elif is_sympy(formula) or isinstance(formula, (tuple, list)):
        parts = leaves(as_nested(formula, "a formula", lambda x, _: x))
        names = sorted({s.name for x in parts for s in getattr(x, "free_symbols", ())})
    else:
        try:
            names = list(inspect.signature(function).parameters)
        except (TypeError, ValueError):  # a builtin, as int
            raise LayoutError(f"{shown(formula)} does not say its variables: give their extents by keyword") from None
    return function, _checked(_named(shape, names, formula), formula)


def _named(shape: Shape, names: list[str], formula: object) -> dict[str, object]:
    modes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if len(names) != len(modes):
        raise LayoutError(
            f"{shown(formula)} has the variables {', '.join(names)}, and shape {show_coord(shape)} {len(modes)} modes"
        )
    if len(names) > 1 and not callable(formula):
        raise LayoutError(f"say which extent belongs to which of {', '.join(names)}: give them by keyword")
    return dict(zip(names, modes, strict=True))


def _checked(extents: dict[str, object], formula: object) -> dict[str, Any]:
    if not extents:
        raise LayoutError(f"no extents for {shown(formula)}: from_expr(formula, x=128, y=64)")
    return {name: as_shape(each) for name, each in extents.items()}


def _free_names(tree: ast.expr) -> list[str]:
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called}
    return sorted(n for n in names if not is_size(n))


def _variables(tree: ast.expr, shape: Shape) -> list[str]:
    """The variables that a shape gives the extents of: the names that are no sizes, or all where those are too few.

    A name that another part of a program declared as a size is a variable here, if the shape has a mode for it.
    """
    names = _free_names(tree)
    modes = len(shape) if isinstance(shape, (tuple, list)) else 1
    every = sorted({n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - CALLS.keys())
    return every if len(names) < modes == len(every) else names


# ---------------------------------------------------------------- reading the normal form


def _by_digits(function: Formula, sizes: dict[str, Any]) -> Any:
    """The layout of a formula that can be rewritten. Raises CannotRewrite where digits do not tell."""
    box, (form,) = rewrite(sizes, function)
    if form.__class__ is tuple:
        return _onto_coordinates(box, form)
    if all(len(s) == 1 for s in form.terms):
        layout = _modes(box, lambda digit: form.terms.get(frozenset([digit]), 0))
        return layout if form.constant.__class__ is int and form.constant == 0 else _offset(form.constant, layout)
    for swizzle in _swizzles(form):
        found = _unswizzled(function, sizes, swizzle)
        if found is not None:
            return found
    raise CannotRewrite(f"no swizzle found that takes apart {form}", box.missing())


def _unswizzled(function: Formula, sizes: dict[str, Any], swizzle: Swizzle) -> ComposedLayout | None:
    """The formula as this swizzle of a layout, or None: a swizzle is its own inverse."""
    try:
        box, (form,) = rewrite(sizes, lambda **v: swizzle(function(**v)))
        if any(len(s) > 1 for s in form.terms):
            return None
        return ComposedLayout(swizzle, _static(form.constant), _modes(box, lambda d: form.terms.get(frozenset([d]), 0)))
    except MissingFact:
        return None


def _offset(constant: object, layout: Layout) -> ComposedLayout:
    return ComposedLayout(Swizzle(0, 4, 3), _static(constant), layout)


def _static(constant: Any) -> int:
    if constant.__class__ is Polynomial:
        raise CannotRewrite(f"the offset {show_entry(constant)} of a composed layout would have to be an integer")
    return int(constant)


def _swizzles(form: NormalForm) -> Iterator[Swizzle]:
    """The swizzles that the XORs may come from: rows of the matrix, one for each bit of the value."""
    columns: dict[Any, int] = {}
    rows: dict[int, int] = {}
    for s, c in form.terms.items():
        if isinstance(c, Polynomial) or abs(c) & (abs(c) - 1):
            continue
        mask = sum(columns.setdefault(digit, 1 << len(columns)) for digit in sorted(s))
        position = abs(c).bit_length() - 1
        rows[position] = rows.get(position, 0) | mask
    width = max(rows, default=-1) + 1
    for bits, base, shift in swizzle_candidates([rows.get(i, 0) for i in range(width)]):
        yield Swizzle(bits, base, shift)


def _modes(box: DigitBox, stride_of: Callable[[tuple[str, int]], object]) -> Layout:
    """The layout with these strides for the digits, coalesced within each variable."""
    shapes, strides = [], []
    for name, n in box.extents.items():
        S, D = coal(*_modes_of(name, n, box, stride_of))
        s, d = pack(S, D)
        shapes.append(s)
        strides.append(d)
    if len(shapes) == 1:
        return Layout(shapes[0], strides[0])
    return Layout(tuple(shapes), tuple(strides))


def _modes_of(name: str, n: Scalar, box: DigitBox, stride_of: Callable[[tuple[str, int]], Any]) -> Pair:
    """Extents and strides of one variable: a mode ends where the value stops to grow with the variable as before."""
    starts: list[tuple[Scalar, Scalar]] = []  # weight, stride
    for i, (e, w) in enumerate(zip(box.digits[name], box.weights[name], strict=True)):
        if e == 1:
            continue
        d = stride_of((name, i))
        ratio = div(w, starts[-1][0]) if starts else None
        if ratio is None or starts[-1][1] * ratio != d:
            starts.append((w, d))
    shape = []
    for (w, _), end in zip(starts, [*[w for w, _ in starts[1:]], n], strict=False):
        extent = div(end, w)
        if extent is None:
            raise CannotRewrite(
                f"{name} has a mode of {show_entry(w)} elements in {show_entry(end)}", needs_div(w, end)
            )
        shape.append(extent)
    return tuple(shape), tuple([d for _, d in starts])


def _onto_coordinates(box: DigitBox, forms: object) -> Layout:
    paths = dict(_paths(forms, ()))
    for p, f in paths.items():
        if f.constant != 0 or any(len(s) > 1 for s in f.terms):
            raise CannotRewrite(f"component {p} of the coordinate, {f}, is no layout with offset 0")

    def stride(digit: tuple[str, int]) -> Any:
        found = {p: f.terms[frozenset([digit])] for p, f in paths.items() if frozenset([digit]) in f.terms}
        if len(found) > 1:
            raise CannotRewrite(
                f"a step of {digit[0]} by {show_entry(box.weight(digit))} moves {len(found)} components at once"
            )
        return next((ScaledBasis(c, p) for p, c in found.items()), 0)

    return _modes(box, stride)


def _paths(forms: Any, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], NormalForm]]:
    if forms.__class__ is tuple:
        for i, f in enumerate(forms):
            yield from _paths(f, (*path, i))
    else:
        yield path, forms


# ---------------------------------------------------------------- reading values


def _by_values(function: Formula, sizes: Mapping[str, Any], stuck: MissingFact) -> Any:
    """The layout of a static formula, read off all its values. Raises LayoutError with the first misfit."""
    tables = tabulate(function, sizes)
    if len(tables) != 1:
        raise stuck
    values, extents = tables[0], list(sizes.values())
    found = read_layout(values, extents)
    if isinstance(found, tuple):
        composed = _read_swizzled(values, extents)
        if composed is not None:
            return composed
        index, reason = found
        coord = tuple(coordinate(index, extents))
        raise LayoutError(f"no layout, nor one under a swizzle: {show_coord(coord)} {reason}", coord)
    return found if values[0] == 0 else _offset(int(values[0]), found)


def read_layout(values: Any, extents: list[int]) -> Layout | tuple[int, str]:
    """The layout with the values on a box, less the value at 0. Or the first index that no layout fits, and why.

    `values` is an array over the flat index. Exact: a layout of this box is a sum of functions of one variable each,
    and such a function is a layout iff it repeats itself. Its first mode ends at the first index s that breaks the even
    growth. So s must divide the extent, all runs of s values must grow alike, and the runs' starts form a layout again.

    >>> print(read_layout(np.array([0, 1, 8, 9, 16, 17]), [6]))
    (2,3):(1,8)
    >>> read_layout(np.array([0, 1, 8, 9, 17, 18]), [6])
    (4, 'gives 17, which starts a run of 2 that does not divide the 3 left')
    """
    base = values[0]
    shapes, strides, misfits = [], [], []
    total = np.zeros(1, dtype=values.dtype)
    weight = 1
    for n in extents:
        line = values[: weight * n : weight] - base
        S, D, misfit = _read_line(line, base)
        if misfit is not None:
            misfits.append((misfit[0] * weight, misfit[1]))
        s, d = pack(*coal(tuple(S), tuple(D)))
        shapes.append(s)
        strides.append(d)
        total = (line[:, None] + total).ravel()
        weight *= n
    wrong = np.flatnonzero(values - base != total)
    if len(wrong):
        i = int(wrong[0])
        c = tuple(coordinate(i, extents))
        units = [tuple(x if j == k else 0 for j, x in enumerate(c)) for k in range(len(c)) if c[k]]
        made = " and ".join(map(show, units))
        misfits.append((i, f"gives {values[i]}, but {made} make it {total[i] + base}"))
    if misfits:
        return min(misfits)
    if len(shapes) == 1:
        return Layout(shapes[0], strides[0])
    return Layout(tuple(shapes), tuple(strides))


def _read_line(v: Any, base: object) -> tuple[list[int], list[int], tuple[int, str] | None]:
    """Modes of one variable's values, v[0] = 0, as far as they can be read; and the first misfit with its reason."""
    S: list[int] = []
    D: list[int] = []
    misfit: tuple[int, str] | None = None
    step = 1  # how far apart in the variable the entries of v are
    while len(v) > 1:
        n, d = len(v), v[1]
        bent = np.flatnonzero(v != np.arange(n) * d)
        s = int(bent[0]) if len(bent) else n
        if n % s:
            found = s * step, f"gives {v[s] + base}, which starts a run of {s} that does not divide the {n} left"
            return S, D, min(misfit, found) if misfit else found
        runs = v.reshape(n // s, s)
        wrong = np.flatnonzero(runs != runs[:, :1] + runs[:1, :])
        if len(wrong):
            i = int(wrong[0])
            expected = v[i - i % s] + (i % s) * d + base
            found = i * step, f"gives {v[i] + base}, but the runs of {s} before it make it {expected}"
            misfit = min(misfit, found) if misfit else found
        S.append(s)
        D.append(int(d))
        v = runs[:, 0]
        step *= s
    return S, D, misfit


def _read_swizzled(values: Any, extents: list[int]) -> ComposedLayout | None:
    """Swizzle, offset and layout with these values, or None."""
    top = max(values)
    if min(values) < 0:
        return None
    if all(n & (n - 1) == 0 for n in extents):
        powers = [1 << i for i in range(len(values).bit_length() - 1)]
        base = int(values[0])
        matrix = LinearLayout(
            tuple(int(values[i]) ^ base for i in powers), tuple(n.bit_length() - 1 for n in extents), offset=base
        )
        if (matrix.offsets() == values).all():
            try:
                return matrix.to_composed()
            except LayoutError:
                return None
    # Swizzles that read bits which the values have. A few indices where the values do not add up rule most of them out.
    width = int(top).bit_length()
    small = values.astype(np.int64) if 2 * width < 63 else values
    probes = _probes(small, extents)
    for bits in range(1, width):
        for shift in [s for k in range(bits, width) for s in (k, -k)]:
            for base in range(width - max(shift, 0)):
                swizzle = Swizzle(bits, base, shift)
                if probes is not None:
                    at, *parts = (swizzle(p) for p in probes)
                    if (at != sum(parts) - (len(parts) - 1) * swizzle(int(small[0]))).any():
                        continue
                plain = swizzle(small)
                found = read_layout(plain, extents)
                if not isinstance(found, tuple):
                    return ComposedLayout(swizzle, int(plain[0]), found)
    return None


def _probes(values: Any, extents: list[int]) -> list[Any] | None:
    """The values at some indices, and at each coordinate of them alone; None for a single variable."""
    if len(extents) == 1:
        return None
    indices = np.unique(np.linspace(0, len(values) - 1, 64).astype(np.int64))
    out = [values[indices]]
    weight = 1
    for n in extents:
        out.append(values[indices // weight % n * weight])
        weight *= n
    return out
