"""scaled_matmul with rows by index, orders, two b, functions of a: values, compiled, derived, refused, launched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import explain_matmul, quantize, scaled_matmul
from layoutgemm.errors import LayoutError
from layoutgemm.kernels import Prologue, Triangles
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, Quantize, Residual, RowReduce
from layoutgemm.torch_op.composed import checks
from tests.torch_op.emulated_launches import launches_are_emulated

E4M3, F32 = torch.float8_e4m3fn, torch.float32
M, N, K = 140, 96, 256


def powers(*shape: int) -> Any:
    return 2.0 ** torch.randint(-1, 2, shape).float()


def operands() -> Any:
    """Operands whose products are exact."""
    torch.manual_seed(3)
    a, b, up = [torch.randint(-3, 4, shape).float().to(E4M3) for shape in ((M, K), (N, K), (N, K))]
    return SimpleNamespace(
        a=a, b=b.mT, up=up.mT, rows=torch.randint(0, M, (70,)), bias=torch.randint(-3, 4, (N,)).float(),
        weights=powers(70), to=torch.arange(M) % 9, of_k=powers(K),
    )  # fmt: skip


RECIPES = {
    "tensors": lambda: (torch.tensor(0.5), torch.tensor([2.0])),
    "rows": lambda: (powers(M, 1), powers(1, N)),
    "1x128, 128x128": lambda: (powers(M, 2), powers(1, 2)),
    "1x128, 1x128": lambda: (powers(M, 2), powers(N, 2)),
}


HALVED = Prologue.of(lambda x, i, k, ops, w: x * w, w="k")
FEW = ("rows", "1x128, 128x128")


@pytest.mark.parametrize(
    "recipe", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in RECIPES]
)
def test_parts_are_those_of_the_product(recipe: str) -> None:
    """Each part alone, of the product with scales that has none."""
    on, (sa, sb) = operands(), RECIPES[recipe]()
    call = {"out_dtype": F32}
    full = scaled_matmul(on.a, sa, on.b, sb, **call)
    got = scaled_matmul(
        on.a, sa, on.b, sb, rows=on.rows, bias=on.bias, activation="relu", row_weights=on.weights, **call
    )
    assert torch.equal(got, (full[on.rows] + on.bias).relu() * on.weights[:, None])
    some = scaled_matmul(on.a, sa, on.b, sb, order="upper", **call)
    assert torch.equal(some.triu(), full.triu()) and not some[128:].any()
    gate, up = full.chunk(2, 1)
    got = scaled_matmul(on.a, sa, on.b, sb, rows=on.rows, activation="swiglu", **call)
    torch.testing.assert_close(got, (torch.nn.functional.silu(gate) * up)[on.rows])
    got = scaled_matmul(on.a, sa, on.b, sb, add_rows=on.to, out=torch.ones(9, N), **call)
    torch.testing.assert_close(got, torch.ones(9, N).index_add(0, on.to, full))
    got = scaled_matmul(on.a, sa, on.b, sb, add_rows=on.to, order="upper", out=torch.ones(9, N), **call)
    torch.testing.assert_close(got, torch.ones(9, N).index_add(0, on.to, some))
    told = explain_matmul(on.a, on.b, scale_a=sa, scale_b=sb, add_rows=on.to, order="upper").kernel
    assert told.endswith("added to those that add_rows names")
    if "128" not in recipe:
        exact = scaled_matmul(on.a, sa, on.b, sb, order="upper", use_fast_accum=False, **call)
        assert torch.equal(exact.triu(), full.triu())


def test_groups_of_columns_are_in_a_tile_whatever_the_scales() -> None:
    """Other tiles of a B with a scale of each column have 64 columns: fewer than share a scale of the result."""
    on, (sa, sb) = operands(), RECIPES["1x128, 1x128"]()
    asked = {"epilogue": Epilogue(Quantize()), "given": {"scales": torch.zeros(1, M).mT}, "out_dtype": E4M3}
    for more in ({}, {"order": "snake"}):
        told = explain_matmul(on.a, on.b, scale_a=sa, scale_b=sb, **asked, **more)
        assert "tile 64x128" in told.kernel and told.launches == 1


def test_scales_come_before_a_function_of_two_products() -> None:
    on, (sa, sb) = operands(), RECIPES["rows"]()
    more = {"combine": lambda p, q, ops, s: p + s * ops.maximum(q, 0.0), "out_dtype": F32}
    left, right = (scaled_matmul(on.a, sa, b, s, out_dtype=F32) for b, s in ((on.b, sb), (on.up, None)))
    want = left + 0.5 * right.relu() + on.bias
    given: dict[str, Any] = {"s": 0.5}
    assert torch.equal(scaled_matmul(on.a, sa, (on.b, on.up), (sb, None), bias=on.bias, given=given, **more), want)
    steps, given = Epilogue(Bias("n", "f32"), RowReduce("max")), {"s": 0.5, "bias": on.bias, "row_max": torch.zeros(M)}
    assert torch.equal(
        scaled_matmul(on.a, sa, (on.b, on.up), (sb, None), epilogue=steps, given=given, order="lower", **more).tril(),
        want.tril(),
    )


@pytest.mark.parametrize(
    "count, of_b", [(2, "1x128, 128x128"), pytest.param(3, "1x128, 1x128", marks=pytest.mark.slow)]
)
def test_scales_of_blocks_are_of_each_b(count: int, of_b: str) -> None:
    """N is no multiple of 128: each b's scales begin at a number of their own."""
    on, (sa, _) = operands(), RECIPES[of_b]()
    b, scales = (on.b, on.up, on.b)[:count], [RECIPES[of_b]()[1] for _ in range(count)]
    left, right, *more = (scaled_matmul(on.a, sa, x, s, out_dtype=F32) for x, s in zip(b, scales, strict=True))
    function = (lambda p, q, ops: p + 0.5 * q) if count == 2 else (lambda p, q, r, ops: p + 0.5 * q - r)
    call = {"combine": function, "bias": on.bias, "activation": "relu"}
    want = (left + 0.5 * right - sum(more) + on.bias).relu()
    assert torch.equal(scaled_matmul(on.a, sa, b, scales, out_dtype=F32, **call), want)
    told = explain_matmul(on.a, b, scale_a=sa, scale_b=scales, **call)
    assert f"{count} matrices B combined, K blocks of 128 promoted" in told.kernel and "scale_b: of" in told.copies[-1]


