"""Plans: what is derived for every order and type, what is refused, and that every check can fail."""

import dataclasses
import pickle

import pytest

from layoutgemm.atoms import wgmma
from layoutgemm.errors import LayoutError, PlanError
from layoutgemm.kernels import Operand, TeachingConfig, TeachingPlan
from layoutgemm.kernels.compile.compiler import kernel_facts


def test_majors_follow_the_orders():
    """A is M x K and B is K x N: K is contiguous in a row-major A and in a column-major B."""
    table = {
        ("row", "row"): ("K", "MN"),
        ("row", "col"): ("K", "K"),
        ("col", "row"): ("MN", "MN"),
        ("col", "col"): ("MN", "K"),
    }
    for (a, b), majors in table.items():
        plan = TeachingPlan.derive(64, 64, 64, a=f"bf16:{a}", b=f"bf16:{b}")
        assert (plan.a.major, plan.b.major) == majors
        assert plan.a.tma.dims == (("k", "m") if majors[0] == "K" else ("m", "k"))
        assert plan.b.tma.dims == (("n", "k") if majors[1] == "MN" else ("k", "n"))


@pytest.mark.parametrize("a", ("bf16:row", "bf16:col", "f16:row", "f16:col"))
@pytest.mark.parametrize("b", ("row", "col"))
@pytest.mark.parametrize(
    "config",
    (
        TeachingConfig(),
        TeachingConfig(tile_k=16, stages=1),
        TeachingConfig(tile_n=8),
        TeachingConfig(tile_n=104, tile_k=48),
        TeachingConfig(tile_n=256, tile_k=128),
        TeachingConfig(swizzle_a="none", swizzle_b="32B"),
    ),
)
def test_every_plan_holds(a, b, config):
    kind = a.partition(":")[0]
    for c in ("f32", kind):
        plan = TeachingPlan.derive(200, 136, 72, a=a, b=f"{kind}:{b}", c=c, config=config)
        report = plan.check()
        assert report, str(report)
        assert len(report) >= 12
        assert plan.barrier.bytes == plan.a.smem.bytes + plan.b.smem.bytes


def test_stages_fall_to_what_fits():
    assert TeachingPlan.derive(64, 64, 64).stages == 4
    assert TeachingPlan.derive(64, 256, 64, config=TeachingConfig(tile_n=256, tile_k=128)).stages == 2


