"""The heuristic for Hopper: what it picks, why, and what it refuses."""

from __future__ import annotations

from itertools import product

import pytest

from layoutgemm.errors import PlanError
from layoutgemm.kernels.epilogue.chain import Activation, Aux, Epilogue
from layoutgemm.kernels.sm90.budget_checks import registers_fit
from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy
from layoutgemm.kernels.sm90.choose.rules import choose, likeliest, of_estimate
from layoutgemm.kernels.sm90.choose.scaled_grouped import plan_with_scales, scaled_config
from layoutgemm.kernels.sm90.choose.stages import sent, stages
from layoutgemm.kernels.sm90.plan import Sm90Plan

# (M, N, K) -> tile, cluster, loader, swapped, launched early. What is picked; test_choices_record.py says how it stands
# where that was measured.
TABLE = {
    (1024, 1024, 1024): ((128, 64), (2, 1), "warp", False, True),
    (2048, 2048, 2048): ((128, 256), (1, 1), "warp", False, True),
    (4096, 4096, 4096): ((128, 256), (2, 1), "self", False, False),
    (8192, 8192, 8192): ((256, 224), (2, 1), "self", False, False),
    (16384, 16384, 16384): ((256, 224), (1, 2), "self", False, False),
    (4096, 14336, 4096): ((256, 224), (1, 2), "self", False, False),
    (4096, 28672, 4096): ((256, 208), (1, 2), "self", False, False),
    (4096, 6144, 4096): ((256, 192), (1, 2), "self", False, False),
    (4096, 8192, 8192): ((256, 200), (2, 1), "self", False, False),  # 41 columns of tiles, 1.5% less than 40
    (4096, 4096, 14336): ((128, 256), (2, 1), "self", False, False),
    (512, 14336, 4096): ((256, 224), (2, 1), "self", False, True),
    (512, 28672, 4096): ((256, 224), (2, 1), "self", False, False),
    (512, 6144, 4096): ((128, 192), (2, 1), "warp", False, True),
    (512, 8192, 8192): ((128, 256), (2, 1), "warp", False, True),
    (512, 4096, 4096): ((128, 128), (2, 1), "warp", False, True),
    (512, 4096, 14336): ((128, 128), (2, 1), "warp", False, True),
    (64, 14336, 4096): ((64, 112), (1, 1), "warp", False, True),
    (64, 28672, 4096): ((64, 224), (1, 1), "warp", False, True),
    (64, 6144, 4096): ((64, 48), (1, 1), "warp", False, True),
    (64, 8192, 8192): ((64, 64), (1, 2), "warp", False, True),
    (64, 4096, 4096): ((64, 64), (1, 1), "warp", True, True),  # in two parts of K; in its place 0.3% less
    (64, 4096, 14336): ((64, 64), (1, 1), "warp", True, True),
    (16, 14336, 4096): ((64, 112), (1, 1), "warp", False, True),
    (16, 4096, 14336): ((64, 16), (1, 1), "warp", True, True),  # or 32 columns, 0.1% between them
    (16, 4096, 4096): ((64, 16), (1, 1), "warp", True, True),
    # a single wave shares the weights
    (496, 11456, 1728): ((128, 176), (2, 1), "warpgroup", False, True),
    (232, 4608, 1344): ((128, 72), (2, 1), "warp", False, True),
    (256, 4096, 4096): ((128, 64), (2, 1), "warp", False, True),
    (128, 4096, 4096): ((64, 64), (2, 1), "warp", False, True),
    # operands swapped: M in even shares of any multiple of 8
    (128, 8192, 4096): ((64, 128), (2, 1), "warp", False, True),  # or 128x64 swapped, 0.1% between them
    (136, 8192, 8192): ((128, 72), (1, 2), "warp", True, True),
    (160, 14336, 4096): ((128, 160), (4, 1), "warp", True, True),
    (300, 14336, 4096): ((256, 152), (1, 2), "self", True, True),  # 0.7% more than (4,2)
    (408, 4096, 4288): ((128, 104), (1, 2), "warp", True, True),
    (768, 4096, 3072): ((128, 192), (1, 2), "warp", True, True),
    (1048, 2240, 8320): ((192, 96), (1, 1), "warp", True, False),
    (1704, 8000, 9280): ((256, 216), (1, 2), "self", True, False),
    # three warpgroups where their tiles make one wave; beside 208 columns there are no registers for a loader
    (296, 11648, 5824): ((192, 152), (1, 2), "warp", True, True),
    (368, 11840, 1792): ((192, 184), (1, 2), "warp", True, True),
    (4208, 1088, 13376): ((192, 184), (1, 2), "warp", False, True),
    (4536, 11840, 2944): ((256, 208), (1, 2), "self", True, False),
    # swapped for any M, where less of the tiles lies outside
    (2400, 1024, 4928): ((128, 160), (4, 1), "warp", True, True),
    (4352, 3008, 3456): ((256, 200), (1, 2), "self", True, False),
    (5328, 4160, 14080): ((192, 224), (2, 1), "self", True, False),
    # lines of K that begin between those of 128 bytes: what shares loads, and wide tiles
    (2048, 2048, 3008): ((256, 128), (2, 1), "self", False, True),
    (2048, 2048, 3000): ((256, 128), (1, 2), "self", False, True),
    (300, 4096, 3000): ((192, 72), (2, 4), "warp", False, True),
    (256, 8192, 3000): ((128, 144), (2, 4), "warp", False, True),
    (760, 1360, 10664): ((128, 144), (2, 2), "warp", False, True),  # in two parts of K
    (64, 6144, 3016): ((64, 48), (1, 2), "warp", False, True),
    (1000, 4000, 3000): ((256, 136), (4, 2), "self", False, True),
    (64, 4096, 5000): ((64, 64), (1, 2), "warp", False, True),
    (16, 4096, 3000): ((64, 16), (1, 1), "warp", True, True),
}


