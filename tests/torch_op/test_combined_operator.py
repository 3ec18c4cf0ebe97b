"""combine= under torch.compile, torch.export and torch.func: one operator of several matrices, with gradients."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch.utils.flop_counter import FlopCounterMode

from layoutgemm import matmul
from layoutgemm.errors import OperandError
from layoutgemm.kernels.operands.combined import Combined
from tests.torch_op.test_lowering import compiled

BF16 = torch.bfloat16
silu = torch.nn.functional.silu


def tensors(*shapes: tuple[int, ...], kind: Any = BF16) -> list[Any]:
    made = torch.Generator().manual_seed(len(shapes))
    return [(torch.randint(-8, 9, shape, generator=made).float() / 8).to(kind) for shape in shapes]


def weighted(x: Any, y: Any, ops: Any, s: Any) -> Any:
    return x + s * y


MADE = Combined.of(weighted, numbers=("s",))
A, X, Y, Z = tensors((8, 64), (64, 16), (64, 16), (64, 16))
CALLS: dict[str, Any] = {
    "the name of a gate": lambda a, x, y: matmul(a, (x, y), combine="silu"),
    "a function": lambda a, x, y: matmul(a, (x, y), combine=weighted, given={"s": 0.5}),
    "one written there": lambda a, x, y: matmul(a, (x, y), combine=lambda g, u, ops: ops.maximum(g, 0.0) * u),
    "one made before": lambda a, x, y: matmul(a, (x, y), combine=MADE, given={"s": 2}, out_dtype=torch.float32),
    "three matrices": lambda a, x, y: matmul(a, (x, y, x), combine=lambda p, q, r, ops: p * q - r),
    "a batch": lambda a, x, y: matmul(a[None].expand(3, -1, -1) + 0, [x, y], combine="gelu"),
}


@pytest.mark.parametrize("name", CALLS)
def test_compiled_calls_are_those_of_eager_mode(name: str) -> None:
    torch._dynamo.reset()
    got, want = torch.compile(CALLS[name], fullgraph=True, backend="aot_eager")(A, X, Y), CALLS[name](A, X, Y)
    assert got.dtype == want.dtype and torch.equal(got, want)


def test_generated_code_calls_it_directly() -> None:
    """One call of ours in Inductor's code, without torch's dispatcher."""
    got, lines = compiled(CALLS["one made before"], A, X, Y)
    assert torch.equal(got, CALLS["one made before"](A, X, Y))
    (line,) = lines
    assert line.startswith("layoutgemm_direct_combined_matmul_") and "out=" in line


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_gradients(dynamic: bool) -> None:
    torch._dynamo.reset()
    call = torch.compile(CALLS["the name of a gate"], fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (8, 5):
        a, x, y = [t.requires_grad_() for t in tensors((rows, 64), (64, 16), (64, 16))]
        slope = tensors((rows, 16))[0]
        found = torch.autograd.grad(call(a, x, y), (a, x, y), slope)
        want = torch.autograd.grad(CALLS["the name of a gate"](a, x, y), (a, x, y), slope)
        for got, right in zip(found, want, strict=True):
            torch.testing.assert_close(got, right, rtol=2**-7, atol=2**-7)


def test_out_is_written_in_a_graph() -> None:
    def call(a: Any, x: Any, y: Any, out: Any) -> Any:
        return matmul(a, (x, y), combine="silu", out=out)

    out = torch.empty(8, 16, dtype=BF16)
    torch._dynamo.reset()
    assert torch.compile(call, fullgraph=True, backend="aot_eager")(A, X, Y, out) is out
    assert torch.equal(out, CALLS["the name of a gate"](A, X, Y))


REFUSED: list[tuple[str, Any]] = [
    ("b is 5 matrices: combine= takes a tuple of 2 to 4", lambda a, x: matmul(a, (x,) * 5, combine="silu")),
    ("combine = 'mish': known are relu", lambda a, x: matmul(a, (x, x), combine="mish")),
    (r"called with \(sum0, sum1, ops, s\)", lambda a, x: matmul(a, (x, x), combine="silu", given={"s": 1})),
    (r"combine takes 2 matrices and \('s',\)", lambda a, x: matmul(a, (x, x), combine=MADE)),
    ("s is a number", lambda a, x: matmul(a, (x, x), combine=weighted, given={"s": x})),
    (r"b\[1\] is torch.bfloat16 of shape \[64, 8\]", lambda a, x: matmul(a, (x, x[:, :8]), combine="silu")),
    (r"b\[1\] is a builtins.int", lambda a, x: matmul(a, (x, 1), combine="silu")),
    ("activation and combine", lambda a, x: matmul(a, (x, x), combine="silu", activation="geglu")),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_the_compiler_reports_refusals(number: int) -> None:
    text, call = REFUSED[number]
    torch._dynamo.reset()
    with pytest.raises(Exception, match=text):
        torch.compile(call, fullgraph=True, backend="eager")(A, X)


def test_functorch_derives_and_maps() -> None:
    """Rows are mapped as a batch, matrices one after another. Derivatives are of every order."""
    call, wide = CALLS["the name of a gate"], [t.float() for t in (A, X, Y)]

    def plain(a: Any, x: Any, y: Any) -> Any:
        return silu(a @ x) * (a @ y)

    def ours(a: Any, x: Any, y: Any) -> Any:
        return matmul(a, (x, y), combine="silu", allow_tf32=True)

    lines = torch.stack([A, -A])
    assert torch.equal(torch.vmap(lambda a: call(a, X, Y))(lines), torch.stack([call(a, X, Y) for a in lines]))
    several = torch.stack([X, Z])
    want = torch.stack([call(A, x, Y) for x in several])
    assert torch.equal(torch.vmap(lambda x: call(A, x, Y))(several), want)
    for of in (torch.func.grad, lambda f: torch.func.grad(lambda *t: torch.func.grad(f)(*t).sum())):
        found, right = (of(lambda *t, f=f: f(*t).sum())(*wide) for f in (ours, plain))
        torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-3)
    found, right = (torch.func.jvp(f, tuple(wide), tuple(t.flip(0) for t in wide))[1] for f in (ours, plain))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_other_callers_see_one_operator() -> None:
    """Meta tensors, export, autocast, torch's own checks of operators, and its count of operations."""
    call = CALLS["the name of a gate"]
    assert call(A.to("meta"), X.to("meta"), Y.to("meta")).shape == (8, 16)

    class Gate(torch.nn.Module):
        def forward(self, a: Any, x: Any, y: Any) -> Any:
            return call(a, x, y)

    exported = torch.export.export(Gate(), (A, X, Y)).run_decompositions()
    assert torch.equal(exported.module()(A, X, Y), call(A, X, Y))
    assert [str(node.target) for node in exported.graph.nodes].count("layoutgemm.combined_matmul.default") == 1
    with torch.autocast("cpu", BF16):
        assert torch.equal(call(A.float(), X.float(), Y), call(A, X, Y))
    operator = torch.ops.layoutgemm.combined_matmul
    leaves = [t.clone().requires_grad_() for t in (A, X, Y)]
    torch.library.opcheck(operator.default, (leaves[0], leaves[1:], [0.5], MADE.json))
    with FlopCounterMode(display=False) as counted:
        operator(A, [X, Y], [], Combined.of(lambda x, y, ops: x * y).json)
    assert counted.get_total_flops() == 2 * 2 * 8 * 64 * 16
    with pytest.raises(OperandError, match="numbers has 0, and the function takes s"):
        operator(A, [X, Y], [], MADE.json)
    with pytest.raises(OperandError, match="no function's text: nothing"):
        operator(A, [X, Y], [], "nothing")