def test_skipped_k_tiles_have_no_scales() -> None:
    on, (sa, _), (_, sb) = operands(), RECIPES["1x128, 128x128"](), RECIPES["1x128, 1x128"]()
    a, lower = on.a[:, :M].float().tril().to(E4M3), {"triangles": Triangles("lower"), "out_dtype": F32}
    assert torch.equal(scaled_matmul(a, sa, on.b[:M], sb, **lower), scaled_matmul(a, sa, on.b[:M], sb, out_dtype=F32))
    exact = scaled_matmul(a, torch.ones(M), on.b[:M], torch.ones(N), use_fast_accum=False, **lower)
    assert torch.equal(exact, a.float() @ on.b[:M].float())


def test_a_function_of_8_bits_precedes_the_scales() -> None:
    on = operands()
    for recipe in ("rows", "1x128, 128x128"):  # by the kernel, and by torch
        sa, sb = RECIPES[recipe]()
        found = scaled_matmul(on.a, sa, on.b, sb, prologue=HALVED, given={"w": on.of_k}, out_dtype=F32)
        full = scaled_matmul((on.a.float() * on.of_k).to(E4M3), sa, on.b, sb, out_dtype=F32)
        assert torch.equal(found, full)
        asked = {"prologue": HALVED, "given": {"w": on.of_k}, "rows": on.rows}
        assert torch.equal(scaled_matmul(on.a, sa, on.b, sb, **asked, out_dtype=F32), full[on.rows])
        told = explain_matmul(on.a, on.b, scale_a=sa, scale_b=sb, **asked)
        assert told.kernel.startswith("torch computes a's function, then ") == (recipe != "rows")


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_the_steps_read_has_gradients(compiles: bool) -> None:
    """Those of torch's formula, in eager mode and compiled; sizes are symbols."""
    on, (sa, sb) = operands(), RECIPES["1x128, 128x128"]()
    steps = Epilogue(Residual("f32", beta=None))

    def product(a: Any, rows: Any, residual: Any) -> Any:
        y = scaled_matmul(a, sa, on.b, sb, rows=rows, epilogue=steps, given={"d": residual}, out_dtype=F32)
        return y.square().sum()

    residual = torch.ones(70, N, requires_grad=True)
    full = scaled_matmul(on.a, sa, on.b, sb, out_dtype=F32)[on.rows] + 1
    call = torch.compile(product, backend="aot_eager", fullgraph=True, dynamic=True) if compiles else product
    (found,) = torch.autograd.grad(call(on.a, on.rows, residual), residual)
    torch.testing.assert_close(found, 2 * full)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("rows", {"rows": torch.tensor([M])}, "rows.0. = 140: a has 140 rows"),
    ("rows", {"combine": "silu"}, "b is a Tensor: a tuple of two to four matrices|b is"),
    ("rows", {"order": "lower", "given": {"scale_a": 1}}, "two operands of the product are named scale_a"),
    ("rows", {"order": "lower", "epilogue": Epilogue(Bias()), "bias": torch.ones(N)}, "bias and epilogue: one or the"),
    ("rows", {"row_weights": torch.ones(M)}, "row_weights: the rows of a product with rows="),
    ("rows", {"order": "lower", "out_recipe": "BlockWise1x128"}, "out_recipe: not beside rows"),
    ("1x128, 1x128", {"rows": torch.zeros(2).long(), "copy_rows": False}, "copy_rows: False, .* scales of blocks are"),
    ("1x128, 1x128", {"prologue": HALVED}, "the prologue reads w: w is missing"),
    ("1x128, 1x128", {"prologue": HALVED, "given": {"w": torch.ones(3)}}, "w is torch.float32 of shape .3.: it takes"),
    ("1x128, 1x128", {"prologue": "relu"}, "prologue is a str: a Prologue"),
    ("1x128, 128x128", {"order": "symmetric"}, "scale_a is of BlockWise1x128 and scale_b of BlockWise128x128, and one"),
    ("1x128, 1x128", {"prologue": HALVED, "order": "symmetric"}, "a prologue and a symmetric order"),
    (
        "1x128, 1x128",
        {"prologue": Prologue.of(lambda x, i, k, ops: x * ops.float(i)), "rows": torch.zeros(2).long()},
        "rows and prologue: the function reads i",
    ),
]