@pytest.mark.parametrize("sizes", TABLE, ids=lambda s: "x".join(map(str, s)))
def test_chosen_configurations(sizes: tuple[int, int, int]) -> None:
    choice, reason = choose(*sizes)
    config = choice.config
    assert (config.tile, config.cluster, config.loader, choice.swapped, config.overlap) == TABLE[sizes], reason
    assert config.reverse_odd_tiles is False, "bits would depend on where a tile lies"


# (M, N, K) -> how it is launched, what is fetched before the kernel before has ended, how many k tiles end early.
LAUNCHES = {
    (1024, 1024, 1024): ("tiles", "N", 2, 2),
    (2048, 2048, 2048): ("workers", "M", 1, 2),
    (4096, 4096, 4096): ("workers", "N", 0, 0),
    (512, 28672, 4096): ("workers", "N", 0, 2),
    (8192, 8192, 8192): ("workers", "N", 0, 2),
    (512, 4096, 4096): ("tiles", "N", 2, 2),
    (512, 8192, 8192): ("tiles", "N", 1, 2),
    (64, 4096, 4096): ("tiles", "M", 2, 0),
    (64, 4096, 14336): ("tiles", "M", 2, 0),
    (64, 28672, 4096): ("tiles", "N", 1, 0),
    (16, 4096, 4096): ("tiles", "M", 2, 0),
    (1048, 2240, 8320): ("tiles", "N", 0, 0),
    (296, 11648, 5824): ("tiles", "M", 2, 0),
}


@pytest.mark.parametrize("sizes", LAUNCHES, ids=lambda s: "x".join(map(str, s)))
def test_how_it_is_launched(sizes: tuple[int, int, int]) -> None:
    config = choose(*sizes)[0].config
    assert (config.launch, config.along, config.prefetch, config.staged_epilogue_k_tiles) == LAUNCHES[sizes]
    assert choose(*sizes, batch=2)[0].config.launch == "workers", "a grid of tiles is that of one matrix"


