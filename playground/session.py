"""The Python side of the playground: runs cells, and describes each result as text and as a grid of offsets.

A shared link brings cells from others. The browser is the wall: cells run in a worker without a document, which can
fetch from the page's own host only. As a fence in front of it, a cell may only call public names of the package, their
methods and a few builtins. Names that begin with an underscore, imports of other modules and classes are refused.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import io
import itertools
import json
from collections.abc import Callable, Iterator
from typing import cast

import layoutgemm.atoms as atoms
import layoutgemm.checks as checks
import layoutgemm.errors as errors
import layoutgemm.layouts as layouts
import layoutgemm.layouts.display as display
import layoutgemm.view as view
from layoutgemm import Facts, dim, dims, parse, prove
from layoutgemm.atoms.smem.descriptor import derive, element_addresses
from layoutgemm.layouts.formulas import from_expr
from layoutgemm.layouts.proofs.index_formulas import prove_formulas
from layoutgemm.lazy_numpy import has_numpy
from layoutgemm.view.canvas import Picture
from layoutgemm.view.panel import for_painting

MOST_CELLS = 4096  # of a grid
MOST_PICTURES = 64  # kept from edit to edit
MOST_NUMBERS = 1024  # of values with a picture
# Cells of each kind, N the turn's number: small ones, as an edit waits for the one that runs.
WARM = (
    "Layout((16, N), (N, 1)).svg()",
    "mma_sync('m16n8k16', 'f16').svg()",
    "wgmma(8 * N)",
    "Layout((8, 8 * N), (8 * N, 1)) @ Layout(64 * N)\nprove(Layout((N, 8)), Layout((N, 8), (8, 1)))",
    "fragment_svg(wgmma(64 + 8 * N), 'C')",
    "Layout((48, 8 * N)).zipped_divide((8, 8)).svg(divided='zipped')",
    "smem_tile((8 * N, 64), 'bf16', 'K', '128B')",
    "make_tiled_copy(universal_copy(128, 'bf16'), Layout((16, N), (N, 1)), Layout((1, 8)))",
    "tcgen05_mma('f16', 128, 16 * N, 'bf16')",
)
INSIDE = ("gi_", "cr_", "ag_", "f_", "tb_", "co_", "func_", "mro")  # frames, code and classes of the interpreter
HELD = ("with_traceback", "obj", "exec_module")  # of exceptions and loaders: what leads to modules
MOST_TEXT = 4000  # characters of one result
FEW = (
    "abs", "all", "any", "bool", "dict", "enumerate", "int", "isinstance", "len", "list", "max", "min", "print",
    "range", "repr", "reversed", "set", "sorted", "str", "sum", "tuple", "zip",
)  # fmt: skip
FILES = ("png", "save")  # of the pictures: names that only write files
ALLOWED = (
    ast.Module, ast.Expr, ast.Assign, ast.Assert, ast.Call, ast.keyword, ast.Attribute, ast.Name, ast.Constant,
    ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Starred, ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp, ast.BoolOp,
    ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.ListComp, ast.GeneratorExp, ast.comprehension,
    ast.ImportFrom, ast.alias, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
    ast.FunctionDef, ast.Lambda, ast.arguments, ast.arg, ast.Return, ast.If, ast.For, ast.Try, ast.ExceptHandler,
    ast.AugAssign, ast.DictComp, ast.SetComp, ast.Pass,
)  # fmt: skip
MORE = {
    "Facts": Facts, "derive": derive, "dim": dim, "dims": dims, "element_addresses": element_addresses,
    "from_expr": from_expr, "parse": parse, "prove": prove, "prove_formulas": prove_formulas,
}  # fmt: skip
# Names that are loaded where a cell imports them: plans need NumPy.
LATER = {
    "Sm90Config": "layoutgemm", "Sm90Plan": "layoutgemm", "plan": "layoutgemm", "replace": "dataclasses",
    **dict.fromkeys(("Aux", "Bias", "Custom", "Epilogue"), "layoutgemm.kernels.epilogue.chain"),
}  # fmt: skip
# The first name of an absent module -> what the page loads for it
PACKAGES = {"layoutgemm": "layoutgemm", "numpy": "numpy", "sympy": "sympy", "mpmath": "sympy"}


def names() -> dict[str, object]:
    """The names that a cell can use.

    >>> "Layout" in names() and "open" not in names()["__builtins__"]
    True
    """
    public = {name: getattr(home, name) for home in (atoms, checks, layouts) for name in home.__all__}
    kinds = {name: kind for name, kind in vars(errors).items() if name.endswith("Error")}
    few = {name: __builtins__[name] if isinstance(__builtins__, dict) else getattr(__builtins__, name) for name in FEW}
    return {**public, **kinds, **pictures(), **MORE, "__builtins__": few}


@functools.cache
def pictures() -> dict[str, object]:
    """The functions that draw: each loads its file, and NumPy, when it is called."""

    def later(name: str) -> object:
        return kept(lambda *args, **options: getattr(view, name)(*args, **options))

    return {name: later(name) for name in view.__all__ if name not in FILES}


def check(tree: ast.Module) -> None:
    """Raises SyntaxError for a statement that the playground does not run.

    >>> check(ast.parse("().__class__"))
    Traceback (most recent call last):
        ...
    SyntaxError: names that begin with an underscore are not for cells: __class__
    """
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise SyntaxError(f"the playground runs no {type(node).__name__}")
        for name in (getattr(node, field, None) for field in ("attr", "id", "arg", "name")):
            if isinstance(name, str) and name.startswith("_"):
                raise SyntaxError(f"names that begin with an underscore are not for cells: {name}")
            if isinstance(name, str) and (name.startswith(INSIDE) or name in HELD):
                raise SyntaxError(f"the insides of Python are not for cells: {name}")
            if name in ("format", "format_map"):
                raise SyntaxError("write an f-string instead of format")
        if isinstance(node, ast.ImportFrom):
            wanted = [alias.name for alias in node.names]
            missing = ", ".join(name for name in wanted if name != "*" and name not in names() and name not in LATER)
            known = (node.module or "").partition(".")[0] == "layoutgemm" or node.module in LATER.values()
            if not known or missing:
                what = f"{node.module}" + (f"'s {missing}" if missing else "")
                raise SyntaxError(f"the playground has layoutgemm's layouts, atoms, checks and pictures, not {what}")


def grid(value: object) -> dict[str, object] | None:
    """The offsets of a layout as planes of rows, or None for other values.

    >>> grid(layouts.Layout((2, 3), (3, 1)))["planes"]
    [[[0, 1, 2], [3, 4, 5]]]
    """
    if not isinstance(value, (layouts.Layout, layouts.ComposedLayout)):
        return None
    shape = value.shape if isinstance(value.shape, tuple) else (value.shape,)
    extents = [layouts.size(mode) if isinstance(mode, tuple) else mode for mode in shape]
    if not extents or not all(isinstance(n, int) for n in extents) or not 1 <= value.size <= MOST_CELLS:
        return None
    height, width, *rest = extents if len(extents) > 1 else (1, *extents)
    cells = iter(cells_of(value))
    columns = [list(itertools.islice(cells, height)) for _ in range(value.size // height)]
    planes = [
        [list(row) for row in zip(*columns[first : first + width], strict=True)]
        for first in range(0, len(columns), width)
    ]
    return {"planes": planes, "rest": rest}


def cells_of(value: layouts.Layout | layouts.ComposedLayout) -> list[int | str]:
    """The offsets of a layout in order; coordinates as text.

    >>> cells_of(layouts.Layout((2, 3), (3, 1)))
    [0, 3, 1, 4, 2, 5]
    """
    if isinstance(value, layouts.ComposedLayout):
        inside = cells_of(value.layout)
        if all(isinstance(x, int) for x in inside) and isinstance(value.offset, int):
            return value.swizzle.each([value.offset + x for x in inside])
        return [str(value(i)) for i in range(value.size)]
    flat = layouts.Layout((value.shape,), (value.stride,)).flatten()
    if not all(isinstance(d, int) for d in flat.stride):
        return [str(value(i)) for i in range(value.size)]
    sums = [0]
    for n, d in zip(flat.shape, flat.stride, strict=True):
        sums = [x + k * d for k in range(n) for x in sums]
    return sums


@functools.lru_cache(MOST_PICTURES)
def picture(value: object) -> str:
    """The grid of a value as JSON, "null" for none: kept, so that an edit draws only new values."""
    return json.dumps(grid(value))


_remembered = [picture]  # the functions that keep their last answers


def kept(draw: Callable[..., object]) -> Callable[..., object]:
    """The function with its last answers kept, where its arguments have a hash: an edit draws only new pictures."""
    remembered = functools.lru_cache(MOST_PICTURES, typed=True)(draw)
    _remembered.append(remembered)

    def answer(*args: object, **options: object) -> object:
        try:
            hash((args, tuple(options.items())))
        except TypeError:
            return draw(*args, **options)
        return remembered(*args, **options)

    return answer


_drawn = kept(display.picture)
_drawn.register = display.picture.register  # a file of pictures may load while they are kept


@contextlib.contextmanager
def for_the_page() -> Iterator[None]:
    """Objects' pictures are kept, and have no texts under the pointer: the page shows them as images."""
    before = display.picture
    display.picture = _drawn
    try:
        with for_painting():
            yield
    finally:
        display.picture = before


