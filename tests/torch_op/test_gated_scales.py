"""Gated products with scales: the definition on the CPU, the kernels in the emulator, and what torch sees of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, explain_matmul, grouped_matmul, quantize, scaled_matmul
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.torch_op.scaled_grouped import kept
from layoutgemm.torch_op.scaled_grouped.operators import checked_scaled
from layoutgemm.torch_op.scaled_grouped.scaled import BiasActivation, plan_of
from tests.torch_op.test_operator import BF16, F32, emulated, integers
from tests.torch_op.test_scaled_kernels import E4M3, E5M2, OFFSETS, powers, spread

SMALL = Sm90Config((64, 64), consumers=1, stages=2, loader="warp")
K, H = 272, 88  # three K blocks; up's scales of 128 columns begin after 40 of its own
COUNTS = torch.tensor([20, 0, 1, 7], dtype=torch.int32)
FUNCTIONS = {"swiglu": torch.nn.functional.silu, "geglu": torch.nn.functional.gelu}
RECIPES = {  # rows of a and columns of b that share a scale of 128 of K; () for scales of the whole sum
    "1x128, 128x128": (1, 128), "1x128, 1x128": (1, 1), "128x128, 128x128": (128, 128), "rows": (), "tensors": (),
    "rows and a tensor": (),
}  # fmt: skip


def case(name: str, m: int = 70, *, experts: int = 0, batch: int = 0, columns: int = H) -> tuple[dict[str, Any], Any]:
    """Operands whose sums are exact, and the sums of all columns in float64: of groups, those of every expert.

    experts  matrices b, for one a; batch of both
    columns  of the result
    """
    n = 2 * columns
    front_a, front_b = ((batch,) if batch else ()), ((experts or batch,) if experts or batch else ())
    a, b = integers(*front_a, m, K, dtype=E4M3), integers(*front_b, n, K, dtype=E5M2).mT
    if RECIPES[name]:
        rows, lines = RECIPES[name]
        sa, sb = powers(*front_a, -(-m // rows), 3) / 16, powers(*front_b, -(-n // lines), 3)
        left = a.double() * spread(sa, rows, m, K)
        right = b.double() * spread(sb, lines, n, K).mT
        return {"a": a, "b": b, "scale_a": sa, "scale_b": sb}, left @ right
    sa = torch.tensor(0.125) if name == "tensors" else powers(*front_a, m, 1) / 16
    sb = powers(*front_b, 1, n) if name == "rows" else torch.tensor([0.5])
    return {"a": a, "b": b, "scale_a": sa, "scale_b": sb}, sa.double() * (a.double() @ b.double()) * sb.double()


def gated(sums: Any, activation: str = "swiglu", bias: Any = 0.0) -> Any:
    """From the definition, in float64."""
    gate, up = (sums + bias).chunk(2, -1)
    return FUNCTIONS[activation](gate) * up


def close(x: Any, want: Any, room: float = 2.0**-8) -> bool:
    return bool(((x.double() - want).abs() <= room * want.abs() + 2e-5).all())


def of_rows(sums: Any, offsets: Any = OFFSETS) -> Any:
    """Each row's sums by its own expert."""
    group = torch.repeat_interleave(torch.arange(len(sums)), offsets.diff())
    return sums[group, torch.arange(len(group))]


# ----------------------------------------------------------------------------------------------------------- on the CPU


