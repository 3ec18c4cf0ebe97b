"""tf32 and integers in the production kernel: what is refused, what is rounded, what is exact, and the machine code."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from layoutgemm.dtypes import f32, tf32
from layoutgemm.emulator.api import emulate_host
from layoutgemm.emulator.host.launcher import HostFunction
from layoutgemm.errors import EmulatorError, OperandError, PlanError
from layoutgemm.kernels import GemmPlan, error_bound
from layoutgemm.kernels.epilogue.chain import Epilogue, Scale, VectorScale
from layoutgemm.kernels.epilogue.parameters import PlacedOperand, words_of
from layoutgemm.kernels.run.emulated import emulate_launch, host_parameters
from layoutgemm.kernels.run.hardware_model import unwritten
from layoutgemm.kernels.run.tensor_maps import tma_operand
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice, choose
from layoutgemm.kernels.sm90.plan import Sm90Plan
from layoutgemm.kernels.sm90.types import INPUTS, operands
from tests import needs
from tests.kernels.sm90.table import TABLE, small

dsl = needs.DSL
emulated = needs.C_COMPILER


def derive(a: str, b: str, c: str | None = None, m: int = 64, n: int = 32, k: int = 64, **config: Any) -> Sm90Plan:
    return GemmPlan.derive(m, n, k, a=a, b=b, c=c, config=small(64, 32, **config))


# ------------------------------------------------------------------------------------------------------ which types

REFUSED = [
    (("f32", None, None), r"a is f32; this kernel multiplies .*: say 'tf32' for f32 rounded to 11 bits"),
    (("bf16", "f32", None), r"b is f32; this kernel multiplies"),
    (("i4", None, None), r"a is i4; this kernel multiplies bf16, f16, e4m3, e5m2, tf32, i8, u8"),
    (("tf32:col", "tf32:col", None), r"a is tf32 col-major, and wgmma reads tf32 K-major alone: plan 'tf32:row'"),
    (("tf32", None, None), r"b is tf32 row-major, and wgmma reads tf32 K-major alone: plan 'tf32:col', and"),
    (("u8", "i8", None), r"b is i8 row-major, and wgmma reads i8 K-major alone: plan 'i8:col'"),
    (("e4m3", "e5m2", None), r"b is e5m2 row-major, and wgmma reads e5m2 K-major alone"),
    (("i8", "i8:col", "i8"), r"c is i8; of i8 inputs this kernel stores i32, f32, bf16, f16, e4m3, e5m2"),
    (("tf32", "tf32:col", "i32"), r"c is i32; of tf32 inputs this kernel stores f32, bf16, f16, e4m3, e5m2"),
]


@pytest.mark.parametrize("given, text", REFUSED)
def test_refusals_name_the_type(given: Any, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        operands(*given)


def test_pairs_of_types() -> None:
    """Both of one type, or any two of 8-bit floats, or of integers."""
    groups = ({"bf16"}, {"f16"}, {"tf32"}, {"e4m3", "e5m2"}, {"i8", "u8"})
    for a in INPUTS:
        for b in INPUTS:
            if any({a, b} <= group for group in groups):
                assert derive(a, f"{b}:col").mma.c_dtype.name == ("i32" if a in ("i8", "u8") else "f32")
            else:
                with pytest.raises(Exception, match=r"a is .* and b .*: no instruction multiplies them; convert"):
                    derive(a, f"{b}:col")


def test_a_stage_is_128_bytes_deep() -> None:
    for name, depth in (("tf32", 32), ("bf16", 64), ("i8", 128)):
        plan = derive(name, f"{name}:col")
        assert plan.tile[2] == depth and plan.full_bytes == (64 + 32) * 128
    with pytest.raises(Exception, match="N = 40 is none of them"):
        GemmPlan.derive(64, 64, 64, a="i8", b="i8:col", config=small(64, 40))


# ------------------------------------------------------------------------------------------------------------- tf32


def halves() -> Any:
    """(64, 32) f32 values, ties among them: A of a product with the identity, whose C is A as it was multiplied."""
    a = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    a.view(np.uint32)[0, :4] = [0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001]
    return a


@pytest.mark.parametrize("device", ["reference", pytest.param("emulator", marks=[dsl, emulated])])
def test_the_copy_rounds_to_nearest_even(device: str) -> None:
    a = halves()
    c = derive("tf32", "tf32:col", k=32).run(a, np.eye(32, dtype=np.float32), device=device).c
    assert np.array_equal(c, tf32.decode(tf32.encode(a))) and not np.array_equal(c, tf32.decode(a.view(np.uint32)))
    assert c[0, :4].view(np.uint32).tolist() == [0x3F800000, 0x3F804000, 0x3F800000, 0x3F802000]
    # B is rounded as well
    c = derive("tf32", "tf32:col", n=64, k=32).run(np.eye(64, 32, dtype=np.float32), a.T, device=device).c
    assert np.array_equal(c[:32], tf32.decode(tf32.encode(a)).T)


def test_the_tensor_map_is_one_that_rounds() -> None:
    plan = derive("tf32", "tf32:col")
    assert plan.a.tma.dtype == plan.b.tma.dtype == tf32
    assert plan.a.tma.over((64, 64), (256,)).kind.name == "TFLOAT32"
    assert "B: tf32, col-major in global memory, so K-major for wgmma, given as f32 and rounded to" in plan.explain()


def test_the_bound_of_tf32() -> None:
    """The bound holds for rounding to nearest, and would fail for truncation."""
    plan = derive("tf32", "tf32:col", m=70, n=40, k=300)
    rng = np.random.default_rng(1)
    a, b = (rng.uniform(0.5, 1, shape).astype(np.float32) for shape in ((70, 300), (300, 40)))
    exact = np.matmul(a, b, dtype=np.float64)
    bound = error_bound(plan, a, b)
    assert (np.abs(plan.run(a, b, device="reference").c - exact) <= bound).all()
    assert (bound <= (2.0**-10 + 2.0**-22 + 9 * 38 * 2.0**-23) * exact).all()
    cut = np.matmul(*(tf32.decode(x.view(np.uint32)) for x in (a, b)), dtype=np.float64)
    assert (np.abs(cut - exact) > bound).any()
    representable = [np.asarray(tf32.decode(tf32.encode(x))) for x in (a, b)]
    held = error_bound(plan, *representable)
    assert np.allclose(held, 9 * 38 * 2.0**-23 * np.matmul(*representable, dtype=np.float64))
    narrow = derive("tf32", "tf32:col", "bf16", m=70, n=40, k=300)
    assert (np.abs(narrow.run(a, b, device="reference").c - exact) <= error_bound(narrow, a, b)).all()


# --------------------------------------------------------------------------------------------------------- integers


def test_integers_stop_at_the_ends_of_int32() -> None:
    plan = derive("u8", "u8:col", m=3, n=8, k=33040)
    a, b = np.full((3, 33040), 255, np.uint8), np.full((33040, 8), 255, np.uint8)
    want = 2**31 - 1
    assert 255 * 255 * 33040 > want and ".satfinite" in plan.mma.ptx
    c = plan.run(a, b, device="reference").c
    assert c.dtype == np.int32 and (c == want).all() and not error_bound(plan, a, b).any()


def test_integer_sums_as_floats() -> None:
    """Rounded to f32 and then to C's type, within the bound; an epilogue has no integers."""
    rng = np.random.default_rng(2)
    a, b = rng.integers(100, 128, (70, 3000)).astype(np.int8), rng.integers(100, 128, (3000, 40)).astype(np.int8)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    assert exact.min() > 1 << 24
    single = derive("i8", "i8:col", "f32", m=70, n=40, k=3000)
    found = single.run(a, b, device="reference").c
    assert np.array_equal(found, exact.astype(np.float32)) and (found != exact).any()
    for c in ("f32", "bf16", "f16"):
        plan = derive("i8", "i8:col", c, m=70, n=40, k=3000 if c != "f16" else 4)
        part = exact if c != "f16" else a[:, :4].astype(np.int64) @ b[:4].astype(np.int64)
        error = np.abs(plan.run(a[:, : plan.k], b[: plan.k], device="reference").c - part)
        assert (error <= error_bound(plan, a[:, : plan.k], b[: plan.k])).all() and error.max() > 0
    with pytest.raises(PlanError, match="c is i32, and an epilogue computes in f32"):
        Sm90Plan.derive(64, 32, 64, a="i8", b="i8:col", config=small(64, 32), epilogue=Epilogue(Scale()))


