"""The Python side of the playground: runs cells, and describes each result as text and as a grid of offsets.

A shared link brings cells from others. So a cell may only call what is public here: layouts, their methods and a few
builtins. Names that begin with an underscore, imports of other modules, classes, loops and functions are refused.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json

import layoutgemm.layouts as layouts
from layoutgemm import dim, dims, parse, prove

MOST_CELLS = 4096  # of a grid
INSIDE = ("gi_", "cr_", "ag_", "f_", "tb_", "co_", "func_", "mro")  # frames, code and classes of the interpreter
MOST_TEXT = 4000  # characters of one result
FEW = (
    "abs", "bool", "dict", "enumerate", "int", "len", "list", "max", "min", "print", "range", "repr", "reversed", "set",
    "sorted", "str", "sum", "tuple", "zip",
)  # fmt: skip
ALLOWED = (
    ast.Module, ast.Expr, ast.Assign, ast.Assert, ast.Call, ast.keyword, ast.Attribute, ast.Name, ast.Constant,
    ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Starred, ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp, ast.BoolOp,
    ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.ListComp, ast.GeneratorExp, ast.comprehension,
    ast.ImportFrom, ast.alias, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip


def names() -> dict[str, object]:
    """The names that a cell can use.

    >>> "Layout" in names() and "open" not in names()["__builtins__"]
    True
    """
    public = {name: getattr(layouts, name) for name in layouts.__all__}
    builtins = {
        name: __builtins__[name] if isinstance(__builtins__, dict) else getattr(__builtins__, name) for name in FEW
    }
    return {**public, "dim": dim, "dims": dims, "parse": parse, "prove": prove, "__builtins__": builtins}


def check(tree: ast.Module) -> None:
    """Raises SyntaxError for a statement that the playground does not run.

    >>> check(ast.parse("().__class__"))
    Traceback (most recent call last):
        ...
    SyntaxError: names that begin with an underscore are not for cells: __class__
    """
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise SyntaxError(f"the playground runs expressions, assignments and asserts, no {type(node).__name__}")
        for name in (getattr(node, field, None) for field in ("attr", "id", "arg")):
            if isinstance(name, str) and name.startswith("_"):
                raise SyntaxError(f"names that begin with an underscore are not for cells: {name}")
            if isinstance(name, str) and name.startswith(INSIDE):
                raise SyntaxError(f"the insides of Python are not for cells: {name}")
            if name in ("format", "format_map"):
                raise SyntaxError("write an f-string instead of format")
        if isinstance(node, ast.ImportFrom):
            wanted = [alias.name for alias in node.names]
            missing = [name for name in wanted if name != "*" and name not in names()]
            if not (node.module or "").startswith("layoutgemm") or missing:
                raise SyntaxError(f"the playground has the layouts of layoutgemm only, not {node.module} {missing}")


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
    planes = []
    for number in range(value.size // (height * width)):
        at, left = [], number
        for n in rest:
            at.append(left % n)
            left //= n
        rows = [[value(*((i, j, *at) if len(extents) > 1 else (j,))) for j in range(width)] for i in range(height)]
        planes.append([[cell if isinstance(cell, int) else str(cell) for cell in row] for row in rows])
    return {"planes": planes, "rest": rest}


def described(value: object) -> dict[str, object]:
    """A result: its text, whether a verdict holds, and its grid."""
    explain = getattr(value, "explain", None)
    text = str(explain() if callable(explain) else value)
    out: dict[str, object] = {"text": text[:MOST_TEXT] + ("..." if len(text) > MOST_TEXT else "")}
    if hasattr(value, "__bool__") and callable(explain):
        out["holds"] = bool(value)
    found = grid(value)
    return out if found is None else {**out, "grid": found}


def run(source: str, space: dict[str, object]) -> list[dict[str, object]]:
    """The results of a cell, one a statement: its lines, and what it gives. An error ends the cell.

    >>> run("A = Layout((4, 8), (8, 1))\\nA(1, 2)", names())[1]
    {'first': 2, 'last': 2, 'source': 'A(1, 2)', 'text': '10'}
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
        except BaseException as error:
            name = getattr(error, "name", "")
            absent = isinstance(error, ModuleNotFoundError) and name in ("numpy", "sympy")
            said = f"this needs {name}, which the page does not have" if absent else f"{type(error).__name__}: {error}"
            return [*out, {**line, "error": said}]
        if printed.getvalue():
            line["printed"] = printed.getvalue()[:MOST_TEXT]
        out.append(line if result is None else {**line, **described(result)})
    return out


def _execute(node: ast.stmt, space: dict[str, object]) -> object:
    """Runs one statement: the value of an expression, or of a name that it assigns."""
    if isinstance(node, ast.ImportFrom):
        return None
    if isinstance(node, ast.Expr):
        return eval(compile(ast.Expression(node.value), "cell", "eval"), space)
    exec(compile(ast.Module([node], []), "cell", "exec"), space)
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return space[target.id] if isinstance(target, ast.Name) else None


def answers(cells: str) -> str:
    """JSON of the sources of all cells -> JSON of their results. Cells share names, in order."""
    space = names()
    return json.dumps([run(source, space) for source in json.loads(cells)])
