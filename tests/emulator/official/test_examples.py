"""NVIDIA's own kernels in the emulator: right, and without a finding, but for those that are real and named here.

The examples are downloaded once (`official/fetch.py`) and compiled without a GPU; PTX and host function are cached, so
that a second run imports no cutlass. A few run always, the whole set is marked slow.
"""

from __future__ import annotations

import pytest

from layoutgemm.emulator.findings import Counts
from layoutgemm.emulator.machine.interpreter import Policy, PtxMachine
from layoutgemm.emulator.mutation.run import sample, verdict
from layoutgemm.emulator.mutation.survivors import PROVEN
from layoutgemm.emulator.ops import build
from layoutgemm.emulator.ptx.program import Program
from layoutgemm.kernels.compile.compiler import dsl_version
from tests import needs
from tests.emulator.official import survivors
from tests.emulator.official.compiled import missing
from tests.emulator.official.examples import EXAMPLES, Example, Shape
from tests.emulator.official.mutants import Judge, mutants_of
from tests.emulator.official.running import ORDERS, case, cases, kernel, repaired

FEW = (
    "ampere_tensorop_f16_mnn", "hopper_dense_f16_2x1", "hopper_dense_e4m3", "hopper_persistent_f16_2x1",
    "blackwell_dense_1sm", "blackwell_persistent_2sm", "blackwell_nvf4_2sm", "blackwell_mxf8",
    "blackwell_dynamic_2sm", "geforce_nvf4_pingpong",
)  # fmt: skip

# What is wrong in an example by PTX's word, and is reported at most of its shapes.
REAL = {
    # One barrier for each sub-tile of the epilogue where Hopper's example has two: the next tile's stmatrix is not
    # ordered after the bulk store that reads the buffer, unless the pipeline of a long k does it by chance.
    "geforce_f16": "race: stmatrix",
    "geforce_bf16_mnn": "race: stmatrix",
}
# Kernels whose shapes reach every instruction, but for these: a look at the barrier of the k tile after the last one.
LOOK = ["shl.b32", "add.s32", "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"]
REACHED: dict[str, list[str]] = {
    "ampere_tensorop_f16_kkn": [],
    "ampere_sgemm": [],
    "hopper_dense_f16": [],
    "hopper_dense_e4m3": [],
    "hopper_persistent_f16_2x1": [],
    "hopper_fp8_2xacc": [],
    "blackwell_dense_1sm": [],
    "blackwell_persistent_1sm": LOOK,
    "blackwell_persistent_2sm": [*LOOK, "mov.b32"],
    "blackwell_alpha_beta": LOOK,
    "blackwell_nvf4": [],
    "blackwell_mxf8": [],
    "blackwell_blockwise": [],
    "blackwell_mixed_s8_bf16": [],
    "geforce_f16": [],
    "geforce_nvf4_cooperative": [],
    "geforce_nvf4_pingpong": [],
}
QUICK = ("hopper_dense_e4m3", "blackwell_persistent_1sm", "blackwell_mxf8")


def example_or_skip(name: str) -> Example:
    example = EXAMPLES[name]
    if (reason := missing(example)) is not None:
        pytest.skip(reason)
    needs.c_compiler()
    return example


def run(example: Example, shape: Shape, policy: Policy | None = None) -> None:
    wrong, _ = verdict(kernel(example), case(example, shape, policy))
    real = REAL.get(example.name)
    assert not wrong or (real is not None and wrong.startswith(real)), wrong


@pytest.mark.parametrize("name", FEW)
def test_an_example_is_exact_and_clean(name: str) -> None:
    """The smallest shape and a ragged or long one, in different orders in turn."""
    example = example_or_skip(name)
    for shape, policy in zip((example.shapes[0], example.shapes[-2]), ORDERS, strict=False):
        run(example, shape, policy)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if EXAMPLES[name].shapes])
def test_every_example_is_exact_and_clean_at_all_shapes(name: str) -> None:
    example = example_or_skip(name)
    for number, shape in enumerate(example.shapes):
        run(example, shape, ORDERS[number % len(ORDERS)])


