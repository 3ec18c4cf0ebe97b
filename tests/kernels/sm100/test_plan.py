"""Plans of the Blackwell kernel: what is derived, what is refused and why, that every check can fail, the executor."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import smem_tile, tcgen05_mma
from layoutgemm.atoms.smem.instruction_descriptor import InstructionDescriptor
from layoutgemm.errors import LayoutError
from layoutgemm.kernels import AlongK, GemmPlan, Sm90Plan, error_bound
from layoutgemm.kernels.compile.compiler import kernel_facts
from layoutgemm.kernels.operands.promoted import mainloop_of
from layoutgemm.kernels.sm100.explain import barriers, roles
from layoutgemm.kernels.sm100.plan import Sm100Config, Sm100Plan
from layoutgemm.schedule import Grouped, Persistent
from tests.kernels.plan_mutants import Stuck, outcome, values, with_chunk
from tests.kernels.sm100.table import LATER, TABLE, one, pair

NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in LATER)) for name in TABLE]


def derive(m: int = 300, n: int = 200, k: int = 200, *, a: Any = "bf16", b: Any = "bf16:col", c: Any = "bf16",
           batch: int = 1, config: Sm100Config | None = None, **more: Any) -> Sm100Plan:  # fmt: skip
    return GemmPlan.derive(m, n, k, a=a, b=b, c=c, batch=batch, config=config or one(64), **more)


# ----------------------------------------------------------------------------------------------------------- derivation


def test_the_config_or_the_architecture_chooses_the_kernel() -> None:
    plan = derive()
    assert isinstance(plan, Sm100Plan) and isinstance(GemmPlan.derive(64, 64, 64, arch="sm_100a"), Sm100Plan)
    assert isinstance(GemmPlan.derive(64, 64, 64), Sm90Plan)
    assert plan == derive() and hash(plan) == hash(derive()) and pickle.loads(pickle.dumps(plan)) == plan
    assert kernel_facts(plan) == kernel_facts(derive(9, 9, 9)) != kernel_facts(derive(c="f16"))
    assert kernel_facts(plan)["arch"] == "sm_100a"
    own = [GemmPlan.derive(64, 64, 64, a=a, b=f"{a}:col", arch="sm_100a").c.dtype.name for a in ("f16", "e4m3", "tf32")]
    assert own == ["f16", "bf16", "f32"]


@pytest.mark.parametrize("name", NAMES)
def test_every_plan_of_the_table_holds(name: str) -> None:
    report = TABLE[name].plan().check()
    assert report, str(report)
    assert len(report) == 26


def test_a_pair_has_half_of_each_operand_and_twice_the_bytes() -> None:
    alone, both = derive(config=one(128)), derive(config=pair(128))
    assert (alone.a.smem.extent, alone.b.smem.extent) == ((128, 64), (128, 64))
    assert (both.a.smem.extent, both.b.smem.extent) == ((128, 64), (64, 64))
    assert (alone.full_bytes, both.full_bytes) == (32768, 49152)
    assert (alone.acc_empty_arrivals, both.acc_empty_arrivals) == (4, 8)
    assert (alone.both, both.both) == (None, 3)
    assert both.mma.accumulator.columns == 128 and both.columns == 256


def test_the_plans_text_states_the_basis_of_its_claims() -> None:
    plan = derive(config=pair(96), c="f16:col")
    text = plan.explain()
    for part in (
        "0x8000402000010000" if plan.a.smem.swizzle_name == "64B" else "0x4000404000010000", f"{plan.word.word:#010x}",
        "M of the instruction", "accumulator i at column i*96", "256 columns allocated", "tcgen05.ld.sync.aligned",
        "no device of this architecture has run it", "warp 4 of the even block",
    ):  # fmt: skip
        assert part in text, part
    assert [tuple(row) for row in barriers(plan)] == [
        ("full[s]", "mbarrier", f"1 arrival, the loader's arrive.expect_tx, and {plan.full_bytes} bytes", "mma"),
        ("empty[s]", "mbarrier", "1 arrival, the mma's commit", "loader"),
        ("acc_full[i]", "mbarrier", "1 arrival, the mma's commit", "epilogue"),
        ("acc_empty[i]", "mbarrier", "8 arrivals, the epilogue's warps", "mma"),
        ("cluster", "cluster", "2 * 192 threads", "all roles"),
    ]


def test_the_picture_is_the_load_of_tensor_memory() -> None:
    svg = derive(config=one(96, width=16)).svg()
    assert "tcgen05.ld.sync.aligned.32x32b.x16.b32" in svg
    # a thread has a row, a register a column
    assert svg.count(">T31</text>") == 16 and svg.count(">V15</text>") == 32 and ">V16</text>" not in svg
    assert barriers(derive())[-1] == ("block", "named 0", "192 threads", "all roles")


def test_the_docstring_of_the_kernel_has_the_rows_of_the_plans() -> None:
    """Roles, names and kinds of barriers, computed from plans, against the tables that people read."""
    program = Path(__file__).parents[3] / "layoutgemm/kernels/sm100/device/gemm.py"
    text = program.read_text(encoding="utf-8").split('"""')[1]
    table = text.split("waited for by\n")[1].split("\n\n")[0].splitlines()[1:]
    rows = [re.split(r"  +", row.strip()) for row in table if row[4] != " "]
    rows = [row for row in rows if row[0] != "block"]
    told = {(row[0], row[1].split()[0], row[-1].removeprefix("the ").split("'")[0]) for row in rows}
    computed = {(row.name, row.kind, row.waits) for row in barriers(derive()) if row.name != "block"}
    assert told == computed
    said = {(row[0], row[1]) for row in (re.split(r"  +", line.strip()) for line in text.splitlines()) if len(row) == 3}
    want = {(row.name, row.who.replace("warps 0 to 3", "warps 0-3")) for row in roles(derive())}
    assert want <= said


