"""Formulas as functions of named variables. Made of texts, SymPy expressions, tuples of those, or functions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from ...arguments import refusal
from ...errors import LayoutError, ParseError
from .. import registries
from ..int_tuple import as_nested
from ..symbols.dims import ARITHMETIC, declared, expression, is_sympy, operate
from ..symbols.generators import GENERATORS
from .digits import Formula, maximum, minimum

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    **ARITHMETIC,
    ast.BitXor: lambda a, b: a ^ b,
    ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b,
    ast.LShift: lambda a, b: a << b,
    ast.RShift: lambda a, b: a >> b,
}
CALLS: dict[str, Formula] = {"min": minimum, "max": maximum}


def as_formula(formula: object) -> Formula:
    """The formula as a function of named variables. Raises LayoutError for what is no formula, or no text of one.

    >>> as_formula("64*m + (k ^ 8)")(m=1, k=9)
    65
    """
    if isinstance(formula, str):
        text, tree = formula, expression(formula, "no formula")
        return lambda **v: evaluate(tree, v, text)
    if isinstance(formula, (tuple, list)):
        parts = as_nested(formula, "a formula", lambda x, _: x)
        functions = [as_formula(x) if isinstance(x, str) or callable(x) else registries.evaluator(x) for x in parts]
        return lambda **v: tuple(f(**v) for f in functions)
    if is_sympy(formula):
        return registries.evaluator(formula)  # type: ignore[no-any-return]
    if not callable(formula):
        raise LayoutError(refusal(formula, "a formula", "a function, a SymPy expression or a text"))
    return formula


def is_size(name: str) -> bool:
    """True for the name of a declared symbol."""
    return any(g.symbol == name for g in GENERATORS)


def evaluate(node: ast.expr, variables: Mapping[str, object], text: str) -> Any:
    """The value of a formula's tree. Raises ParseError where a name or an operation of the text has no meaning."""
    if isinstance(node, ast.Constant) and node.value.__class__ is int:
        return node.value
    if isinstance(node, ast.Name):
        if node.id in variables:
            return variables[node.id]
        if is_size(node.id):
            return declared(node.id)
        raise ParseError(f"{node.id} is neither a variable ({', '.join(variables)}) nor a size", text, node.col_offset)
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        left, right = evaluate(node.left, variables, text), evaluate(node.right, variables, text)
        return operate(BINARY[type(node.op)], node, left, right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert, ast.UAdd)):
        value = evaluate(node.operand, variables, text)
        return -value if isinstance(node.op, ast.USub) else ~value if isinstance(node.op, ast.Invert) else value
    if isinstance(node, ast.Tuple):
        return tuple([evaluate(x, variables, text) for x in node.elts])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS and not node.keywords:
        return CALLS[node.func.id](*[evaluate(x, variables, text) for x in node.args])
    raise ParseError(f"`{ast.unparse(node)}` is no formula in + - * // % & | ^ ~ << >> min max", text, node.col_offset)