def test_halves_are_for_plain_products_of_16_bits() -> None:
    """ptxas serialises them beside an epilogue, wide outputs or columns of B: `_IN_HALVES`."""
    choice = choose(2048, 2048, 2048)[0]
    assert choice.plan(2048, 2048, 2048, b="bf16:col").half is not None
    for given in ({"c": "f32"}, {"epilogue": Epilogue(Activation("gelu"))}, {"b": "bf16:row"}):
        assert choice.plan(2048, 2048, 2048, **{"b": "bf16:col", **given}).half is None


# Type of A, sizes -> cluster: loads are shared from 8192 bytes along K, of 8-bit types with many rows from 4096; of
# 16-bit types at any K: several waves of 2368 to 3776 gain 0.2 to 3%.
CLUSTERS = {
    ("bf16", 4096, 4096, 4096): (2, 1),
    ("bf16", 4096, 4096, 4032): (2, 1),
    ("bf16", 512, 14336, 4096): (2, 1),
    ("bf16", 512, 14336, 4032): (2, 1),
    ("bf16", 512, 28672, 4032): (2, 1),
    ("bf16", 300, 14336, 4032): (1, 2),
    ("tf32", 4096, 4096, 4096): (2, 1),
    ("tf32", 4096, 4096, 2048): (2, 1),  # counted in elements, as bf16's are, there was none
    ("tf32", 4096, 4096, 2047): (1, 1),
    ("tf32", 512, 14336, 2048): (2, 1),
    ("e4m3", 4096, 8192, 4096): (1, 2),
    ("e4m3", 4096, 8192, 4095): (1, 1),
    ("e4m3", 512, 14336, 4096): (1, 1),
    ("e4m3", 512, 14336, 8192): (2, 1),
    ("i8", 512, 14336, 4096): (1, 1),
}


@pytest.mark.parametrize("case", CLUSTERS, ids=str)
def test_loads_are_shared_by_the_bytes_along_k(case: tuple[str, int, int, int]) -> None:
    kind, *sizes = case
    choice, reason = choose(*sizes, a=kind)
    assert choice.config.cluster == CLUSTERS[case], (choice.config, reason)


@pytest.mark.parametrize("b_major", ["K", "MN"])
def test_every_size_gets_a_kernel_that_fits(b_major: str) -> None:
    order = "bf16:col" if b_major == "K" else "bf16:row"
    for m in (1, 7, 8, 17, 33, 63, 64, 65, 128, 200, 511, 3000, 100_000):
        for n in (1, 8, 100, 1000, 5000, 33_000):
            for k in (1, 64, 1000, 9000):
                choice, reason = choose(m, n, k, b_major=b_major)
                plan = choice.plan(m, n, k, b=order)
                assert plan.stages >= 2 and plan.smem.total <= plan.arch.smem_per_block, reason
                assert "us" in reason


@pytest.mark.parametrize("sizes", [(65, 8, 64), (300, 4096, 14336), (128, 1024, 14336), (3000, 200, 2000)], ids=str)
@pytest.mark.parametrize("b_major", ["K", "MN"])
def test_all_that_is_weighed_is_a_kernel(sizes: tuple[int, int, int], b_major: str) -> None:
    found = likeliest(*sizes, b_major)
    assert choose(*sizes, b_major=b_major) == of_estimate(found[0], *sizes, b_major)
    assert {e.swapped for e in found} == {False, True}
    for estimate in found:
        choice, reason = of_estimate(estimate, *sizes, b_major)
        assert str(estimate) in reason and choice.swapped == estimate.swapped
        plan = choice.plan(*sizes, b="bf16:col" if b_major == "K" else "bf16:row")
        across = plan.order.clusters(plan.tiles)
        assert plan.tile[:2] == estimate.tile and across[0] * across[1] * plan.sharing == estimate.tiles
        for tiles, clusters, blocks in zip(plan.tiles, across, choice.config.cluster, strict=True):
            assert clusters * blocks == tiles or tiles >= 5, "few blocks of a cluster have no tile"