@dsl
@emulated
def test_integer_sums_through_an_epilogue() -> None:
    """As quantised products are: a scale for each row and one for all, applied to the sums in f32."""
    m, n, k = 72, 48, 144
    epilogue = Epilogue(Scale(), VectorScale("m"))
    plan = Sm90Plan.derive(m, n, k, a="i8", b="u8:col", c="bf16", config=small(64, 32), epilogue=epilogue)
    rng = np.random.default_rng(3)
    a, b = rng.integers(-128, 128, (m, k)).astype(np.int8), rng.integers(0, 256, (n, k)).astype(np.uint8)
    scale = rng.integers(1, 5, m).astype(np.float32)
    words = unwritten(plan.c.dtype, (m, n))
    given = words_of(epilogue, {"alpha": 2.0**-7, "scale": PlacedOperand(f32.encode(scale))})
    sizes = (m, n, k, 1, k, k, n, 0, 0, 0, 2)
    done = emulate_launch(plan, (a.view(np.uint8), b, words, *sizes, *given), progress=False)
    assert not done.findings, done.report()
    want = (a.astype(np.int64) @ b.astype(np.int64).T) * scale[:, None] * np.float32(2.0**-7)
    assert np.array_equal(words, plan.c.dtype.encode(want.astype(np.float32)))


