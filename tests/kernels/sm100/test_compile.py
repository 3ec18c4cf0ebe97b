"""The Blackwell kernel, compiled without a GPU: what the code holds is what the plan says, and what NVIDIA derives.

Needs the CuTe DSL. The official persistent examples are compiled the same way where they are at hand (see
tests/emulator/official/fetch.py); their figures at this version of the DSL are recorded here too.
"""

from __future__ import annotations

import itertools
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from layoutgemm.kernels.compile.sass import Sass, disassemble
from layoutgemm.kernels.compile.sass import resources as resources_of
from layoutgemm.kernels.indexed.rows import IndexedRows, RowIndices
from layoutgemm.kernels.sm100.plan import Sm100Config, Sm100Plan
from tests.emulator.official.compiled import compiled as compiled_example
from tests.emulator.official.compiled import missing
from tests.emulator.official.examples import EXAMPLES
from tests.kernels.oracles import nvidia_map, run_program
from tests.oracle.ptx_constants import tcgen05_uses

pytestmark = pytest.mark.dsl


def derive(
    n: int = 128, blocks: int = 1, a: str = "f16", b: str = "f16:col", c: str = "f16", **config: Any
) -> Sm100Plan:
    return Sm100Plan.derive(512, 512, 512, a=a, b=b, c=c, config=Sm100Config((128 * blocks, n), **config))


# ------------------------------------------------------------------------------------------------- what the code says


def check_ptx(plan: Sm100Plan, ptx: str) -> None:
    """Every constant of the plan that PTX shows, bit by bit; AssertionError names the first that differs."""
    uses = tcgen05_uses(ptx)
    assert len(uses) == len(plan.a.descriptor.k_steps) == len(plan.b.descriptor.k_steps), f"{len(uses)} products"
    for block, use in enumerate(uses):
        assert (use.group, use.kind) == (plan.blocks, plan.mma.kind)
        assert use.says == plan.word.word, f"instruction descriptor {use.says:#010x}, not {plan.word.word:#010x}"
        for operand, word in ((plan.a, use.a), (plan.b, use.b)):
            want = operand.descriptor.word + (operand.descriptor.k_steps[block] >> 4)
            assert word == want, f"{operand.name}, K block {block}: {word:#018x}, the plan has {want:#018x}"

    def constant(register: str) -> int:
        return int(re.search(rf"mov\.b32\s+{register}, (\d+);", ptx)[1])

    inits = [constant(r) for r in re.findall(r"mbarrier\.init\.shared\S*\s+\[[^]]+\], (%r\d+);", ptx)]
    stages = [plan.full_arrivals, plan.empty_arrivals] * plan.stages
    assert inits == stages + [plan.acc_full_arrivals, plan.acc_empty_arrivals] * plan.accumulators
    promises = re.findall(r"mbarrier\.arrive\.expect_tx\S*\s+%rd\d+, \[[^]]+\], (%r\d+);", ptx)
    assert [constant(register) for register in promises] == [plan.full_bytes]
    group = f"cta_group::{plan.blocks}"
    assert set(re.findall(r"cta_group::[12]", ptx)) == {group}
    copies = len(plan.a.tma.instructions) + len(plan.b.tma.instructions)
    loads = re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared::(?:cta|cluster)\.global\S*", ptx)
    gathers = len(plan.a.tma.instructions) * plan.gathers
    assert sum("tile::gather4" in load for load in loads) == gathers
    assert len(loads) == copies and all(("cta_group::2" in load) == (plan.blocks == 2) for load in loads)
    commits = re.findall(r"tcgen05\.commit\S*", ptx)
    assert len(commits) == 2 and all(("multicast" in commit) == (plan.blocks == 2) for commit in commits)
    size = re.search(r"tcgen05\.alloc\S*\s+\[[^]]+\], (%r\d+);", ptx)
    assert size and constant(size[1]) == plan.columns and ".target sm_100a" in ptx