def test_an_epilogues_matrices_keep_operands_in_their_places() -> None:
    """Read across their rows they cost 22% of 2400x1024x4928, 3 to 6% of larger ones; few rows gain more than that."""
    for sizes, swapped in (((2400, 1024, 4928), False), ((4352, 3008, 3456), False), ((136, 8192, 8192), True)):
        assert choose(*sizes)[0].swapped and choose(*sizes, epilogue=Epilogue(Aux()))[0].swapped == swapped


def test_a_buffer_makes_room_for_a_stage() -> None:
    """Three warpgroups of 184 columns: a fourth stage saves 10%, of 152 there are four anyway; 256 rows by 152."""
    for sizes, of_stages, of_buffers in (
        ((368, 11840, 1792), 4, 1), ((296, 11648, 5824), 4, 2), ((300, 14336, 4096), 4, 1)
    ):  # fmt: skip
        choice = choose(*sizes)[0]
        assert choice.plan(*sizes, b="bf16:col").stages == of_stages and choice.config.buffers == of_buffers


@pytest.mark.parametrize(
    "sizes", [(296, 11648, 5824), (368, 11840, 1792), (512, 14336, 4096), (1024,) * 3, (304, 1856, 15616)], ids=str
)
def test_estimates_know_the_stages(sizes: tuple[int, int, int]) -> None:
    for estimate in likeliest(*sizes)[:12]:
        choice = of_estimate(estimate, *sizes)[0]
        config, whole = choice.config, estimate.split == 1  # the store's buffers lie over the stages of parts
        known = stages(config.tile, config.consumers, config.buffers * whole, sent(config.tile, config.split))
        assert known == choice.plan(*sizes, b="bf16:col").stages


def test_blocks_share_the_weights() -> None:
    """With few rows, two blocks with weights of their own share, and both wait; four may gain."""
    for e in likeliest(300, 14336, 4096):
        assert e.cluster[0 if e.swapped else 1] == 1 or e.cluster[0] * e.cluster[1] > 2, e


@pytest.mark.parametrize("swapped", [False, True])
def test_consecutive_blocks_of_one_wave_share_the_weights(swapped: bool) -> None:
    """Unless those of a cluster share them already: then the activations."""
    weights = "N" if swapped else "M"  # blocks along this dimension have the same weights
    activations = "MN".replace(weights, "")
    seen = set()
    for e in likeliest(300, 4096, 4096):
        if e.waves == 1 and e.split == 1 and e.swapped == swapped:
            of_weights, of_activations = e.cluster[::-1] if swapped else e.cluster
            assert e.along == (activations if of_weights > of_activations else weights), e
            seen.add(e.along)
    assert seen == {"M", "N"}