def test_the_race_of_the_geforce_example() -> None:
    """Two tiles for each block and k of two tiles: the second tile's stmatrix meets the first tile's pending store."""
    example = example_or_skip("geforce_f16")
    wrong, _ = verdict(kernel(example), case(example, (256, 128, 128, 1)))
    assert wrong.startswith("race: stmatrix") and "cp.async.bulk.tensor.3d.global.shared::cta" in wrong
    # A barrier of the four warps before each sub-tile's writes is what is missing.
    assert verdict(repaired(example), case(example, (256, 128, 128, 1)))[0] == ""
    assert verdict(kernel(example), case(example, (256, 128, 256, 1)))[0] == ""  # a longer k orders them by chance
    assert verdict(kernel(example), case(example, (128, 128, 128, 1)))[0] == ""  # one tile


# By PTX's word one lane's arrival does not release what the other lanes have read (FINDINGS.md).
WORD = {
    "blackwell_alpha_beta": ((128, 128, 64, 1), "ld.shared"),
    "geforce_f16": ((216, 120, 184, 1), "ldmatrix"),
    "geforce_bf16_mnn": ((88, 56, 184, 1), "ldmatrix"),
}
STRICT = Policy(lanes="strict")


@pytest.mark.parametrize(
    "name", [n if n == "blackwell_alpha_beta" else pytest.param(n, marks=pytest.mark.slow) for n in WORD]
)
def test_one_lane_releases_a_buffer_that_all_lanes_read(name: str) -> None:
    example, (shape, read) = example_or_skip(name), WORD[name]
    wrong, _ = verdict(repaired(example), case(example, shape, STRICT))
    assert wrong.startswith("race: cp.async.bulk.tensor") and f"before it, {read}" in wrong, wrong
    assert verdict(repaired(example), case(example, shape))[0] == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if EXAMPLES[name].shapes and name not in WORD])
def test_every_other_example_keeps_to_the_word_about_lanes(name: str) -> None:
    example = example_or_skip(name)
    for shape in (example.shapes[0], example.shapes[-2]):
        run(example, shape, STRICT)


def test_setmaxnreg_of_warps_that_differ_is_said() -> None:
    """On sm_100 and sm_120 it is lint: their hardware's behaviour is unknown here (FINDINGS.md)."""
    example = example_or_skip("blackwell_mixed_s8_bf16")
    machine = PtxMachine(Program(kernel(example), build), case(example, example.shapes[0]).launch())
    machine.run()
    assert {finding.kind for finding in machine.findings.found} == {"lint"}
    assert any("setmaxnreg to 24, where warp 4" in finding.message for finding in machine.findings.found)


def test_the_missing_fence_of_the_fp8_example() -> None:
    """The promotion reads accumulators without the wgmma.fence that PTX asks for afterwards.

    It reads them after wgmma.wait_group, and the next wgmma.mma_async writes them. Practice differs from PTX, so the
    check is a switch.
    """
    example, strict = example_or_skip("hopper_fp8_2xacc"), Policy(register_strict=True)
    wrong, _ = verdict(kernel(example), case(example, (128, 128, 256, 1), strict))
    assert wrong.startswith("protocol: no wgmma.fence between the last access")
    assert verdict(kernel(example), case(example, (128, 128, 256, 1)))[0] == ""
    assert verdict(kernel(example), case(example, (128, 128, 128, 1), strict))[0] == ""  # one k tile: nothing follows


def test_the_unwritten_memory_that_the_sgemm_example_reads() -> None:
    """The prefetch of the next k tile's registers is not guarded: with one k tile nothing was loaded there. The values
    are not used."""
    example = example_or_skip("ampere_sgemm")
    one = case(example, (128, 128, 8, 1))
    launch = one.launch()
    machine = PtxMachine(Program(kernel(example), build), launch)
    machine.run()
    assert not machine.findings.found and one.check(launch) is None
    assert {finding.kind for finding in machine.suspects.found} == {"uninitialised"}
    assert all(finding.text.startswith("ld.shared.v4") for finding in machine.suspects.found)
    assert verdict(kernel(example), case(example, (128, 128, 16, 1)))[0] == ""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in REACHED]
)
def test_the_shapes_reach_every_instruction(name: str) -> None:
    example = example_or_skip(name)
    whole = Counts(executed=bytearray(len(kernel(example).instructions)))
    for one in cases(example, (Policy(), Policy(waits="reluctant"))):
        wrong, counts = verdict(kernel(example), one)
        assert not wrong or wrong.startswith(REAL.get(name, "no")), wrong
        whole.merge(counts)
    assert [ins.opcode for ins in whole.unreached(kernel(example))] == REACHED[name]