@pytest.mark.parametrize("activation", list(FUNCTIONS))
@pytest.mark.parametrize("name", RECIPES)
def test_the_definition_on_the_cpu(name: str, activation: str) -> None:
    options = {"activation": activation, "out_dtype": F32}
    bias = integers(2 * H, dtype=F32)
    for batch in (0, 2):
        given, sums = case(name, batch=batch)
        assert close(scaled_matmul(**given, **options), gated(sums, activation), 2.0**-20)
        assert close(scaled_matmul(**given, bias=bias, **options), gated(sums, activation, bias.double()), 2.0**-20)
    assert close(grouped_matmul(**given, **options), gated(sums, activation), 2.0**-20)
    if name == "128x128, 128x128":
        return
    given, sums = case(name, experts=4)
    want = gated(of_rows(sums), activation)
    assert close(grouped_matmul(**given, offsets=OFFSETS, **options), want, 2.0**-20)
    each = integers(4, 2 * H, dtype=F32)
    of_each = gated(of_rows(sums + each[:, None].double()), activation)
    assert close(grouped_matmul(**given, offsets=OFFSETS, bias=each, **options), of_each, 2.0**-20)
    ended = grouped_matmul(**given, offs=torch.tensor([30, 30, 60, 63]), **options)
    assert close(ended[:60], want[:60], 2.0**-20) and not ended[63:].any()
    given, sums = case(name, 20, batch=4)
    count = torch.arange(20) < COUNTS[:, None]
    masked = grouped_matmul(**given, counts=COUNTS, out=torch.full((4, 20, H), 7.0), **options)
    assert close(masked[count], gated(sums, activation)[count], 2.0**-20) and (masked[~count] == 7).all()


def test_results_of_nothing() -> None:
    given, _ = case("1x128, 128x128")
    none = {"a": given["a"][:, :0], "b": given["b"][:0], "scale_a": given["scale_a"][:, :0],
            "scale_b": given["scale_b"][:, :0]}  # fmt: skip
    bias = integers(2 * H, dtype=F32)
    assert not scaled_matmul(**none, activation="swiglu").any()
    assert close(scaled_matmul(**none, activation="swiglu", bias=bias)[3], gated(0.0, "swiglu", bias.double()))
    empty = {**given, "a": given["a"][:0], "scale_a": given["scale_a"][:0]}
    assert scaled_matmul(**empty, activation="geglu").shape == (0, H)


# ---------------------------------------------------------------------------------------------------------- the kernels


@pytest.mark.dsl
@pytest.mark.parametrize(
    "name", [x if x in ("1x128, 128x128", "rows") else pytest.param(x, marks=pytest.mark.slow) for x in RECIPES]
)
def test_one_launch_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long way, then kept, into a new tensor and the caller's."""
    given, sums = case(name)
    out, options = torch.full((70, H), 7.0), {"activation": "swiglu", "out_dtype": F32, "config": SMALL}
    with emulated(monkeypatch) as calls:
        for _ in (1, 2):
            assert close(scaled_matmul(**given, **options), gated(sums), 2.0**-18)
            assert scaled_matmul(**given, out=out, **options) is out and close(out, gated(sums), 2.0**-18)
            monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        assert calls[0][0][4] == H and len(calls) == 4 and len(kept.READY) == 2  # the kernel's n is C's
        other, more = case(name)
        assert close(scaled_matmul(**other, **options), gated(more), 2.0**-18)


@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows", "tensors", "1x128, 128x128"])
def test_bias_batches_and_exact_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"activation": "geglu", "out_dtype": F32, "config": SMALL}
    bias = integers(2 * H, dtype=BF16)
    with emulated(monkeypatch) as calls:
        given, sums = case(name, batch=2)
        got = scaled_matmul(**given, bias=bias, **options)
        assert close(got, gated(sums, "geglu", bias.double()), 2.0**-17)
        one, exact = case(name)
        if "x" not in name:
            assert close(scaled_matmul(**one, use_fast_accum=False, **options), gated(exact, "geglu"), 2.0**-17)
        assert calls


@pytest.mark.dsl
@pytest.mark.parametrize("name", ["1x128, 128x128", pytest.param("rows", marks=pytest.mark.slow)])
def test_groups_of_rows_and_masked_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"activation": "swiglu", "config": SMALL}
    given, sums = case(name, experts=4)
    with emulated(monkeypatch) as calls:
        for _ in (1, 2):
            assert close(grouped_matmul(**given, offsets=OFFSETS, **options), gated(of_rows(sums)))
        got = grouped_matmul(**given, offs=torch.tensor([30, 30, 60, 63]), **options)
        assert close(got[:30], gated(sums)[0, :30]) and not got[63:].any()
        given, sums = case(name, 20, batch=4)
        count = torch.arange(20) < COUNTS[:, None]
        for _ in (1, 2):
            got = grouped_matmul(**given, counts=COUNTS, **options)
            assert close(got[count], gated(sums)[count])
        assert len(calls) == 5 and len(kept.READY) == 3