def check_sass(plan: Sm100Plan, code: Sass) -> None:
    """As many machine instructions of each kind as the plan implies: one product a K block, no copy of the loop."""
    products = code.count("UTCHMMA") + code.count("UTCQMMA")
    assert products == len(plan.a.descriptor.k_steps), code.counts
    assert code.count("UTCBAR") == 2  # a stage's commit, and the tile's
    scatters = sum(len(tma.instructions) for tma in plan.store.maps)
    assert not plan.scatters or code.count("UTMASTG") == scatters, code.counts
    assert code.count("UTMALDG") == len(plan.a.tma.instructions) + len(plan.b.tma.instructions)
    assert code.local_memory == (), [str(i) for i in code.local_memory]


CONFIGS = {
    "one block": derive(),
    "a pair": derive(blocks=2),
    "columns of bf16": derive(64, 2, "bf16:col", "bf16:row", "bf16:col"),
    "e4m3 times e5m2": derive(256, 2, "e4m3", "e5m2:row", "f32"),
    "tf32": derive(256, 1, "tf32", "tf32:col", "f32"),
    "chosen rows, a pair": Sm100Plan.derive(
        512, 512, 512, b="bf16:col", config=Sm100Config((256, 128)), indexed=IndexedRows(RowIndices(9), RowIndices(9))
    ),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "tf32")) for n in CONFIGS])
def test_the_code_matches_the_plan(name: str) -> None:
    plan = CONFIGS[name]
    compiled = plan.compile()
    check_ptx(plan, compiled.ptx)
    check_sass(plan, compiled.sass())
    used = compiled.resources
    assert used.local_bytes == used.stack_bytes == 0 and used.registers * plan.threads <= 65536


def test_a_changed_constant_is_seen_in_the_ptx() -> None:
    plan = CONFIGS["a pair"]
    ptx = plan.compile().ptx
    base = replace(plan.a.descriptor.base, stride_bytes=2048)
    for changed in (
        replace(plan, a=replace(plan.a, descriptor=replace(plan.a.descriptor, base=base))),
        replace(plan, b=replace(plan.b, descriptor=replace(plan.b.descriptor, k_steps=(0, 32, 64, 128)))),
        replace(plan, word=replace(plan.word, b_major="MN")),
        replace(plan, full_bytes=plan.full_bytes + 16),
        replace(plan, acc_empty_arrivals=4),
        replace(plan, columns=512),
        CONFIGS["one block"],
    ):
        with pytest.raises(AssertionError):
            check_ptx(changed, ptx)


# ------------------------------------------------------------------------------------- no worse than NVIDIA's examples

# nvidia-cutlass-dsl 4.8.1, dense_gemm_persistent.py, tiles of 128x128 and 256x128, f16 with tensor stores:
# (example, plan, UTCHMMA in the code, instructions, registers). K tiles of 64: four products each; theirs has the k
# tile three times.
OFFICIAL = (
    ("blackwell_persistent_1sm", CONFIGS["one block"], 12, 808, 40),
    ("blackwell_persistent_2sm", CONFIGS["a pair"], 12, 1024, 40),
    (
        "blackwell_persistent_1sm_bf16_f32out", derive(256, 1, "bf16", "bf16:col", "f32"), 12, 944, 52,
    ),
)  # fmt: skip


@pytest.mark.parametrize("name, plan, products, instructions, registers", OFFICIAL, ids=lambda v: str(v)[:40])
def test_no_worse_than_the_official_examples(
    name: str, plan: Sm100Plan, products: int, instructions: int, registers: int
) -> None:
    compiled = plan.compile()
    code, used = compiled.sass(), compiled.resources
    per_tile = len(plan.a.descriptor.k_steps)
    print(f"\n{name}: {len(code.instructions)}, {instructions} instructions; {used.registers}, {registers} registers")
    assert code.count("UTCHMMA") == per_tile == 4 and products % per_tile == 0
    assert (used.local_bytes, used.stack_bytes, code.local_memory) == (0, 0, ())
    assert used.registers <= registers and len(code.instructions) <= instructions


