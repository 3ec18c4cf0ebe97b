"""Budgets: what fits, what does not, and the arithmetic that says why."""

import pytest

from layoutgemm.arch import arch
from layoutgemm.checks import most_stages, role_registers, shared_memory, tensor_memory, why_not
from layoutgemm.checks.budgets import launch_registers, registers
from layoutgemm.errors import PlanError

H, B, A = arch("sm_90a"), arch("sm_100a"), arch("sm_80")


def test_four_stages_and_a_whole_c_tile_do_not_fit() -> None:
    """Published claim C11: 4 stages of 128x256x64 and a bf16 C tile are 256 KiB, more than 227."""
    report = why_not("sm_90a", (128, 256, 64), 4, warpgroups=2, epilogue=(128, 256), other_bytes=0)
    (failure,) = report.failures
    assert "4 stages of (128+256)x64 196608 + C tile 128x256 65536 + other 0 = 262144 bytes <= 232448" in str(failure)
    assert failure.witness == "29696 bytes too many: 3 stages fit, or an epilogue tile of 128x128"
    for stages, epilogue in ((3, (128, 256)), (4, (128, 128))):
        assert why_not("sm_90a", (128, 256, 64), stages, warpgroups=2, epilogue=epilogue, other_bytes=0)


def test_every_way_out_is_one() -> None:
    for bn in range(8, 257, 8):
        for stages in range(1, 9):
            report = why_not("sm_90a", (128, bn, 64), stages, warpgroups=2, epilogue=(128, bn))
            smem = report.checks[0]
            if smem:
                continue
            fit = int(smem.witness.split(": ")[1].split()[0])
            assert fit < stages and most_stages(H, (128 + bn) * 128, 128 * bn * 2 + 1024) == fit
            assert fit == 0 or why_not("sm_90a", (128, bn, 64), fit, warpgroups=2, epilogue=(128, bn))
            assert not why_not("sm_90a", (128, bn, 64), fit + 1, warpgroups=2, epilogue=(128, bn)).checks[0]
            if "epilogue" in smem.witness:
                columns = int(smem.witness.rsplit("x", 1)[1])
                assert why_not("sm_90a", (128, bn, 64), stages, warpgroups=2, epilogue=(128, columns)).checks[0]


@pytest.mark.parametrize(
    ("roles", "ok", "says"),
    [
        ({"producer": (128, 40), "math": (256, 232)}, True, ""),  # published claim C17, put right
        ({"producer": (128, 24), "math": (256, 240)}, True, ""),
        ({"producer": (128, 32), "math": (256, 240)}, False, "1024 registers too many"),
        ({"producer": (128, 40), "math": (128, 256), "more": (128, 216)}, False, "1024 registers too many"),
        ({"producer": (128, 40), "math": (256, 228)}, False, "math asks for 228: setmaxnreg takes multiples of 8"),
        ({"producer": (128, 16), "math": (256, 232)}, False, "producer asks for 16"),
        ({"producer": (128, 40), "math": (256, 264)}, False, "math asks for 264"),
        ({"producer": (32, 40), "math": (256, 232)}, False, "producer is 32 threads, no whole number of warpgroups"),
        ({"math": (1152, 24)}, False, "1152 threads are more than a block's 1024"),
    ],
)
def test_registers_of_roles(roles: dict[str, tuple[int, int]], ok: bool, says: str) -> None:
    check = role_registers(H, roles)
    assert bool(check) is ok and check.witness.startswith(says) and bool(check.witness) is not ok


@pytest.mark.parametrize(
    ("threads", "each"), [(128, 256), (160, 256), (256, 256), (288, 168), (416, 128), (672, 80), (800, 72)]
)
def test_a_launch_takes_registers_for_whole_warpgroups(threads: int, each: int) -> None:
    """The registers per thread that ptxas 13.0 gives such a launch at most; `registers` holds a block to the same."""
    assert launch_registers(H, threads) == each
    limit = min(each, 255)
    assert registers(H, threads, {"all": limit}) and not registers(H, threads, {"all": limit + 1})


def test_setmaxnreg_is_not_everywhere() -> None:
    assert role_registers(A, {"math": (128, 128)}).witness == "sm_80 has no setmaxnreg"


@pytest.mark.parametrize(
    ("columns", "blocks", "ok"),
    [(512, 1, True), (513, 1, False), (256, 2, True), (257, 2, False), (300, 1, True), (128, 4, True), (129, 3, False)],
)
def test_tensor_memory_is_allocated_in_powers_of_two(columns: int, blocks: int, ok: bool) -> None:
    assert bool(tensor_memory(B, {"accumulator": columns}, blocks)) is ok


def test_tensor_memory_of_other_architectures() -> None:
    assert tensor_memory(H, {"accumulator": 32}).witness == "sm_90a has no tensor memory"
    report = why_not("sm_100a", (128, 256, 64), 4, accumulators=2, epilogue=(128, 64))
    assert report and "2 accumulators of 128x256 512 = 512 columns" in str(report)
    assert not why_not("sm_100a", (256, 256, 64), 3, accumulators=2)


def test_an_accumulator_needs_enough_threads() -> None:
    (failure,) = why_not("sm_90a", (128, 256, 64), 4).failures
    assert failure.witness == "1 registers a thread too many: 2 warpgroups would hold it"
    assert why_not("sm_80", (128, 128, 32), 4, warpgroups=1)


def test_types_count_by_their_bits() -> None:
    bf16 = why_not("sm_90a", (64, 64, 64), 1).checks[0].statement
    assert "16384 + other" in bf16
    assert "8192 + other" in why_not("sm_90a", (64, 64, 64), 1, a="e4m3").checks[0].statement
    assert "6144 + other" in why_not("sm_100a", (64, 64, 64), 1, a="e4m3", b="e2m1").checks[0].statement


def test_blocks_share_a_multiprocessor() -> None:
    assert shared_memory(H, {"x": 114 * 1024 - 1024}, 2)
    assert not shared_memory(H, {"x": 114 * 1024}, 2)
    assert most_stages(H, 16 * 1024, 0, 2) == 7 and most_stages(H, 1 << 20) == 0


@pytest.mark.parametrize("bad", [{"tile": (0, 8, 8)}, {"stages": 0}, {"stages": True}, {"warpgroups": 0}])
def test_what_means_nothing_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        why_not("sm_90a", **{"tile": (64, 64, 64), "stages": 2} | bad)