# ------------------------------------------------------------------------------------------------------------- refusals

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: derive(m=0), "m = 0: a size is 1 to 2"),
    (lambda: derive(k=2**31), "k = 2147483648: a size"),
    (lambda: derive(n=True), "n of plan must be an integer"),
    (lambda: derive(batch=2.0), "batch of plan must be an integer"),
    (lambda: GemmPlan.derive(64, 64, 64, arch="sm_80", config=one()), "sm_80 takes a Sm80Config"),
    (lambda: derive(a="f32"), "a is f32; this kernel multiplies"),
    (
        lambda: derive(c="i8"),
        "bf16 inputs this kernel stores f32, bf16, f16, e4m3, e5m2: store f32 and convert it",
    ),
    (lambda: derive(a="i8", b="i8:col", c="i8"), "of i8 inputs this kernel stores i32, f32, bf16, f16, e4m3, e5m2"),
    (
        lambda: derive(a="i8", b="i8:col", arch="sm_103a"),
        "kind::i8 is for sm_100a, sm_110a, not for sm_103a; config=Sm80",
    ),
    (
        lambda: derive(a="i8", b="i8:col", mainloop=mainloop_of((1, 128)), k=128),
        "mainloop: a is i8, whose sums are exact",
    ),
    (lambda: derive(a="i8:col", b="i8", batch=2, along_k=AlongK.of(2)), "a is i8: groups along K are of 16-bit"),
    (lambda: derive(a="e4m3", b="bf16:col"), "a is e4m3 and b bf16: no instruction multiplies them; convert a to bf16"),
    (lambda: derive(a="f16", b="bf16:col"), "a is f16 and b bf16: no instruction multiplies them"),
    (lambda: derive(a="tf32:col", b="tf32:col"), "a is tf32 col-major: the instruction reads an MN-major tf32 under"),
    (lambda: derive(a="tf32", b="tf32"), "b is tf32 row-major"),
    (lambda: Sm100Config((64, 64)), "a tile of 64 rows: one CTA takes 128, a pair 256"),
    (lambda: one(24), "a tile of 24 columns: a multiple of 16 up to 256 for 128 rows"),
    (lambda: pair(48), "a multiple of 32 up to 256 for 256 rows"),
    (lambda: one(272), "a tile of 272 columns"),
    (lambda: one(256, accumulators=3), "3 accumulators of 256 columns are 768; tensor memory has 512"),
    (lambda: Sm100Config((128,)), "tile of Sm100Config must be 2 integers or None, not (128,)"),
    (lambda: Sm100Config((128, True)), "tile of Sm100Config must be 2 integers or None, not (128, True)"),
    (lambda: one(accumulators=0), "accumulators of Sm100Config must be at least 1, not 0"),
    (lambda: one(along="K"), "along = 'K': known are 'M', 'N'"),
    (lambda: one(overlap=1), "overlap of Sm100Config must be True or False, not 1"),
    (lambda: derive(config=one(width=24)), "width = 24: known are 16, 32, 64, 128"),
    (lambda: derive(config=one(tile_k=24)), "tile_k = 24: a positive multiple of the instruction's K = 16"),
    (lambda: derive(config=one(stages=1)), "1 stage(s), and at least 2, of A 16384 + B 4096 bytes beside 16384"),
    (lambda: derive(config=one(stages=40)), "10 fit into 232448"),
    (lambda: derive(m=2**31 - 1, n=2**31 - 1), "tiles: a tile's number goes up to"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals(number: int) -> None:
    make, text = REFUSED[number]
    with pytest.raises(LayoutError) as error:
        make()
    assert text in str(error.value)


# ------------------------------------------------------------------------------------------------- every check can fail


def mutants() -> Iterator[tuple[str, str, Sm100Plan]]:
    """(check, what is changed, plan)."""
    plan = derive(config=one(80, chunks=2, width=64, stages=2))
    assert plan.check()
    other = derive(config=one(80, tile_k=32, chunks=2, width=64, stages=2))
    smem, store, a, b = plan.smem, plan.store, plan.a, plan.b
    yield "tiles of C", "order", replace(plan, order=Persistent(Stuck("M", 8), 1))
    yield "tiles of C", "cluster of the order", replace(plan, order=Persistent(Grouped("M", 8), 1, (2, 1)))
    yield "tiles of C", "rows", replace(plan, tile=(64, 80, 64))
    yield "tiles of K", "depth", replace(plan, tile=(128, 80, 32))
    yield "tile A", "layout", replace(plan, a=replace(a, smem=replace(a.smem, layout=Layout((128, 64), (0, 1)))))
    yield "tile B", "layout", replace(plan, b=replace(b, smem=replace(b.smem, layout=Layout((80, 64), (0, 1)))))
    for operand in (a, b):  # rows of 128 bytes without a swizzle: eight of them begin in one bank
        bare = replace(smem_tile(operand.smem.extent, "bf16", "K", "none"), layout=Layout(operand.smem.extent, (64, 1)))
        lower = operand.name.lower()
        yield f"banks {operand.name}", "no swizzle", replace(plan, **{lower: replace(operand, smem=bare)})
    yield "copy A", "copies", replace(plan, a=replace(a, tma=other.a.tma))
    yield "copy B", "box", replace(plan, b=replace(b, tma=replace(b.tma, box=(64, 40))))
    yield "share A", "half of it", replace(plan, a=replace(a, smem=smem_tile((64, 64), "bf16", "K")))
    yield "share B", "multicast", replace(plan, b=replace(b, tma=replace(b.tma, multicast=2)))
    yield "share A", "steps", replace(plan, a=replace(a, descriptor=replace(a.descriptor, k_steps=(0, 32))))
    yield "descriptor A", "word", replace(plan, a=replace(a, descriptor=other.a.descriptor))
    base = replace(b.descriptor.base, stride_bytes=512)
    yield "descriptor B", "stride", replace(plan, b=replace(b, descriptor=replace(b.descriptor, base=base)))
    for what, change in (
        ("M, N", {"n": 96}), ("a major", {"a_major": "MN"}), ("types", {"b": "f16", "a": "f16"}),
        ("negation", {"negate_a": True}),
    ):  # fmt: skip
        yield "instruction", what, replace(plan, word=replace(plan.word, **change))
    yield "instruction", "atom", replace(plan, mma=tcgen05_mma("f16", 128, 64, "bf16"))
    yield "columns", "too few", replace(plan, columns=128)
    yield "columns", "no power of two", replace(plan, columns=160)
    yield "tensor memory", "accumulators", replace(plan, accumulators=7)
    yield "loads", "a column", with_chunk(plan, column=8)
    yield "loads", "the other half", with_chunk(plan, width=32)
    yield "columns of C", "width", with_chunk(plan, width=32)
    yield "columns of C", "offset", with_chunk(plan, offset=64)
    yield "columns of C", "buffer", replace(plan, store=replace(store, buffer_bytes=2048))
    yield "columns of C", "type", replace(plan, c=derive(c="f16").c)
    yield "boxes of C", "map", with_chunk(plan, map=1)
    yield "boxes of C", "box", replace(plan, store=replace(store, maps=(store.maps[1], store.maps[1])))
    first, *others = store.maps
    for what, wrong in (
        ("dimensions", replace(first, dims=first.dims[::-1])), ("a load", replace(first, operation="load")),
    ):  # fmt: skip
        yield "boxes of C", what, replace(plan, store=replace(store, maps=(wrong, *others)))
    plain = smem_tile((32, 64), "bf16", "K", "none")
    mixed = replace(plain, layout=Layout((32, 64), (1, 32)))
    yield "rows of C", "tile", with_chunk(plan, tile=mixed)
    yield "boxes of C", "swizzle", with_chunk(plan, tile=plain)
    yield "banks C", "no swizzle", with_chunk(plan, tile=replace(plain, layout=Layout((32, 64), (64, 1))))
    yield "barriers", "bytes", replace(plan, full_bytes=plan.full_bytes + 16)
    yield "pipeline", "bytes", replace(plan, full_bytes=plan.full_bytes + 16)
    yield "barriers", "arrivals of a tile", replace(plan, acc_empty_arrivals=3)
    yield "pipeline", "arrivals of a tile", replace(plan, acc_empty_arrivals=3)
    yield "pipeline", "arrivals at full", replace(plan, full_arrivals=2)
    yield "barriers", "commits", replace(plan, empty_arrivals=2)
    yield "pipeline", "commits", replace(plan, acc_full_arrivals=2)
    yield "shared map", "B over A", replace(plan, smem=replace(smem, b_offset=smem.b_offset - 1024))
    yield "shared map", "barriers", replace(plan, smem=replace(smem, acc_full_offset=smem.empty_offset))
    yield "shared map", "address", replace(plan, smem=replace(smem, slot_offset=smem.acc_empty_offset + 8))
    yield "shared map", "total", replace(plan, smem=replace(smem, total=smem.total - 8))
    yield "shared memory", "stages", replace(plan, stages=9)
    yield "threads", "threads", replace(plan, threads=160)
    yield "registers", "threads", replace(plan, threads=1024)  # 64 registers each, as many as a load brings
    both = derive(config=pair(64, stages=2))
    yield "barriers", "bytes of one block", replace(both, full_bytes=both.full_bytes // 2)
    yield "pipeline", "arrivals of one block", replace(both, acc_empty_arrivals=4)
    yield "share B", "all of B", replace(both, b=derive(config=one(64)).b)
    yield "instruction", "one block's", replace(both, word=derive(config=one(64)).word)
    ring = derive(config=one(96, width=32, buffers=2, stages=2))  # three rounds through two buffers

    class Hasty(type(ring.store)):
        def pending(self, number: int) -> int:
            return int(self.buffers) - 1

    hasty = Hasty(**{name: getattr(ring.store, name) for name in ring.store.__dataclass_fields__})
    yield "pipeline", "stores that are waited for", replace(ring, store=hasty)


def test_every_check_can_fail() -> None:
    seen = set()
    for check, what, plan in mutants():
        failed = {found.name: found for found in plan.check().failures}
        assert check in failed, f"{check}, {what}: {plan.check()}"
        assert failed[check].witness, f"{check}, {what}"
        seen.add(check)
    names = {found.name for found in derive(config=one(80, chunks=2, width=64, stages=2)).check()}
    assert names == seen


def test_the_word_is_that_of_the_tile() -> None:
    plan = derive(a="e4m3:col", b="e5m2:row", config=pair(96))
    says = InstructionDescriptor.decode(plan.word.word, "f8f6f4")
    assert (says.m, says.n, says.a.name, says.b.name) == (256, 96, "e4m3", "e5m2")
    assert (says.a_major, says.b_major) == ("MN", "MN")


# --------------------------------------------------------------------------------------------------- running on the CPU


@pytest.mark.parametrize("name", NAMES)
def test_the_executor_is_exact(name: str) -> None:
    plan = TABLE[name].plan()
    a, b, want = (x if plan.batch > 1 else x[0] for x in TABLE[name].values())
    result = plan.run(a, b, device="reference")
    assert result.ran_on == "NumPy executor" and result.c.shape == want.shape and np.array_equal(result.c, want)


def test_integer_sums_stop_at_the_ends_of_int32() -> None:
    for a_type, worst in (("u8", 2**31 // 255**2 + 130), ("i8", 2**31 // (127 * 128) + 130)):
        k = worst // 128 * 128
        plan = derive(1, 2, k, a=a_type, b=f"{a_type}:col", c="i32", config=one(16))
        a, b = np.full((1, k), 255 if a_type == "u8" else -128), np.full((k, 2), 255 if a_type == "u8" else 127)
        b[:, 1] = 1
        kind = np.uint8 if a_type == "u8" else np.int8
        want = np.clip(a @ b, -(2**31), 2**31 - 1)
        assert abs(int(want[0, 0])) >= 2**31 - 1 and np.abs((a @ b)[0, 0]) > 2**31
        assert np.array_equal(plan.run(a.astype(kind), b.astype(kind), device="reference").c, want)


def test_real_values_within_the_bound() -> None:
    rng = np.random.default_rng(1)
    for a_type, b_type, c_type in (
        ("bf16", "bf16:col", "f32"), ("f16:col", "f16", "f16"), ("e4m3", "e5m2:col", "bf16"),
        ("tf32", "tf32:col", "f32"),
    ):  # fmt: skip
        plan = derive(70, 40, 300, a=a_type, b=b_type, c=c_type)
        operands = []
        for op, shape in ((plan.a, (70, 300)), (plan.b, (300, 40))):
            given = rng.standard_normal(shape).astype(np.float32) / 4
            operands.append(np.asarray(op.dtype.decode(op.dtype.encode(given)), np.float32))
        error = np.abs(plan.run(*operands, device="reference").c - np.matmul(*operands, dtype=np.float64))
        assert (error <= error_bound(plan, *operands)).all() and error.max() > 0


def test_wrong_plans_give_wrong_products() -> None:
    plan = derive(300, 60, 136, config=pair(64, chunks=2, width=32, stages=2, tile_k=32))
    assert outcome(plan) == ""
    wrong = {
        "bytes": replace(plan, full_bytes=plan.full_bytes // 2),
        "commits": replace(plan, empty_arrivals=2),
        "order": replace(plan, order=Persistent(Stuck("M", 8), 1)),
        "a chunk's column": with_chunk(plan, column=16),
        "B over A": replace(plan, smem=replace(plan.smem, b_offset=0)),
        "one K block": replace(plan, a=replace(plan.a, descriptor=replace(plan.a.descriptor, k_steps=(32, 0)))),
        "a step": replace(plan, b=replace(plan.b, descriptor=replace(plan.b.descriptor, k_steps=(0, 0)))),
    }
    assert [name for name, mutant in wrong.items() if not outcome(mutant)] == []


def test_operands_as_they_come() -> None:
    plan = derive(8, 16, 17, batch=2)
    a, b, want = values(plan)
    out = np.empty((2, 8, 16), np.float32)
    result = plan.run(a, b, out=out, device="reference")
    assert result.c is out and np.array_equal(out, want) and "copied with pitch 24" in result.copies[0]
    with pytest.raises(LayoutError, match="copy=True makes a copy"):
        plan.run(a, b, device="reference", copy=False)
    with pytest.raises(LayoutError, match="a has shape"):
        plan.run(a[0], b, device="reference")
    a[0, 0], a[1, 0] = np.nan, np.inf
    c = plan.run(a, np.abs(b) + 1, device="reference").c
    assert np.isnan(c[0, 0]).all() and np.isposinf(c[1, 0]).all() and np.isfinite(c[0, 1:]).all()