@pytest.mark.slow
@pytest.mark.parametrize("name, plan, products, instructions, registers", OFFICIAL, ids=lambda v: str(v)[:40])
def test_the_recorded_figures_are_those_of_the_examples(
    name: str, plan: Sm100Plan, products: int, instructions: int, registers: int
) -> None:
    if (reason := missing(EXAMPLES[name])) is not None:
        pytest.skip(reason)
    cubin = _cubin(compiled_example(EXAMPLES[name]).object)
    code, used = disassemble(cubin), resources_of(cubin)
    assert (code.count("UTCHMMA"), len(code.instructions), used.registers) == (products, instructions, registers)


def _cubin(object_: bytes) -> bytes:
    """The machine code in an exported object: the ELF file in it that is for CUDA."""
    at = object_.find(b"\x7fELF")
    while at >= 0:
        if struct.unpack_from("<H", object_, at + 18)[0] == 190:  # EM_CUDA
            return object_[at:]
        at = object_.find(b"\x7fELF", at + 4)
    raise AssertionError("the object has no CUDA code")


# --------------------------------------------------------------------------------------------------- what NVIDIA says


def request(m: int, n: int, a: str, b: str, majors: tuple[str, str], first: str) -> dict[str, Any]:
    return {"m": m, "n": n, "dtype": a, "b": b, "a_major": majors[0], "b_major": majors[1], "first": first}


def requests() -> list[dict[str, Any]]:
    """Every type and major, for one block and for a pair, and narrower swizzles.

    The first few cover most. `first` is the operand whose tensor map is compared.
    """
    majors = list(itertools.product(("K", "MN"), repeat=2))
    quick = [request(128, 128, "bf16", "bf16", both, "abba"[i]) for i, both in enumerate(majors)]
    quick += [request(256, 256, "e4m3", "e5m2", both, "abba"[i]) for i, both in enumerate(majors)]
    more = [request(256, 128, "bf16", "bf16", both, "baab"[i]) for i, both in enumerate(majors)]
    more += [request(128, 256, "e4m3", "e5m2", both, "baab"[i]) for i, both in enumerate(majors)]
    for m, n, kind, major in (
        (128, 48, "f16", "MN"), (128, 80, "f16", "MN"), (256, 96, "f16", "MN"), (256, 32, "bf16", "MN"),
        (128, 256, "tf32", "K"), (256, 192, "tf32", "K"), (128, 16, "e5m2", "K"), (256, 224, "bf16", "K"),
    ):  # fmt: skip
        more.append(request(m, n, kind, kind, ("K", major), "b"))
    return [*quick, *more]


QUICK = 8