@pytest.mark.parametrize("recipe, options, message", REFUSED)
def test_refusals(recipe: str, options: dict[str, Any], message: str) -> None:
    on, (sa, sb) = operands(), RECIPES[recipe]()
    for call in (lambda **x: scaled_matmul(on.a, sa, on.b, sb, **x),
                 lambda **x: explain_matmul(on.a, on.b, scale_a=sa, scale_b=sb, **x)):  # fmt: skip
        with pytest.raises(LayoutError, match=message):
            call(**options)


def test_refusals_of_several_b() -> None:
    on, (sa, sb) = operands(), RECIPES["rows"]()
    both, blocks = (on.b, on.up), RECIPES["1x128, 128x128"]()
    for b, scales, options, message in (
        (both, (sb, sb), {}, "b is a tuple of matrices: combine= says"),
        (both, sb, {"combine": "silu"}, "scale_b is a Tensor: with combine= a tuple of 2"),
        ((*both, on.b), (sb,) * 3, {"combine": lambda x, y, z, ops: x}, "b is 3 matrices: .* compute scaled products"),
    ):
        with pytest.raises(LayoutError, match=message):
            scaled_matmul(on.a, sa, b, scales, **options)
    of_columns = RECIPES["1x128, 1x128"]()[1]
    with pytest.raises(LayoutError, match=r"scale_b.1. is of BlockWise1x128 and scale_b.0. of BlockWise128x128"):
        scaled_matmul(on.a, blocks[0], both, (blocks[1], of_columns), combine="silu")
    x, of_x = quantize(torch.randn(M, K).bfloat16(), "BlockWise128x128")
    with pytest.raises(LayoutError, match="rows and scale_a of BlockWise128x128: rows by index share no block"):
        scaled_matmul(x, of_x, on.b, blocks[1], rows=on.rows)