def test_integers_are_given_as_such() -> None:
    plan = derive("i8", "u8:col")
    a, b = np.full((64, 64), -2, np.int8), np.full((64, 32), 200, np.uint8)
    out = np.zeros((64, 32), np.int32)
    assert plan.run(a, b, out=out, device="reference").c is out and (out == -2 * 200 * 64).all()
    with pytest.raises(OperandError, match=r"a is float32; the plan's i8 is given as int8"):
        plan.run(a.astype(np.float32), b, device="reference")
    with pytest.raises(OperandError, match=r"b is int8; the plan's u8 is given as uint8"):
        plan.run(a, b.view(np.int8), device="reference")
    with pytest.raises(OperandError, match=r"out must be an int32 NumPy array, as the result is; got float32"):
        plan.run(a, b, out=out.astype(np.float32), device="reference")


def test_torch_tensors() -> None:
    torch = needs.module("torch")
    plan = derive("i8", "u8:col")
    a, b = torch.full((64, 64), -2, dtype=torch.int8), torch.full((64, 32), 200, dtype=torch.uint8)
    result = plan.run(a, b, device="reference")
    assert result.c.dtype == torch.int32 and bool((result.c == -2 * 200 * 64).all())
    assert np.asarray(result).dtype == np.int32
    with pytest.raises(OperandError, match=r"b is torch.int8, the plan takes torch.uint8"):
        plan.run(a, b.view(torch.int8), device="reference")
    single = derive("tf32", "tf32:col", k=32)
    result = single.run(torch.from_numpy(halves()), torch.eye(32), device="reference")
    assert result.c.dtype == torch.float32 and np.array_equal(np.asarray(result), tf32.decode(tf32.encode(halves())))