def plan_of(request: dict[str, Any]) -> Sm100Plan:
    a = f"{request['dtype']}:{'row' if request['a_major'] == 'K' else 'col'}"
    b = f"{request['b']}:{'col' if request['b_major'] == 'K' else 'row'}"
    return derive(request["n"], request["m"] // 128, a, b, "f32", stages=2)


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["a few", "every request"]
)
def nvidia(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(request, what the DSL derives from its own layouts), in one subprocess."""
    asked = requests() if request.param else requests()[:QUICK]
    return list(zip(asked, run_program("dsl_sm100.py", str(tmp_path_factory.mktemp("nvidia")), asked), strict=True))


def misfits(plan: Sm100Plan, answer: dict[str, Any]) -> list[str]:
    """Differences from NVIDIA's derivation: descriptor words of every K block, instruction descriptor."""
    found = []
    if (answer["group"], answer["kind"]) != (plan.blocks, plan.mma.kind):
        found.append(f"{plan.mma}, NVIDIA has cta_group::{answer['group']}.kind::{answer['kind']}")
    if len(answer["uses"]) != len(plan.a.descriptor.k_steps):
        found.append(f"{len(plan.a.descriptor.k_steps)} K blocks, NVIDIA has {len(answer['uses'])}")
    for index, (a, b, says) in enumerate(answer["uses"]):
        for operand, word in ((plan.a, a), (plan.b, b)):
            ours = operand.descriptor.word + (operand.descriptor.k_steps[index] >> 4)
            if ours != word:
                found.append(f"{operand.name}, K block {index}: {ours:#018x}, NVIDIA derives {word:#018x}")
        if says != plan.word.word:
            found.append(f"instruction descriptor {plan.word.word:#010x}, NVIDIA derives {says:#010x}")
    return found


def test_words_equal_nvidias(nvidia: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    found = {str(request): misfits(plan_of(request), answer) for request, answer in nvidia}
    assert len(found) == len(nvidia) >= QUICK
    assert not any(found.values()), {request: why for request, why in found.items() if why}


def test_a_changed_word_is_seen_against_nvidia(nvidia: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    request, answer = nvidia[0]
    plan = plan_of(request)
    assert not misfits(plan, answer)
    descriptor = plan.a.descriptor
    for field, value in (("stride_bytes", 512), ("leading_bytes", 32), ("swizzle_name", "64B"), ("base_offset", 1)):
        changed = replace(descriptor, base=replace(descriptor.base, **{field: value}))
        assert misfits(replace(plan, a=replace(plan.a, descriptor=changed)), answer), field
    for field, value in (("n", 64), ("a_major", "MN"), ("negate_b", True)):
        assert misfits(replace(plan, word=replace(plan.word, **{field: value})), answer), field


# ------------------------------------------------------------------------------------- what the host half really does


def test_tensor_maps_equal_nvidias(
    recorder: str, nvidia: list[tuple[dict[str, Any], dict[str, Any]]], tmp_path: Path
) -> None:
    """The map that the DSL encodes for its own tile, and what the plan says: the same fields. The next test holds what
    our compiled host function gives the driver against the plan."""
    m, n, k, leading, address = 1000, 1200, 2000, 4096, 2**40 + 256
    asked = [
        {"object": answer["object"], "symbol": answer["symbol"], "arguments": [address, m, n, k, leading]}
        for _, answer in nvidia
    ]
    theirs = [nvidia_map(answer["calls"][-1]["map"]) for answer in run_program("host_launch.py", recorder, asked)]
    covered = set()
    for (request, _), want in zip(nvidia, theirs, strict=True):
        plan = plan_of(request)
        operand = plan.a if request["first"] == "a" else plan.b
        extents = {"m": m, "n": n, "k": k}
        ours = {
            "address": address,
            "rank": 2,
            "swizzle": operand.tma.driver_swizzle,
            "strides": [leading * operand.dtype.bytes],
            "dims": [extents[name] for name in operand.tma.dims],
            "box": list(operand.tma.box),
        }
        assert ours == want, request
        covered.add((request["first"], request["m"], operand.major, operand.dtype.bits))
    every = set(itertools.product("ab", (128, 256), ("K", "MN"), (8, 16)))
    assert covered >= (every if len(nvidia) > QUICK else {c for c in every if (c[1] == 128) == (c[3] == 16)})


def test_the_host_half_encodes_the_plan(recorder: str, tmp_path: Path) -> None:
    m, n, k, lda, ldb, ldc, workers = 1000, 1200, 2000, 4096, 2048, 8192, 5
    plans = [CONFIGS["a pair"], CONFIGS["columns of bf16"]]
    arguments = [2**40, 2**41, 2**42, m, n, k, 1, lda, ldb, ldc, 0, 0, 0, workers, 99]
    asked = []
    for number, plan in enumerate(plans):
        (tmp_path / f"{number}.o").write_bytes(plan.compile().object)
        symbol = plan.compile().symbol
        asked.append({"object": str(tmp_path / f"{number}.o"), "symbol": symbol, "arguments": arguments})
    extents = {"m": m, "n": n, "k": k}
    for plan, answer in zip(plans, run_program("host_launch.py", recorder, asked), strict=True):
        *maps, launch = answer["calls"]
        wanted = [(plan.a.tma, 2**40, lda), (plan.b.tma, 2**41, ldb), *[(t, 2**42, ldc) for t in plan.store.maps]]
        for made, (tma, address, leading) in zip(maps, wanted, strict=True):
            fields = ("address", "dims", "strides", "box", "swizzle", "rank")
            assert [made[field] for field in fields] == [
                address, [extents[d] for d in tma.dims], [leading * tma.dtype.bytes], list(tma.box),
                tma.driver_swizzle, 2,
            ]  # fmt: skip
        assert launch["grid"] == [workers * plan.blocks, 1, 1] and launch["block"] == [plan.threads, 1, 1]
        assert (launch["shared"], launch["stream"]) == (plan.smem.total, 99)