def described(value: object) -> dict[str, object]:
    """A result: its text, whether a verdict holds, and the number of its picture, which follows."""
    if isinstance(value, Picture):
        return {"picture": number_of(value)}
    verdict = hasattr(value, "__bool__") and hasattr(value, "explain")
    text = str(value.explain() if verdict else value)
    out: dict[str, object] = {"text": text[:MOST_TEXT] + ("..." if len(text) > MOST_TEXT else "")}
    if verdict:
        out["holds"] = bool(value)
    if hasattr(value, "_repr_svg_") and not isinstance(value, layouts.Layout | layouts.ComposedLayout):
        out["picture"] = number_of(value)
    return out


_values: dict[int, object] = {}  # of the last cells, by the numbers of their pictures
_numbers: dict[tuple[type, object], int] = {}
_next = itertools.count()


def forget() -> None:
    """Drops the values and pictures of the last cells."""
    _values.clear()
    _numbers.clear()
    for each in _remembered:
        each.cache_clear()


def number_of(value: object) -> int | None:
    """The same number for equal values; None for one without a hash."""
    if len(_numbers) > MOST_NUMBERS:
        _numbers.clear()
    try:
        number = _numbers.setdefault((type(value), value), next(_next))
    except TypeError:
        return None
    _values[number] = value
    return number