# ------------------------------------------------------------------------------------------------- around the products


def shaped(m: int, n: int, k: int) -> dict[str, Any]:
    """Operands of a model's sizes, with scales of blocks."""
    blocks = -(-k // 128)
    return {"a": torch.empty(m, k, dtype=E4M3), "b": torch.empty(n, k, dtype=E4M3).mT,
            "scale_a": torch.empty(m, blocks), "scale_b": torch.empty(-(-n // 128), blocks)}  # fmt: skip


def test_explanations_and_chosen_tiles() -> None:
    told = explain_matmul(**shaped(4096, 4096, 1024), activation="swiglu")
    assert "4096x2048x1024" in told.kernel and "gated by silu, K blocks of 128 promoted" in told.kernel
    assert told.launches == 1 and told.why.startswith("scales of K blocks are the main loop's; estimated fastest")
    rows = shaped(4096, 4096, 1024) | {"scale_a": torch.empty(4096, 1), "scale_b": torch.empty(1, 4096)}
    told = explain_matmul(**rows, activation="geglu")
    assert "gated by gelu" in told.kernel and "K blocks" not in told.kernel
    assert told.why.startswith("scales of rows, columns and tensors are the epilogue's, before the gate; ")
    exact = explain_matmul(**rows, activation="geglu", use_fast_accum=False)
    assert "K blocks of 128 promoted" in exact.kernel and exact.why.startswith("exact sums; ")
    experts = shaped(4096, 2048, 1024)
    experts |= {"b": torch.empty(8, 2048, 1024, dtype=E4M3).mT, "scale_b": torch.empty(8, 16, 8)}
    told = explain_matmul(**experts, offs=torch.arange(512, 4608, 512), activation="swiglu")
    assert "gated by silu" in told.kernel and "rows in 8 group(s)" in told.kernel and told.launches == 1


@pytest.mark.parametrize("kind", [BF16, E4M3, F32])
def test_every_tile_that_may_be_chosen_is_derived(kind: Any) -> None:
    """Whole 16 bytes of a row, in parts of K too, registers for odd columns: what a GPU would get holds its checks."""
    for m in (1, 64, 100, 3000):
        for n in (8, 97, 1000, 4096):
            for scales in ((m, -(-2 * n // 128)), (m, 2 * n)):
                given = shaped(m, 2 * n, 1024) | {"scale_a": torch.empty(m, 8), "scale_b": torch.empty(scales[1], 8)}
                assert explain_matmul(**given, activation="swiglu", out_dtype=kind).launches == 1
            given = shaped(m, 2 * n, 1024) | {"scale_a": torch.empty(m), "scale_b": torch.empty(2 * n)}
            assert explain_matmul(**given, activation="swiglu", out_dtype=kind).launches == 1


@pytest.mark.parametrize("rows", [False, True])
def test_every_tile_of_a_quantised_result_is_derived(rows: bool) -> None:
    finish = BiasActivation(None, "swiglu")
    for m in (1, 60, 100, 3000):
        for n in (16, 144, 4096):
            given = shaped(m, 2 * n, 1024)
            given |= {"scale_a": torch.empty(m), "scale_b": torch.empty(2 * n)} if rows else {}
            operands = given["a"], given["scale_a"], given["b"], given["scale_b"]
            call = checked_scaled(*operands, finish, None, E4M3, "", "", "BlockWise1x128")
            plan, why = plan_of(call, given["a"], given["b"], finish)
            assert plan.tile_c[1] == 128 and why.startswith("gated and quantised: tiles of ")
            assert plan.config.loaded_a_rows is None or plan.config.loaded_a_rows >= m
    assert [x for x in plan.check() if not x] == []


@pytest.mark.parametrize("name", ["1x128, 128x128", "rows"])
def test_a_quantised_result_is_the_float32_one_quantised(name: str) -> None:
    given, _ = case(name)
    wide = scaled_matmul(**given, activation="swiglu", out_dtype=F32)
    want, of_want = quantize(wide, dtype=E4M3)
    c, scales = scaled_matmul(**given, activation="swiglu", out_dtype=E4M3, out_recipe="BlockWise1x128")
    assert torch.equal(c.float(), want.float()) and torch.equal(scales, of_want) and c.shape == (70, H)


@pytest.mark.dsl
@pytest.mark.parametrize("name", ["1x128, 128x128", pytest.param("rows", marks=pytest.mark.slow)])
def test_the_kernel_quantises_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one launch, for columns that share scales 16 at a time; else float32 and `quantize`."""
    options = {"activation": "swiglu", "out_dtype": E4M3, "out_recipe": "BlockWise1x128"}
    wide = Sm90Config((64, 256), consumers=1, stages=2, loader="warp", chunks=1, buffers=1)
    given, sums = case(name, columns=144)
    with emulated(monkeypatch) as calls:
        for _ in (1, 2):
            c, scales = scaled_matmul(**given, config=wide, **options)
            assert c.shape == (70, 144) and scales.shape == (70, 2)
            want, step = gated(sums), scales.double().repeat_interleave(128, -1)[:, :144]
            off = (c.double() * step - want).abs()
            assert bool((off <= 2.0**-4 * want.abs() + 2.0**-9 * step).all())
            most = want.abs()[:, :128].amax(-1) / 448
            assert bool(((scales[:, 0].double() - most).abs() <= 2.0**-10 * most).all())
            monkeypatch.setattr(kept, "launch_of", None)
        assert len(calls) == 2 and len(kept.READY) == 1


def test_modes_and_transforms() -> None:
    given, sums = case("1x128, 128x128")
    want = scaled_matmul(**given, activation="swiglu")
    compiled = torch.compile(lambda x: scaled_matmul(**x, activation="swiglu"), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(given), want)
    grouped, _ = case("1x128, 128x128", experts=4)
    of_groups = grouped_matmul(**grouped, offsets=OFFSETS, activation="swiglu")
    compiled = torch.compile(
        lambda x: grouped_matmul(**x, offsets=OFFSETS, activation="swiglu"), backend="aot_eager", fullgraph=True
    )
    assert torch.equal(compiled(grouped), of_groups)
    twice = torch.stack([given["scale_a"], given["scale_a"] * 2])
    several = torch.vmap(lambda x: scaled_matmul(**{**given, "scale_a": x}, activation="swiglu"))(twice)
    assert torch.equal(several[0], want) and close(several[1], gated(2 * sums))
    with torch._subclasses.FakeTensorMode():
        fake = scaled_matmul(**shaped(70, 2 * H, K), activation="geglu")
        assert fake.shape == (70, H) and fake.dtype == BF16
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")  # torch scales no float8
    alone = given["a"], given["scale_a"], given["b"], given["scale_b"], None, "swiglu"
    several = grouped["a"], grouped["b"], OFFSETS, "offsets", grouped["scale_a"], grouped["scale_b"]
    ours = torch.ops.layoutgemm
    for op, operands, options in (
        (ours.scaled_matmul.default, alone, {}),
        (ours.scaled_matmul_quantized.default, alone, {"out_dtype": E4M3}),
        (ours.grouped_matmul.default, several, {"activation": "swiglu"}),
    ):
        results = torch.library.opcheck(op, operands, options, test_utils=checks)
        assert set(results.values()) == {"SUCCESS"}, results


def test_refusals() -> None:
    given, _ = case("1x128, 128x128")
    leaf = given["scale_b"].clone().requires_grad_()
    for changed, error, text in (
        ({"b": given["b"][:, 1:]}, TensorError, "b has 175 columns: a gated product takes gate and up side by side"),
        (
            {"out": torch.empty(70, 2 * H, dtype=BF16)},
            TensorError,
            r"out has shape \[70, 176\], the product \[70, 88\]",
        ),
        ({"scale_b": given["scale_b"][:1]}, TensorError, r"scale_b has shape \[1, 3\]: \[176, 3\], or \[2, 3\]"),
        ({"scale_b": leaf}, TensorError, "scale_b requires grad, and this product has no gradient"),
        ({"activation": "reglu"}, OperandError, "activation 'reglu': do you mean 'relu'. known are 'relu'"),
        ({"out_dtype": torch.int32}, OperandError, "out_dtype torch.int32"),
    ):
        with pytest.raises(error, match=text):
            scaled_matmul(**{**given, "activation": "swiglu", **changed})
    columns = {"a": given["b"].mT.expand(3, -1, -1), "b": given["a"].mT, "scale_a": given["scale_b"].expand(3, -1, -1),
               "scale_b": given["scale_a"]}  # fmt: skip
    with pytest.raises(OperandError, match="activation: groups of columns take none, groups of rows do"):
        grouped_matmul(**columns, offs=torch.tensor([20, 40, 70]), activation="swiglu")


# ------------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.dsl
@pytest.mark.parametrize("name", ["1x128, 128x128", "1x128, 1x128", "rows", "tensors"])
@pytest.mark.parametrize("m, n", [(1, 4096), (64, 2752), (1000, 4096), (4096, 1408)])
def test_on_a_gpu(m: int, n: int, name: str, device: str = "cuda") -> None:
    """By the chosen tiles against float64: alone, quantised, in groups, masked; the same bits in a CUDA graph."""
    torch.manual_seed(0)
    k, experts = 512, 4
    x, w = torch.randn(m, k, device=device), torch.randn(experts, 2 * n, k, device=device) / 8
    lines = ("RowWise",) * 2, ("BlockWise1x128",) * 2
    of_a, of_b = {"rows": lines[0], "1x128, 1x128": lines[1]}.get(name, ("BlockWise1x128", "BlockWise128x128"))
    a, sa = quantize(x, of_a)
    made = [quantize(each, of_b) for each in w]
    b, sb = torch.stack([value for value, _ in made]).mT, torch.stack([scale for _, scale in made])
    if name == "tensors":
        of_a = of_b = "TensorWise"
        sa = sb = torch.full((1,), 0.01, device=device)

    def wide(value: Any, scale: Any) -> Any:
        if scale.numel() == 1:
            return value.double() * scale.double()
        rows = scale.double().repeat_interleave(1 if scale.shape[0] == value.shape[0] else 128, 0)[: value.shape[0]]
        return value.double() * (rows if rows.shape[1] == 1 else rows.repeat_interleave(128, 1))

    left, of_expert = wide(a, sa), [sb] * experts if name == "tensors" else list(sb)
    sums = torch.stack([left @ wide(b[e].mT, of_expert[e]).mT for e in range(experts)])
    right = gated(sums)

    def near(got: Any, want: Any, room: float = 2.0**-8) -> bool:
        return bool(((got.double() - want).abs() <= room * want.abs() + 2e-2 * want.abs().max()).all())

    options = {"recipe_a": of_a, "recipe_b": of_b, "activation": "swiglu"}
    alone = a, sa, b[0], of_expert[0]
    assert near(scaled_matmul(*alone, **options), right[0])
    c, scales = scaled_matmul(*alone, **options, out_dtype=E4M3, out_recipe="BlockWise1x128")
    want, of_want = quantize(scaled_matmul(*alone, **options, out_dtype=F32), dtype=E4M3)
    assert torch.equal(c.float(), want.float()) and torch.equal(scales, of_want)
    ends = torch.tensor([m // 3, m // 3, m - m // 4, m], device=device)
    offsets = torch.cat([ends.new_zeros(1), ends])
    out = torch.empty(m, n, dtype=BF16, device=device)
    call = {"offs": ends, "scale_a": sa, "scale_b": sb, **options}
    assert near(grouped_matmul(a, b, **call, out=out), of_rows(right, offsets.cpu()))
    first, graph = out.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_matmul(a, b, **call, out=out.zero_())
    graph.replay()
    assert torch.equal(out, first)
    several, scale = a.expand(experts, -1, -1).contiguous(), sa if name == "tensors" else sa.expand(experts, -1, -1)
    counts = torch.tensor([m, 0, 1, m // 2], device=device)
    got = grouped_matmul(several, b, counts=counts, scale_a=scale, scale_b=sb, **options)
    assert all(near(got[e, :count], right[e, :count]) for e, count in enumerate(counts.tolist()) if count)