# Survivors of which no comparison of runs is a proof, (example, instruction, number), with the argument.
_SPARE_REPAIR = (
    "It is of `running.repaired`, which puts a barrier before each of two stmatrix with an address computed between "
    "them: the second of the two keeps apart nothing that the example shares."
)
_CONSTANT = "Coordinate 0 of the scale factors' loads is a register that one `mov.b32 %r, 0` writes: it is 0 anyway."
_SCALES = "cp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
_NVF4 = ("blackwell_nvf4", "geforce_nvf4_cooperative", "geforce_nvf4_pingpong")
ARGUED = {
    **{(name, _SCALES, number): _CONSTANT for name in _NVF4 for number in (0, 1)},
    ("geforce_bf16_mnn", "bar.sync", 3): _SPARE_REPAIR,
    ("geforce_bf16_mnn", "bar.sync", 6): _SPARE_REPAIR,
    ("geforce_nvf4_pingpong", "bar.sync", 2): (
        "Before a warpgroup writes C's buffer this barrier orders the ldmatrix of its other warps before that, and "
        "nothing else. Those read the three stages of A, B and their scales, below byte 56320, whichever stage it is: "
        "it is 0, x - 3 * trunc(x / 3) of a count of k tiles, or one more with 0 for 3, and 9 k tiles reach all three. "
        "C's buffer lies from there on. That an earlier tile's store has read it, of this warpgroup or the other one, "
        "every thread knows without the barrier: all 128 of a warpgroup arrive at the other's mbarrier after the wait "
        "for the store, and each of those waits there before it writes."
    ),
}


def test_each_survivor_has_a_proof() -> None:
    argued = set()
    for name, one in survivors.read().items():
        assert name in EXAMPLES and one["survivors"] and "sample" not in one
        for group in one["survivors"]:
            which = {(name, group["instruction"], number) for number in group["numbers"]}
            assert group["reason"] in PROVEN or (which and which <= ARGUED.keys()), (name, group)
            argued |= which if group["reason"] not in PROVEN else set()
    assert argued == ARGUED.keys()


def judged(name: str) -> tuple[Judge, dict[str, str]]:
    """The mutants' judge of an example, and its survivors; skips where another compiler made other instructions."""
    example = example_or_skip(name)
    if (version := survivors.read()[name]["dsl"]) != dsl_version():
        pytest.skip(f"survivors are listed for one DSL: pip install nvidia-cutlass-dsl=={version}")
    return Judge(example), survivors.listed(name)


def test_a_sample_of_mutants_is_caught_or_listed() -> None:
    """Spread over all kinds: what is not listed is caught, and what is listed has its reason."""
    judge, listed = judged("blackwell_dense_1sm")
    mutants = {mutant.name(judge.kernel): mutant for mutant in mutants_of(judge.example)}
    assert listed.keys() <= mutants.keys() and len(mutants) == survivors.read()["blackwell_dense_1sm"]["mutants"]
    chosen = sample([mutant for name, mutant in mutants.items() if name not in listed], 24)
    assert len({mutant.kind for mutant in chosen}) >= 8
    assert [str(mutant) for mutant in chosen if not judge.row(mutant).caught] == []
    for mutant in sample([mutants[name] for name in listed], 5):
        row = judge.quick.row(mutant)
        assert not row.caught and row.reason.split(":")[0] == listed[mutant.name(judge.kernel)]


@pytest.mark.slow
@pytest.mark.parametrize("name", survivors.read())
def test_all_mutants_are_caught_or_listed(name: str) -> None:
    judge, _ = judged(name)
    mutants, part = mutants_of(judge.example), survivors.read()[name].get("sample")
    rows = [judge.row(mutant) for mutant in (mutants if part is None else sample(mutants, part))]
    assert survivors.entry_of(judge.kernel, rows, len(mutants), part) == survivors.read()[name]