def test_few_rows_give_every_multiprocessor_one_block() -> None:
    for n in (6144, 11008, 14336, 28672):
        choice, reason = choose(16, n, 4096)
        blocks = -(-n // choice.config.tile[1])
        assert 100 <= blocks <= 132 and str(blocks) in reason


# (M, N, K), order of B -> tile, when the next kernel's blocks may come, k tiles fetched early: measured, "Where blocks
# begin" of the notes. 96 and 112 blocks leave too many multiprocessors idle to let others come early.
NEXT = {
    (16, 6144, 4096, "K"): ((64, 48), "start", 2),
    (16, 6144, 4096, "MN"): ((64, 64), "end", 0),
    (64, 14336, 4096, "MN"): ((64, 128), "end", 0),
    (64, 28672, 4096, "MN"): ((64, 256), "end", 0),
    (16, 4096, 4096, "MN"): ((64, 16), "start", 2),
    (64, 4096, 4096, "MN"): ((64, 64), "start", 2),
    (4, 14912, 3968, "K"): ((64, 120), "start", 2),
    (2, 2432, 7744, "K"): ((64, 48), "end", 0),
    (16, 1920, 9472, "K"): ((64, 32), "start", 2),
    (1, 2752, 2432, "K"): ((64, 48), "start", 2),
}


@pytest.mark.parametrize("case", NEXT, ids=str)
def test_where_the_next_kernel_begins(case: tuple[int, int, int, str]) -> None:
    choice, reason = choose(*case[:3], b_major=case[3])
    config = choice.config
    assert (config.tile, config.trigger, config.prefetch) == NEXT[case], reason
    assert config.overlap and ("when it leaves" in reason) == (config.trigger == "end")


# (M, N, K), order of B -> tile, split-K: random shapes, with few columns and long sums.
PARTS = {
    (8, 1088, 10368, "K"): ((64, 64), 4),
    (8, 2112, 9472, "K"): ((64, 32), 2),
    (64, 1024, 8192, "K"): ((64, 64), 4),  # swapped
    (64, 2752, 11840, "K"): ((64, 48), 2),
    (128, 2048, 8192, "K"): ((64, 80), 2),  # blocks of (2,1) share loads, too
    (128, 1024, 14336, "MN"): ((64, 128), 4),  # swapped
    (152, 1472, 11264, "MN"): ((64, 80), 2),  # swapped, (1,2): 12.7 us, 22.6 by whole sums
    (280, 2240, 15232, "MN"): ((128, 144), 3),  # swapped: 35.4 us, 44.9 by whole sums
    (384, 2560, 9856, "MN"): ((128, 128), 2),
    (312, 2240, 12992, "K"): ((64, 88), 1),
    (144, 1728, 8960, "K"): ((64, 80), 2),  # swapped, (1,2)
    (304, 1856, 15616, "K"): ((128, 80), 2),  # swapped, (1,4): 30.5 us, 31.8 in four parts
    (112, 2048, 7168, "K"): ((64, 80), 2),  # (2,1)
    (4096, 4096, 14336, "K"): ((128, 256), 1),
    (128, 4096, 4096, "K"): ((64, 64), 1),
}


@pytest.mark.parametrize("case", PARTS, ids=str)
def test_few_tiles_share_out_their_sums(case: tuple[int, int, int, str]) -> None:
    choice, reason = choose(*case[:3], b_major=case[3])
    assert (choice.config.tile, choice.config.split) == PARTS[case], reason
    plan = choice.plan(*case[:3], b="bf16:col" if case[3] == "K" else "bf16:row")
    if choice.config.split > 1:
        across = plan.order.clusters(plan.tiles)
        assert across[0] * across[1] <= ClusterOccupancy().resident(plan.cluster_size), "all of them run at a time"
        assert plan.exchange is not None and plan.exchange.bytes == sent(choice.config.tile, choice.config.split)


def test_tiles_of_rows_end_within_a_span_where_that_pays() -> None:
    """As wide as with the other order of B where 256 rows hide it; whole spans where it costs up to a third."""
    assert {choose(4096, 28672, 4096, b_major=b)[0].config.tile for b in ("K", "MN")} == {(256, 208)}
    for sizes in ((2176, 12416, 11584), (256, 6592, 14912), (4488, 1856, 9856)):
        choice = choose(*sizes, b_major="MN")[0]
        config = choice.config
        assert choice.swapped or config.tile[0] == 256 or config.tile[1] % 64 == 0, "swapped, they are rows of A"


def test_the_widest_tile_of_few_rows_is_flat() -> None:
    """64 + 256 lines of 256 bytes would leave two stages."""
    flat = choose(64, 28672, 4096, b_major="MN")[0]
    assert (flat.config.tile_k, flat.plan(64, 28672, 4096, b="bf16:row").stages) == (64, 5)
    assert choose(64, 28672, 4096)[0].config.tile_k == 128


def test_weights_are_loaded_first() -> None:
    """With few rows, the block's own operand is loaded first; in clusters, the multicast one."""
    for sizes, b_major, order in (
        ((16, 14336, 4096), "K", "BA"),
        ((64, 8192, 8192), "K", "BA"),
        ((16, 4096, 4096), "K", "AB"),  # operands swapped
        ((16, 4096, 4096), "MN", "AB"),
        ((64, 4096, 4096), "MN", "BA"),
        ((512, 4096, 4096), "K", "BA"),
        ((4096, 14336, 4096), "K", "AB"),  # a cluster of (1, 2)
        ((2048, 2048, 2048), "K", "AB"),
    ):
        choice = choose(*sizes, b_major=b_major)[0]
        assert choice.config.order_of_loads == order, (sizes, b_major)
        told = choice.plan(*sizes, b="bf16:col" if b_major == "K" else "bf16:row").explain()
        assert f"boxes, {order[0]}'s first" in told


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (4096, 4096, 4104), (512, 14336, 4096), (16, 4096, 4096)])
def test_l2_promotion_of_a_choice(sizes: tuple[int, int, int]) -> None:
    choice, want = choose(*sizes)[0], "256B" if sizes == (4096, 4096, 4096) else "128B"
    plan = choice.plan(*sizes, b="bf16:col")
    assert (plan.a.tma.l2_promotion, plan.b.tma.l2_promotion) == (want, want)


