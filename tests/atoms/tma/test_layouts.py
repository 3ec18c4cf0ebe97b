"""Tensor copies of any global and shared layout: boxes, refusals with what would work, symbols, multicast."""

import itertools
import random

import numpy as np
import pytest

from layoutgemm import ComposedLayout, Facts, Layout, Swizzle, dims
from layoutgemm.atoms import can_tma, smem_tile, tma_load, tma_reduce, tma_store
from layoutgemm.atoms.tma import engine
from layoutgemm.atoms.tma.derive import multicast_mask
from layoutgemm.atoms.tma.rules import MODES, RULES, broken
from layoutgemm.checks import filled_by, tiles_cover
from layoutgemm.errors import TmaError

M, N, K, B = dims("M N K B")
K8 = Facts("8 | K")(K)


def swizzled(name, layout, bits=16):
    return ComposedLayout(MODES[name].swizzle.recast(bits), 0, layout)


K_TILE = swizzled("128B", Layout((128, 64), (64, 1)))
MN_TILE = swizzled("128B", Layout(((64, 2), 64), ((1, 64 * 64), 64)))
CASES = [
    # global layout, shared layout, tile, options -> box, instructions, map extents
    (Layout((M, K8), (K8, 1)), K_TILE, None, {}, (64, 128), 1),
    (Layout((512, 256), (1, 512)), MN_TILE, None, {}, (64, 64), 2),
    # a run that continues on the far side of the next dimension: two dimensions see it as one box
    (Layout((512, 256), (1, 512)), MN_TILE, None, {"split": True}, (64, 64, 2), 1),
    (Layout((512, 250), (256, 1)), swizzled("128B", Layout((64, (64, 2)), (64, (1, 4096)))), None, {"split": True},
     (64, 64), 2),  # 250 is no multiple of 64: the tail of a row would be the next row
    # modes that continue each other are one dimension, unless two dimensions hold more
    (Layout((4, 8, 16, 32), (4096, 512, 32, 1)), Layout((1, 1, 16, 32), (0, 0, 32, 1)), None, {}, (32, 16), 1),
    (Layout((4, 64), (64, 1)), Layout((4, 64), (64, 1)), None, {}, (256,), 1),
    (Layout((8, 64), (64, 1)), Layout((8, 64), (64, 1)), None, {}, (64, 8), 1),
    # six modes, of which two merge
    (Layout((2, 3, 4, 5, 6, 64), (1 << 20, 1 << 16, 1 << 13, 1 << 10, 64, 1)), Layout((1, 1, 1, 1, 6, 64),
     (0, 0, 0, 0, 64, 1)), None, {}, (192, 1, 1, 1, 1), 2),
    # batch, nested, any order
    (Layout((M, K8, B), (K8, 1, M * K8)), Layout((64, 32, 1), (32, 1, 0)), None, {}, (32, 64, 1), 1),
    (Layout(((32, 16), 64), ((64, 4096), 1)), Layout((128, 64), (64, 1)), None, {}, (64, 32, 4), 1),
    (Layout((64, 512), (1, 64)), Layout((64, 8), (1, 64)), None, {}, (64, 8), 1),
    # every second row; the rows of even and of odd number apart in shared memory
    (Layout((256, 64), (64, 1)), Layout((32, 64), (64, 1)), (Layout(32, 2), 64), {}, (64, 64), 1),
    (Layout((256, 64), (64, 1)), Layout(((2, 32), 64), ((2048, 64), 1)), None, {}, (64, 64), 2),
    # a mode that repeats one row is read once a repetition
    (Layout((4, 256), (0, 1)), Layout((4, 256), (256, 1)), None, {}, (256,), 4),
    # 128 rows, every fourth, are 512 rows of the tensor, and a box spans 256
    (Layout((1024, 64), (64, 1)), Layout((128, 64), (64, 1)), (Layout(128, 4), 64), {}, (64, 256), 2),
    # rows narrower than the swizzle's span begin a span apart
    (Layout((256, 512), (512, 1)), swizzled("128B", Layout((64, 32), (64, 1))), None, {}, (32, 64), 1),
    # stages
    (Layout((256, 512), (512, 1)), swizzled("128B", Layout((64, 64, 3), (64, 1, 4096))), None, {}, (64, 64), 1),
    # one dimension, longer than a box
    (Layout(4096), Layout(1024), None, {}, (256,), 4),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)))
