"""Functions given to compiled calls: what they read is guarded, so that a value that changes is compiled anew."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.exc import RecompileError

from layoutgemm import grouped_matmul, matmul
from layoutgemm.graph_marks import constant_in_graphs
from layoutgemm.kernels.epilogue.chain import Epilogue, Scale
from layoutgemm.schedule import Formula
from layoutgemm.torch_op.compiled.function_tape import followed, untaped
from layoutgemm.torch_op.composed.parts import parts_of_text

A, W = torch.eye(8).bfloat16(), torch.ones(8, 8).bfloat16()
OF_GROUPS, ENDS = torch.ones(2, 8, 8).bfloat16(), torch.tensor([3, 8])
STEPS = Epilogue(Scale("u"))
FACTOR: Any = 1.0  # each value below is read by one of the functions
FACTORS: Any = {"of": [1.0]}
HELD: Any = types.SimpleNamespace()


class Factor:
    """Functions that read an attribute."""

    of_class = 1.0

    def __init__(self) -> None:
        self.factor = 1.0

    def method(self, p: Any, q: Any, ops: Any) -> Any:
        return p * self.factor + q

    def __call__(self, p: Any, q: Any, ops: Any) -> Any:
        return self.method(p, q, ops)


def times(factor: Any, p: Any, q: Any, ops: Any) -> Any:
    return p * factor + q


def around(factor: Any) -> Callable[..., Any]:
    return lambda p, q, ops: p * factor + q


def of_global(p: Any, q: Any, ops: Any) -> Any:
    return times(FACTOR, p, q, ops)


def with_default(p: Any, q: Any, ops: Any, factor: Any = 1.0) -> Any:
    return p * factor + q


def set_global(x: Any) -> None:
    globals()["FACTOR"] = x


def set_cell(x: Any) -> None:
    HELD.kept.__closure__[0].cell_contents = x


HELD.object, HELD.kept, HELD.new, HELD.partial = Factor(), around(1.0), around(1.0), functools.partial(times, 1.0)
# name -> (the function of a call, what changes the value that it reads)
READS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "a global of a function that it calls": (lambda: of_global, set_global),
    "an item": (lambda: lambda p, q, ops: p * FACTORS["of"][0] + q, lambda x: FACTORS["of"].__setitem__(0, x)),
    "an attribute of a class": (lambda: lambda p, q, ops: p * Factor.of_class + q,
                                lambda x: setattr(Factor, "of_class", x)),
    "its closure": (lambda: HELD.kept, set_cell),
    "the closure of another one": (lambda: HELD.new, lambda x: setattr(HELD, "new", around(x))),
    "a default": (lambda: with_default, lambda x: setattr(with_default, "__defaults__", (x,))),
    "an attribute of self": (lambda: HELD.object.method, lambda x: setattr(HELD.object, "factor", x)),
    "an attribute of an object that is called": (lambda: HELD.object, lambda x: setattr(HELD.object, "factor", x)),
    "an argument of partial": (lambda: HELD.partial,
                               lambda x: setattr(HELD, "partial", functools.partial(times, x))),
    "a function made in the graph": (lambda: around(FACTOR), set_global),
}  # fmt: skip
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda x, f: matmul(x, (W, W), combine=f),
    "composed": lambda x, f: matmul(x, (W, W), combine=f, epilogue=STEPS, given={"u": 1.0}),
    "grouped": lambda x, f: grouped_matmul(
        x, (OF_GROUPS, OF_GROUPS), offs=ENDS, combine=f, epilogue=STEPS, given={"u": 1.0}
    ),
}


def compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    made: Callable[..., Any] = torch.compile(call, fullgraph=True, backend="eager")
    return made


@constant_in_graphs
def value_at_one(tape: Any) -> Any:
    """The function of a tape of (1, 0)."""
    return untaped(tape)(1, 0, None)


def test_all_that_a_function_reads_is_guarded() -> None:
    functions = [function for function, _ in READS.values()]
    of_each = compiled(lambda x: [x * value_at_one(followed(f(), ("p", "q", "ops"), 2, "combine")) for f in functions])
    assert [x[0, 0].item() for x in of_each(A)] == [1.0] * len(READS)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for name, (_, change) in READS.items():
            if name in ("an attribute of a class", "a default") and torch.__version__ < (2, 13):
                continue  # torch 2.11 has no guard of it
            of_each(A)
            change(2.0)
            with pytest.raises(RecompileError):
                pytest.fail(f"{name}: {of_each(A)[0]} of an old value")
            change(1.0)


def test_every_call_with_a_function_is_compiled_anew() -> None:
    of_each = compiled(lambda x: [call(x, HELD.kept) for call in CALLS.values()])
    for value in (1.0, 3.5):
        set_cell(value)
        assert [x[0, 0].item() for x in of_each(A)] == [value + 1] * len(CALLS)
    set_cell(1.0)


def test_an_order_is_compiled_anew() -> None:
    texts: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        texts.extend([node.args[5] for node in graph.graph.nodes if "composed_matmul" in str(node.target)])
        return graph

    def order(t: Any, rows: Any, columns: Any, ops: Any) -> Any:
        return (t + HELD.first) % rows, ops.minimum(t // rows, columns - 1)

    call = torch.compile(lambda x: matmul(x, W, order=order), fullgraph=True, backend=backend)
    for HELD.first in (1, 5):
        assert torch.equal(call(A), W)
        assert parts_of_text(texts.pop()).order == Formula.of(order)


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda p, ops: p, r"the function of the sums is called with \(sum0, sum1, ops\): too many positional"),
        (lambda p, q, ops: p if p > q else q, "a value has no truth in Python. Choose with ops.where"),
        (lambda p, q, ops: ops.foo(p), "ops has no operation 'foo'; it has exp"),
        (lambda p, q, ops: p * "a", "a traced function computes with numbers and its own values, not with 'a'"),
        (
            lambda p, q, ops: p + q.expanded,
            r"the function raised AttributeError: \\*'Symbol\\*' object has no attribute",
        ),
    ],
)
def test_a_function_is_refused_in_the_words_of_a_plain_call(function: Any, said: str) -> None:
    for call in (CALLS["matmul"], compiled(CALLS["matmul"])):
        with pytest.raises(Exception, match=said):
            call(A, function)


def test_operations_are_those_of_a_plain_call() -> None:
    def all_of(p: Any, q: Any, ops: Any, s: Any) -> Any:
        x = (2 - p) / 3 + q**2 - 2.0**p + abs(-q) + ops.clamp(p, low=0, high=1.5)
        whole = ops.whole(p) + 7
        bits = (whole // 2) % 5 + (whole & 3) + (whole | 8) + (whole ^ 1) + (whole << 2) + (whole >> 1)
        chosen = ops.where((p >= q) & (p != 1) | (q != s), ops.rsqrt(abs(p) + 1), sum([i * q for i in range(3)]))
        return x + ops.float(bits) + chosen + 1.0 / (q + 3) - (5 - whole) + s * ops.round(q)

    call = functools.partial(matmul, b=(W, W), combine=all_of, given={"s": 3})
    x = torch.arange(-32.0, 32.0).view(8, 8).bfloat16() / 8
    assert torch.equal(compiled(call)(x), call(x))