def test_operands_that_are_not_k_major_are_copied() -> None:
    torch = needs.module("torch")
    for name, kind in (("tf32", torch.float32), ("u8", torch.uint8)):
        plan = derive(name, f"{name}:col", n=48)
        copies: list[str] = []
        lying = torch.zeros(64, 48, dtype=kind)  # (K, N), N contiguous
        with pytest.raises(OperandError, match=r"b: the plan takes it col-major, but its strides are \(48, 1\)"):
            tma_operand(plan.b, lying, copies, False)
        lines, leading, _ = tma_operand(plan.b, lying, copies, True)
        assert leading == 64 and tuple(lines.shape) == (48, 64) and len(copies) == 1
        assert tma_operand(plan.b, torch.zeros(48, 64, dtype=kind).T, copies, False)[1] == 64 and len(copies) == 1


# ------------------------------------------------------------------------------------------- what the compiler made

CODE = {
    "tf32": ("HGMMA.64x72x8.F32.TF32", 1), "i8": ("IGMMA.64x48x32.S8.S8", 1),
    "i8 times u8 in clusters, early": ("IGMMA.64x48x32.S8.U8", 4),
    "u8 times i8 to columns": ("IGMMA.64x32x32.U8.S8", 1),
    "e4m3 times e5m2": ("QGMMA.64x48x32.F32.E4M3.E5M2", 1),
    "e5m2 times e4m3 in clusters": ("QGMMA.64x48x32.F32.E5M2.E4M3", 1),
}  # fmt: skip


@dsl
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * ("to columns" in n)) for n in CODE])
def test_the_instruction_is_the_types_own(name: str) -> None:
    """Four instructions a k tile of 128 bytes, back to back: nothing was serialised, nothing spilled."""
    opcode, tiles = CODE[name]
    code = TABLE[name].plan().compile().sass()
    assert sum(i.opcode.startswith(opcode) for i in code.instructions) == 4 * tiles, code.text
    # two blocks of M in one run, then the last k tile's one by one
    assert code.wgmma_runs == ((8, 4, 4) if tiles == 4 else (4 * tiles,)) and not code.local_memory


PLANTED = [
    (r"^.*wgmma\.wait_group.*\n", 0, "in flight|race"),
    (r"^.*wgmma\.wait_group.*\n", -1, "in flight|race"),
    (r"^.*wgmma\.fence.*\n", 0, "fence"),
]


@dsl
@emulated
@pytest.mark.parametrize("pattern, which, said", PLANTED)
def test_omissions_in_the_tied_form_are_found(pattern: str, which: int, said: str) -> None:
    """The accumulator's registers are tied by hand for tf32: what orders their use is missed when it is gone."""
    plan = TABLE["tf32"].plan()
    compiled = plan.compile()
    start, end = [match.span() for match in re.finditer(pattern, compiled.ptx, re.M)][which]
    text = compiled.ptx[:start] + compiled.ptx[end:]
    host = HostFunction.link(compiled.object, text, host_parameters(plan.parameters))
    m, n, k = 64, 72, 104
    ones = [f32.encode(np.ones(shape, np.float32)) for shape in ((m, k), (n, k))]
    words = unwritten(plan.c.dtype, (m, n))
    try:
        done = emulate_host(host, (*ones, words, m, n, k, 1, k, k, n, 0, 0, 0, 1), progress=False)
    except EmulatorError as error:
        assert re.search(said, str(error)), error
        return
    assert re.search(said, done.report()), done.report()


# ------------------------------------------------------------------------------------------------------- the choice


SIZES = [
    *[(8192, 8192, 8192), (16, 6144, 4096), (24, 2000, 8192)],
    *[pytest.param(sizes, marks=pytest.mark.slow) for sizes in (
        (4096, 6144, 4096), (1000, 520, 300), (512, 14336, 4096), (64, 4096, 14336), (16, 4096, 4096), (5, 1000, 200),
    )],
]  # fmt: skip


@pytest.mark.parametrize("name", ["tf32", "i8", "e4m3"])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_choice_for_every_type(name: str, sizes: tuple[int, int, int]) -> None:
    choice, why = choose(*sizes, a=name)
    plan: Sm90Plan = choice.plan(*sizes, a=name, b=f"{name}:col")
    assert plan.check(), str(plan.check())
    assert why and isinstance(choice, Sm90Choice) and name in plan.explain()