@pytest.mark.parametrize("sizes", [(4000, 4000, 4000), (4000, 4008, 4096)])
def test_misaligned_rows_of_b_fetch_128_bytes_a_miss(sizes: tuple[int, int, int]) -> None:
    """7776x1104x6248: 149.6 us, 169.4 where a miss fetches 256 bytes."""
    assert choose(*sizes, b_major="MN")[0].config.l2_promotion == "128B"
    assert choose(4096, 4096, 4096, b_major="MN")[0].config.l2_promotion == "256B"


def test_other_chips_get_other_tiles() -> None:
    assert choose(16, 6144, 4096, multiprocessors=132)[0].config.tile == (64, 48)
    assert choose(16, 6144, 4096, multiprocessors=64)[0].config.tile == (64, 96)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, -1, 1), (1, 1, True), (1.0, 1, 1)])
def test_sizes_that_are_none(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(PlanError, match=r"must be (an integer|at least 1)"):
        choose(*sizes)


@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 4, 20])
@pytest.mark.parametrize("m", [1, 16, 64, 300])
def test_few_multiprocessors_have_no_room_for_parts_of_k(m: int, multiprocessors: int) -> None:
    choice, why = choose(m, 4096, 4096, multiprocessors=multiprocessors)
    assert choice.config.split <= multiprocessors and why


@pytest.mark.parametrize("sizes", [(1, 2112, 2048), (32, 4096, 4096), (64, 4096, 4096)])
def test_the_reason_of_swapped_operands_names_the_parts_of_k(sizes: tuple[int, int, int]) -> None:
    choice, why = choose(*sizes)
    assert choice.swapped and choice.config.split == 2 and "each of 2 blocks" in why


@pytest.mark.parametrize("c", ["bf16", "f32", "e4m3"])
def test_every_choice_of_a_scaled_product_has_a_plan(c: str) -> None:
    """Also where scales of four K blocks are read together: in more memory and registers."""
    for m, n, k in product((300, 4096), (2112, 7168), (512, 2048, 7168)):
        config = scaled_config(m, n, k, c=c, columns=128 if c == "e4m3" else 1)
        for span in (1, 4):
            plan = plan_with_scales((m, n, k, 1), ("e4m3", "e4m3:col", c), (1, 128), config, span)
            assert registers_fit(plan) and plan.numbers.span in (1, span), (m, n, k, span)
            assert plan.smem.total >= plan.arch.smem_of_one_block, (m, n, k, span)


@pytest.mark.parametrize("m", [1, 16, 128, 512, 4096])
def test_a_multiprocessor_holds_one_block_of_a_chosen_kernel(m: int) -> None:
    """So blocks that start early never share one while another has none."""
    for n, k in product((512, 2112, 28672), (512, 4096, 14336)):
        choice, _ = choose(m, n, k)
        sizes = (n, m, k) if choice.swapped else (m, n, k)
        plan = Sm90Plan.derive(*sizes, b="bf16:col", config=choice.config)
        assert plan.smem.total >= plan.arch.smem_of_one_block, (m, n, k)