@pytest.mark.parametrize("m, n, k", ((1, 1, 1), (64, 64, 64), (65, 127, 33), (10**9, 1, 1), (3, 5, 2**31 - 1)))
def test_any_size(m, n, k):
    plan = TeachingPlan.derive(m, n, k)
    assert plan.check()
    assert plan.tiles == (-(-m // 64), -(-n // 64), -(-k // 64))


BAD = [
    ({"m": 0}, "m = 0: a size is 1 to 2"),
    ({"n": -3}, "n = -3: a size is 1 to 2"),
    ({"k": 2**31}, "k = 2147483648: a size is 1 to 2"),
    ({"m": 64.0}, "m of TeachingPlan.derive must be an integer, not 64.0"),
    ({"m": True}, "m of TeachingPlan.derive must be an integer, not True"),
    ({"m": 2**31 - 1, "n": 2**31 - 1}, "a grid holds 2**31 - 1 blocks"),
    ({"arch": "sm_80", "config": TeachingConfig()}, "this kernel needs wgmma, which sm_80 lacks"),
    ({"arch": "sm_91"}, "do you mean sm_90a"),
    ({"a": "bf16", "b": "f16"}, "both bf16 or both f16"),
    ({"a": "f32"}, "both bf16 or both f16; got A f32"),
    ({"a": "bf16:diagonal"}, "the order is 'row' or 'col', not 'diagonal'"),
    ({"c": "f16"}, "c is f16; this kernel stores f32 or the inputs' bf16"),
    ({"c": "f32:col"}, "C^T = B^T @ A^T"),
    ({"config": TeachingConfig(tile_n=60)}, "N = 60 is none of them"),
    ({"config": TeachingConfig(tile_k=24)}, "tile_k = 24 is no multiple of the instruction's K = 16"),
    ({"config": TeachingConfig(tile_k=8)}, "tile_k = 8: a stage holds at least one K block of 16"),
    ({"config": TeachingConfig(stages=0)}, "0 stage(s), and at least 1, of A"),
    ({"config": TeachingConfig(stages=100)}, ": 14 fit into 232448"),
    ({"config": TeachingConfig(swizzle_a="128B", tile_k=32)}, "its K extent 32 is no multiple of the atom's 64"),
    ({"config": TeachingConfig(swizzle_b="96B")}, "unknown shared-memory swizzle '96B'"),
]


@pytest.mark.parametrize("change, text", BAD, ids=[row[1][:40] for row in BAD])
def test_refusals(change, text):
    arguments = {"m": 64, "n": 64, "k": 64} | change
    with pytest.raises(LayoutError) as error:
        TeachingPlan.derive(arguments.pop("m"), arguments.pop("n"), arguments.pop("k"), **arguments)
    assert text in str(error.value)


def failing(plan):
    return {check.name for check in plan.check().failures}


def test_every_check_can_fail():
    plan = TeachingPlan.derive(200, 136, 72, b="bf16:col")
    assert not failing(plan)
    other = TeachingPlan.derive(200, 136, 72, b="bf16:col", config=TeachingConfig(swizzle_a="64B"))
    replace = dataclasses.replace
    broken = {
        "copy A": replace(plan, a=replace(plan.a, tma=other.a.tma)),
        "descriptor A": replace(plan, a=replace(plan.a, descriptor=other.a.descriptor)),
        "barrier": replace(plan, barrier=replace(plan.barrier, bytes=16000)),
        "pipeline": replace(plan, barrier=replace(plan.barrier, arrivals=2)),
        "fragment map": replace(plan, mma=replace(plan.mma, layout_C=wgmma(128).layout_C)),
        "shared map": replace(plan, smem=replace(plan.smem, b_offset=plan.smem.b_offset - 1024)),
        "shared memory": replace(plan, smem=replace(plan.smem, a_stage_bytes=60000)),
        "registers": replace(plan, mma=replace(plan.mma, threads=16)),
    }
    for name, mutant in broken.items():
        assert name in failing(mutant), name
    with pytest.raises(PlanError, match="the plan does not hold:\nFAILS  copy A"):
        broken["copy A"].check().require()


def test_explanation_holds_the_numbers():
    text = TeachingPlan.derive(200, 136, 72, b="bf16:col").explain()
    for part in (
        "4 x 3 of C, 2 along K",
        "box (k 64, m 64) of bf16, swizzle 128B, 8192 bytes, 1 instruction",
        "0x4000004000010000",
        "16384 bytes a phase = A 8192 + B 8192",
        "((4,8,4),(2,2,8)):((128,1,16),(64,8,512))",
        "65568 of 232448 bytes",
    ):
        assert part in text, part


def test_plans_are_values():
    plan = TeachingPlan.derive(200, 136, 72)
    assert plan == TeachingPlan.derive(200, 136, 72) and plan != TeachingPlan.derive(200, 136, 73)
    assert hash(plan) == hash(TeachingPlan.derive(200, 136, 72))
    assert pickle.loads(pickle.dumps(plan)) == plan
    # the compiled code does not depend on the sizes
    facts = kernel_facts(plan)
    assert facts == kernel_facts(TeachingPlan.derive(1, 2, 3))
    assert facts != kernel_facts(TeachingPlan.derive(200, 136, 72, c="bf16"))
    assert Operand.parse(Operand.parse("bf16:col")) == Operand.parse("bf16:col")


def test_drawing_names_the_instruction():
    svg = TeachingPlan.derive(64, 64, 64).svg()
    assert svg.startswith("<svg") and "m64n64k16" in svg