def test_an_explanation_has_the_copied_rows() -> None:
    on, (sa, sb) = operands(), RECIPES["1x128, 128x128"]()
    told = explain_matmul(on.a, on.b, scale_a=sa, scale_b=sb, rows=on.rows)
    assert told.copies == (f"a: 70 chosen rows, {70 * K} bytes",) and told.workspace == 70 * K
    assert told.why.startswith("scales of K blocks are the main loop's") and "rows copied from 140" in told.kernel
    told = explain_matmul(on.a, on.b, scale_a=sa, scale_b=sb, order="lower")
    assert "tiles" in told.why and "promoted" in told.kernel


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe, options",
    [("1x128, 128x128", {"rows": 0, "activation": "geglu"}), ("1x128, 1x128", {"order": "lower"}),
     ("rows", {"combine": "silu", "order": "lower"}), ("1x128, 128x128", {"combine": "silu", "rows": 0}),
     ("1x128, 1x128", {"triangles": Triangles("upper")})],
)  # fmt: skip
def test_the_kernel_computes_the_reference(
    recipe: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    on, (sa, sb) = operands(), RECIPES[recipe]()
    if "rows" in options:
        options = {**options, "rows": on.rows}
    b, scales = ((on.b, on.up), (sb, 2 * sb)) if "combine" in options else (on.b, sb)
    if "triangles" in options:
        on.a = on.a.float().triu().to(E4M3)
    want = scaled_matmul(on.a, sa, b, scales, out_dtype=F32, **options)
    made = launches_are_emulated(monkeypatch)
    found = scaled_matmul(on.a, sa, b, scales, out_dtype=F32, **options)
    monkeypatch.undo()
    assert len(made) == 1
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-3)


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe, options",
    [("rows", {}), ("rows", {"copy_rows": True}), ("rows", {"use_fast_accum": False}), ("1x128, 1x128", {}),
     ("1x128, 128x128", {})],
)  # fmt: skip
def test_scales_of_rows_that_the_host_does_not_see(
    recipe: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index outside of a reads 0 for its scale, too: that of no row may be infinite."""
    on, (sa, sb) = operands(), RECIPES[recipe]()
    rows = on.rows.clamp(min=1)
    rows[3], rows[5], sa[0] = M, -1, float("inf")
    monkeypatch.setattr(checks, "known_indices", lambda x: None)
    want = scaled_matmul(on.a, sa, on.b, sb, rows=rows, out_dtype=F32, **options)
    assert want.isfinite().all() and not want[[3, 5]].any()
    made = launches_are_emulated(monkeypatch)
    found = scaled_matmul(on.a, sa, on.b, sb, rows=rows, out_dtype=F32, **options)
    monkeypatch.undo()
    assert len(made) == 1 and made[0].indexed.through == ("scale_a",) and torch.equal(found, want)


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_each_of_two_matrices_has_its_own_scales(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    on, (sa, sb) = operands(), RECIPES["rows"]()
    scales = (sb, torch.tensor([[2.0]])) if first else (None, sb)
    call = {"combine": lambda p, q, ops: p + 0.5 * q, "out_dtype": F32}
    want = scaled_matmul(on.a, sa, (on.b, on.up), scales, **call)
    made = launches_are_emulated(monkeypatch)
    found = scaled_matmul(on.a, sa, (on.b, on.up), scales, **call)
    monkeypatch.undo()
    assert len(made) == 1 and torch.equal(found, want)


def test_each_of_two_matrices_has_its_own_scales_at_one_block_of_k() -> None:
    """Shapes that scales of blocks have there, too: before a function of two products they are of rows, or tensors."""
    on, (sa, sb) = operands(), RECIPES["rows"]()
    a, b, up = on.a[:, :128], on.b[:128], on.up[:128]
    for of_b, of_up in ((sb, torch.tensor([[2.0]])), (torch.tensor([[2.0]]), sb.mT), (None, sb)):
        p, q = [
            x.float() @ y.float() * sa * (1 if scale is None else scale.reshape(1, -1))
            for x, y, scale in ((a, b, of_b), (a, up, of_up))
        ]
        found = scaled_matmul(a, sa, (b, up), (of_b, of_up), combine=lambda p, q, ops: p + q, out_dtype=F32)
        assert torch.equal(found, p + q)