def test_boxes_of_any_layout(case):
    gmem, smem, tile, options, box, count = CASES[case]
    plan = tma_load(gmem, smem, "bf16", tile=tile, **options)
    assert plan.box == box, plan.explain()
    assert len(plan.instructions) == count
    assert plan.bytes == 2 * smem.size // plan.stages
    assert filled_by("copy", smem, plan), filled_by("copy", smem, plan)
    assert tiles_cover("tiles", plan), tiles_cover("tiles", plan)
    assert not list(broken(plan.tensor_map))
    assert "tensor (" in plan.explain()


REFUSED = [
    # global layout, shared layout, options, rule, what is offered
    (Layout((64, 60), (60, 1)), Layout((64, 32), (32, 1)), {}, "stride", "global layout (64,60):(64,1)"),
    (Layout((M, K), (K, 1)), Layout((64, 32), (32, 1)), {}, "stride", "global layout with 8 | K"),
    (Layout((256, 256), (256, 1)), Layout((64, 64), (1, 64)), {}, "run",
     "shared layout S<3,4,3>[bytes] o (64,64):(64,1)"),
    (Layout((256, 256), (256, 1)), Layout((64, 64), (72, 1)), {}, "shared address",
     "shared layout S<3,4,3>[bytes] o (64,64):(64,1)"),
    (Layout((256, 256), (256, 1)), swizzled("64B", Layout((64, 64), (64, 1))), {}, "shared address",
     "shared layout S<3,4,3>[bytes] o (64,64):(64,1)"),
    (Layout((256, 256), (256, 1)), ComposedLayout(Swizzle(3, 4, 4), 0, Layout((64, 64), (64, 1))), {}, "swizzle",
     "swizzle 128B"),
    (Layout((256, 256), (256, 1)), Layout((64, 4), (4, 1)), {}, "inner bytes", "a tile of 64x8"),
    (Layout((256, 256), (512, 2)), Layout((64, 64), (64, 1)), {}, "run", "global layout (256,256):(256,1)"),
    (Layout((2, 3, 4, 5, 6, 64), (1 << 30, 1 << 26, 1 << 20, 1 << 15, 1 << 10, 1)),
     Layout((1, 1, 1, 1, 6, 64), (0, 0, 0, 0, 64, 1)), {}, "rank", "global layout"),
    (Layout((256, 256), (256, 1)), Layout((64, 64), (64, 1)), {"multicast": 3}, "multicast", "multicast to 2 blocks"),
    (Layout(((6, 8), 64), ((64, 512), 1)), Layout((4, 64), (64, 1)), {}, "tile", "a tile of 2x64"),
    (Layout((256, 256), (256, 1)), Layout((64, 64), (0, 1)), {}, "injective",
     "shared layout S<3,4,3>[bytes] o (64,64):(64,1)"),
    (Layout((1 << 33, 64), (64, 1)), Layout((64, 64), (64, 1)), {}, "extent", None),
    (Layout((4, 1 << 20), (1 << 40, 1)), Layout((4, 64), (64, 1)), {}, "stride", "global layout"),
    (Layout((256, 256), (256, 1)), Layout((64, 64), (64, 1)), {"oob_fill": "nan", "dtype": "i32"}, "fill", None),
    # a repeated row has no edge in the map; stages of a swizzled tile begin where the pattern does
    (Layout((5, 256), (0, 1)), Layout((4, 256), (256, 1)), {}, "tile", None),
    (Layout((256, 512), (512, 1)), swizzled("128B", Layout((64, 64, 3), (64, 1, 4160))), {}, "shared address",
     "shared layout S<3,4,3>[bytes] o (64,64):(64,1)"),
    # half of the rows are contiguous, a quarter of a box of six rows is not
    (Layout((256, 256), (256, 1)), Layout((6, 64), (64, 1)), {"multicast": 4, "dtype": "f32"}, "multicast",
     "multicast to 3 blocks"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_refusals_name_the_rule_and_what_would_work(case):
    gmem, smem, options, rule, offered = REFUSED[case]
    options = dict(options)
    element = options.pop("dtype", "bf16")
    with pytest.raises(TmaError) as error:
        tma_load(gmem, smem, element, **options)
    assert error.value.rule == rule and rule in RULES, error.value
    found = error.value.nearest
    assert (found is None) == (offered is None), error.value
    if offered is not None:
        assert offered in str(found) and str(found) in str(error.value)
        plan = found.plan()
        assert filled_by("offered", plan.smem, plan) and tiles_cover("offered", plan)
    verdict = can_tma(gmem, smem, element, **options)
    assert not verdict and verdict.reason == str(error.value) and verdict.witness == found


def test_writes_want_one_address_for_each_element():
    shared = Layout((4, 256), (256, 1))
    with pytest.raises(TmaError, match="is not injective") as error:
        tma_store(Layout((4, 256), (0, 1)), shared, "f32")
    assert error.value.rule == "injective"
    with pytest.raises(TmaError, match="is not injective"):
        tma_store(Layout((M, K8), (1, K8)), Layout((64, 64)), "f32")
    assert tma_store(Layout((64 * M, N), (1, 64 * M)), Layout((64, 64)), "f32").box == (64, 64)
    # a reduction adds up what meets in one address
    assert len(tma_reduce(Layout((4, 256), (0, 1)), shared, "f32").instructions) == 4


def test_reductions_by_type():
    gmem, smem = Layout((256, 256), (256, 1)), Layout((64, 64), (64, 1))
    exist = {
        (operation, element)
        for operation in ("add", "min", "max", "inc", "dec", "and", "or", "xor", "mul")
        for element in ("f16", "bf16", "f32", "f64", "i32", "u32", "i64", "u64", "i8", "u16")
        if can_tma(gmem, smem, element, operation="reduce", reduction=operation)
    }
    assert ("add", "bf16") in exist and ("max", "f16") in exist and ("inc", "u32") in exist and ("or", "u64") in exist
    assert ("add", "f64") in exist and ("xor", "i64") not in exist
    assert not exist & {("max", "f32"), ("add", "i64"), ("inc", "i32"), ("mul", "f32"), ("add", "i8"), ("and", "f32")}
    assert tma_reduce(gmem, smem, "f32").ptx == "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"


def test_packed_formats():
    gmem = Layout((256, 512), (512, 1))
    dense = tma_load(gmem, Layout((64, 128), (128, 1)), "e2m1")
    assert (dense.tensor_map.kind.name, dense.bytes, dense.strides) == ("16U4_ALIGN8B", 64 * 64, (256,))
    padded = tma_load(gmem, Layout((64, 128), (128, 1)), "e2m1", format="16U4_ALIGN16B")
    assert (padded.box, padded.bytes) == ((128, 64), 64 * 64) and filled_by("copy", padded.smem, padded)
    six = tma_load(gmem, Layout((64, 128), (128, 1)), "e3m2")
    assert (six.strides, six.bytes) == ((384,), 64 * 96) and filled_by("copy", six.smem, six)
    for change, rule in (
        ({"smem": Layout((64, 64), (64, 1))}, "packed box"),
        ({"gmem": Layout((256, 448), (448, 1))}, "packed extent"),
        ({"smem": swizzled("64B", Layout((64, 128), (128, 1)), 8)}, "packed box"),
        ({"operation": "store"}, "direction"),
        ({"address": 16}, "address"),
    ):
        with pytest.raises(TmaError) as error:
            arguments = {"gmem": gmem, "smem": Layout((64, 128), (128, 1)), "operation": "load", "address": 0} | change
            store = arguments.pop("operation") == "store"
            (tma_store if store else tma_load)(dtype="e2m1", format="16U4_ALIGN16B", **arguments)
        assert error.value.rule == rule, error.value


MULTICAST = [
    # shared tile, blocks -> instructions a block, box
    (smem_tile((128, 64), "bf16", "K"), 2, 1, (64, 64)),
    (smem_tile((128, 128), "bf16", "K"), 2, 1, (64, 128)),  # two boxes, two blocks: no box is cut
    (smem_tile((128, 128), "bf16", "K"), 4, 1, (64, 64)),
    (smem_tile((128, 192), "bf16", "K"), 2, 3, (64, 64)),
    (smem_tile((128, 64), "bf16", "K"), 16, 1, (64, 8)),
]


@pytest.mark.parametrize("tile, blocks, each, box", MULTICAST)
def test_multicast_shares(tile, blocks, each, box):
    plan = tma_load(Layout((M, K8), (K8, 1)), tile, multicast=blocks)
    assert plan.box == box and [len(plan.issued_by(rank)) for rank in range(blocks)] == [each] * blocks
    # what arrives in a block is the whole tile, from all senders; what it sends is its share
    assert plan.bytes == tile.bytes and plan.sent_bytes * blocks == tile.bytes
    assert filled_by("copy", tile, plan) and plan.ptx.endswith(".multicast::cluster")


def test_multicast_masks():
    cluster = Layout((2, 4), (4, 1))
    masks = [multicast_mask(cluster, (m, n), 1) for m, n in itertools.product(range(2), range(4))]
    assert masks == [0x0F] * 4 + [0xF0] * 4
    with pytest.raises(TmaError, match="a mask names 0 to 15"):
        multicast_mask(Layout((4, 8)), (0, 4), 0)


def test_checks_see_wrong_plans():
    import dataclasses

    plan = tma_load(Layout((300, K8), (K8, 1)), K_TILE, "bf16")
    change = dataclasses.replace
    assert filled_by("copy", K_TILE, plan) and tiles_cover("tiles", plan)
    assert not filled_by("copy", K_TILE, change(plan, strides=(2 * K8 + 16,)))
    assert not tiles_cover("tiles", change(plan, strides=(2 * K8 + 16,)))
    assert not tiles_cover("tiles", change(plan, starts=plan.starts[::-1]))
    moved = ((plan.starts[0][0][0], ((1, 64),)),), plan.starts[1]
    assert not tiles_cover("tiles", change(plan, starts=moved))
    fixed = tma_load(Layout((100, 256), (256, 1)), K_TILE, "bf16")
    assert tiles_cover("tiles", fixed)
    assert "moved 0 times" in tiles_cover("tiles", change(fixed, extents=(256, 99))).witness


def test_edges_are_ranges_of_the_box():
    plan = tma_load(Layout((100, 72), (72, 1)), swizzled("128B", Layout((64, 64), (64, 1))), "bf16")
    assert plan.inside((0, 0)) == (((0, 64), (0, 64)),)
    assert plan.inside((1, 1)) == (((0, 8), (0, 36)),) and plan.box_bytes == 8192
    for index in itertools.product(range(3), range(3)):
        (start,) = plan.coordinates(index)
        _, inside = engine.box_coordinates(plan.tensor_map, start)
        (a, b), (c, d) = plan.inside(index)[0]
        want = np.zeros((64, 64), dtype=bool)
        want[a:b, c:d] = True
        assert np.array_equal(inside, want)


def test_what_a_store_writes_is_whole_units():
    gmem = Layout((40, 37), (40, 1))
    plan = tma_store(gmem, Layout((16, 32), (32, 1)), "bf16")
    for index in itertools.product(range(3), range(2)):
        (start,) = plan.coordinates(index)
        memory = np.zeros(40 * 80, np.uint8)
        engine.store(plan.tensor_map, memory, start, np.full(2048, 0xFF, np.uint8), 0)
        (a, b), (c, d) = plan.written(index)[0]
        want = np.zeros((40, 40), dtype=bool)
        want[start[1] + c : start[1] + d, start[0] + a : start[0] + b] = True
        assert np.array_equal(memory.view(np.uint16).reshape(40, 40) > 0, want)
        assert [d - b for (_, b), (_, d) in zip(plan.inside(index)[0], plan.written(index)[0])] == [3 * index[1], 0]
    assert plan.line_overrun(37) == 3 and tiles_cover("tiles", plan)
    load = tma_load(gmem, Layout((16, 32), (32, 1)), "bf16")
    assert load.line_overrun(37) == 0
    with pytest.raises(TmaError, match="a load writes shared memory"):
        load.written((0, 0))


def test_no_line_reaches_into_another_of_the_tensor():
    """Whole units of lines overlap only where the lines do: strides are multiples of a unit, here of 4 elements."""
    for line, *strides in itertools.product(range(1, 14), range(4, 60, 4), range(4, 60, 4)):
        starts = Layout((3, 4), tuple(strides)).offsets()
        elements = starts[:, None] + np.arange(line)
        units = starts[:, None] + np.arange(-(-line // 4) * 4)
        assert (np.unique(elements).size == elements.size) == (np.unique(units).size == units.size)


def test_edges_of_boxes_that_skip_rows():
    plan = tma_load(Layout((101, 64), (64, 1)), Layout((32, 64), (64, 1)), "bf16", tile=(Layout(32, 2), 64))
    assert plan.box == (64, 64) and plan.bytes == 4096
    for number in range(4):  # even and odd rows of the first 64, of the rest
        (start,) = plan.coordinates((number, 0))
        assert start == (0, number % 2 + 64 * (number // 2))
        _, inside = engine.box_coordinates(plan.tensor_map, start)
        assert plan.inside((number, 0)) == (((0, 64), (0, int(inside[0].sum()))),)


# ------------------------------------------------------------------------------------------------- random layouts


def random_question(rng):
    """A random global layout (order, nesting, padding), a tile, and a shared layout. The latter is swizzled or not."""
    rank = rng.choice([1, 2, 2, 3, 3, 4, 5])
    bits, element = rng.choice([(16, "bf16"), (32, "f32"), (8, "u8")])
    unit = 128 // bits
    tile = [rng.choice([1, 2, 4, 8, 3]) for _ in range(rank)]
    inner = rng.randrange(rank)
    tile[inner] = unit * rng.choice([1, 2, 4, 8, 3])
    shape: list = []
    for extent in tile:
        whole = extent * rng.choice([1, 2, 3])
        half = extent // 2
        shape.append(
            (half, whole // half) if half and rng.random() < 0.2 else whole + rng.choice([0, 0, rng.randrange(extent)])
        )
    order = sorted(range(rank), key=lambda i: (i != inner, rng.random()))
    stride: list = [0] * rank
    total = 1
    for i in order:
        stride[i] = total if isinstance(shape[i], int) else (total, total * shape[i][0])
        total *= int(np.prod(shape[i]))
        if rng.random() < 0.7:
            total = -(-total // unit) * unit
    mode = rng.choice(["none", "32B", "64B", "128B"])
    span = tile[inner] if mode == "none" else MODES[mode].span * 8 // bits
    if tile[inner] % span and tile[inner] > span:
        span, mode = tile[inner], "none"
    runs, total = max(1, tile[inner] // span), span
    steps: list = [0] * rank
    for i in sorted((i for i in range(rank) if i != inner), key=lambda i: rng.random()):
        steps[i], total = total, total * tile[i]
    steps[inner] = (1, -(-total // (8 * unit)) * 8 * unit) if runs > 1 else 1
    rows = tuple((span, runs) if i == inner and runs > 1 else n for i, n in enumerate(tile))
    smem = Layout(rows, tuple(steps))
    gmem = Layout(tuple(shape), tuple(stride))
    return gmem, smem if mode == "none" else swizzled(mode, smem, bits), element, tuple(tile)


def truth(gmem, smem, width, tile, memory, index):
    """Shared memory after the copy of that tile, element by element, from the layouts alone."""
    shared = np.full(1 << 16, 0xEE, dtype=np.uint8)
    for flat, offset in enumerate(smem.offsets()):
        at, inside, rest = 0, True, flat
        for i, extent in enumerate(tile):
            coordinate = index[i] * extent + rest % extent
            rest //= extent
            inside = inside and coordinate < gmem[i].size
            at += gmem[i](coordinate) if coordinate < gmem[i].size else 0
        place = int(offset) * width
        shared[place : place + width] = memory[at * width : (at + 1) * width] if inside else 0
    return shared


def test_random_layouts_move_what_the_layouts_say():
    rng, copied, refused = random.Random(5), 0, set()
    while copied < 60:
        gmem, smem, element, tile = random_question(rng)
        if smem.size > 2048 or gmem.size > 1 << 14:
            continue
        try:
            plan = tma_load(gmem, smem, element, tile=tile, split=rng.random() < 0.5)
        except TmaError as error:
            refused.add(error.rule)
            assert error.nearest is not None or error.rule == "rank", error
            continue
        copied += 1
        assert filled_by("copy", smem, plan) and tiles_cover("tiles", plan), (gmem, smem, plan)
        width = plan.dtype.bytes
        memory = (np.arange(int(np.max(gmem.offsets() + 1)) * width) * 37 % 251).astype(np.uint8)
        counts = [-(-gmem[i].size // extent) for i, extent in enumerate(tile)]
        for index in {tuple(rng.randrange(count) for count in counts) for _ in range(2)}:
            shared = np.full(1 << 16, 0xEE, dtype=np.uint8)
            moved = 0
            for copy, start in zip(plan.instructions, plan.coordinates(index), strict=True):
                moved += engine.load(plan.tensor_map, memory, start, shared, copy.smem_offset)
            assert moved == plan.bytes
            assert np.array_equal(shared, truth(gmem, smem, width, tile, memory, index)), (gmem, smem, plan, index)
    assert "stride" in refused