def drawing(number: int) -> str:
    """The picture of that number as SVG, "" for none: some need NumPy, which is loaded for cells only.

    >>> drawing(number_of(atoms.mma_sync("m16n8k16", "f16")))[:4]
    '<svg'
    """
    try:
        with for_the_page():
            return str(_values[number]._repr_svg_() or "")
    except ModuleNotFoundError:
        return ""


def warm(step: int) -> str:
    """Runs a cell of WARM, with new numbers in each turn: its last picture as SVG, "" for none.

    >>> warm(2)[:4]
    '<svg'
    """
    turn, kind = divmod(step, len(WARM))
    with for_the_page():
        lines = run(WARM[kind], {**names(), "N": turn + 1})
    return "".join([drawing(cast("int", line["picture"])) for line in lines if "picture" in line][-1:])


def run(source: str, space: dict[str, object]) -> list[dict[str, object]]:
    """The results of a cell, one a statement: its lines, and what it gives. An error ends the cell.

    >>> run("A = Layout((4, 8), (8, 1))\\nA(1, 2)", names())[1]
    {'first': 2, 'last': 2, 'source': 'A(1, 2)', 'text': '10', 'grid': 'null'}
    """
    try:
        tree = ast.parse(source)
        check(tree)
    except SyntaxError as error:
        return [{"first": error.lineno or 1, "last": error.lineno or 1, "source": source, "error": error.msg}]
    out = []
    for node in tree.body:
        line = {"first": node.lineno, "last": node.end_lineno, "source": ast.get_source_segment(source, node)}
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                result = _execute(node, space)
                line |= {} if result is None else {**described(result), "grid": drawn_grid(result)}
        except BaseException as error:
            return [*out, {**line, **refused(error)}]
        if printed.getvalue():
            line["printed"] = printed.getvalue()[:MOST_TEXT]
        out.append(line)
    return out


def drawn_grid(value: object) -> str:
    """`picture`, for values with a hash."""
    return picture(value) if isinstance(value, layouts.Layout | layouts.ComposedLayout) else "null"


def refused(error: BaseException) -> dict[str, object]:
    """The answer for a line that raised: the package that it needs, or the error."""
    absent = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    name = PACKAGES.get(absent)
    if name is not None:
        return {"needs": name, "error": f"this needs {name}, which this copy of the page was built without"}
    return {"error": f"{type(error).__name__}: {error}"}


def _execute(node: ast.stmt, space: dict[str, object]) -> object:
    """Runs one statement: the value of an expression, or of a name that it assigns."""
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if alias.name in LATER:
                space[alias.name] = getattr(importlib.import_module(LATER[alias.name]), alias.name)
            if alias.asname is not None:
                space[alias.asname] = space[alias.name]
        return None
    if isinstance(node, ast.Expr):
        return eval(compile(ast.Expression(node.value), "cell", "eval"), space)
    exec(compile(ast.Module([node], []), "cell", "exec"), space)
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return space[target.id] if isinstance(target, ast.Name) else None


def answers(cells: str) -> str:
    """JSON of the sources of all cells -> JSON of their results. Cells share names, in order.

    {"cells": for each cell the JSON text of each line, "needs": packages that a line asked for}
    """
    has_numpy.cache_clear()  # it may have been loaded since
    _values.clear()
    space = names()
    with for_the_page():
        found = [run(source, space) for source in json.loads(cells)]
    needs = sorted({str(line["needs"]) for lines in found for line in lines if "needs" in line})
    return json.dumps({"cells": [[text_of(line) for line in lines] for lines in found], "needs": needs})


def text_of(line: dict[str, object]) -> str:
    """A line as JSON; its grid is JSON already."""
    drawn = line.pop("grid", "null")
    return json.dumps(line)[:-1] + f', "grid": {drawn}}}'
