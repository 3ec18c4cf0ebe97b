"""All that a StreamedPlan claims. Shares, units, slots, conversions, lines of x, sums, shared memory, budgets.

Each check takes its numbers from the plan's own formulas, and recomputes them from the atoms and the packed order.
"""

from __future__ import annotations

import numpy as np

from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...checks import bank_conflicts, registers, shared_memory_of
from ...checks.coverage import not_once
from ...report import Check, Report
from ..derivation import checked
from ..plan_checks import fragment_checks, misplaced
from ..quantized.blocks import QUARTERS, STRIP
from ..quantized.checks import conversion_check, fragments_check, order_checks
from ..quantized.conversions import FusedPairs, NumpyPairs
from ..quantized.formats import UNIT_ROWS
from ..quantized.order import WORDS
from .operands import COLUMNS
from .plan import BUFFERS, F32, StreamedPlan
from .reference import register_bytes

HELD = 24  # registers of a thread beside words, fragments and sums: addresses, counters
_GRIDS = (1, 2, 3, 108, 114, 132, 148)  # blocks: few, and the multiprocessors of GPUs


def check_streamed(plan: StreamedPlan) -> Report:
    """Every check of the plan."""
    return checked(plan, _checks, arch=plan.arch, weights=plan.weights, epilogue=plan.epilogue or None)


def _checks(plan: StreamedPlan, explored: bool) -> list[Check]:
    pairs = FusedPairs if plan.fused else NumpyPairs
    whole = plan.b.fragments if plan.a.band > 1 else 2  # fragments of x that stay for the next strip, or of one load
    held = {
        "words": plan.a.vectors * WORDS + plan.a.groups * plan.a.packing.scale_words,
        "fragments": plan.mma.registers("A") + whole * plan.mma.registers("B"),
        "sums": plan.band_registers,
        "a group's sums": plan.mma.accumulator_registers,
        "addresses and counters": HELD,
    }
    parts = {
        f"{plan.stages} slots of {plan.config.warps} warps": plan.stages * plan.smem.a_stage_bytes,
        "x": plan.smem.b_stage_bytes,
        f"sums of {plan.config.strips} strips": plan.config.strips * plan.smem.c_buffer_bytes,
    }
    if plan.config.split > 1:
        parts[f"sums of {plan.config.split} blocks, {BUFFERS} buffers"] = plan.smem.received_bytes
    return [
        _bands(plan),
        _units(plan),
        *order_checks(plan.a.packing),
        _slots(plan),
        _ahead(plan),
        conversion_check(plan.a.packing, pairs, "A", plan.a.one_shift),
        fragments_check(plan.a, _unlike(plan), pairs),
        _groups(plan),
        _copies_of_x(plan),
        _fragments_of_x(plan),
        *fragment_checks(plan.mma),
        _sums(plan),
        *[_received(plan)] * (plan.config.split > 1),
        *_banks(plan),
        _map(plan),
        shared_memory_of(plan.arch, parts, plan.smem.total, 0, "gaps", plan.config.blocks_per_sm),
        registers(plan.arch, plan.threads, held, plan.config.blocks_per_sm),
    ]


# ------------------------------------------------------------------------------------------------------- who does what


def _bands(plan: StreamedPlan) -> Check:
    """Every band is of one cluster, for some grids of clusters."""
    witness, bands = "", plan.bands
    for clusters in sorted({min(clusters, bands) for clusters in (*_GRIDS, bands)}):
        cluster = np.arange(clusters)
        first, last = (np.asarray(v) for v in plan.share(cluster, clusters, bands, np.minimum))
        ends = np.append(first, bands)
        wrong = np.nonzero((last != ends[1:]) | (last < first))[0]
        if first[0] or len(wrong):
            at = int(wrong[0]) if len(wrong) else 0
            found = f"{at} of {clusters} has bands {first[at]} to {last[at]}, the next {ends[at + 1]}"
            witness = witness or f"cluster {found}"
        if int((last - first).max() - (last - first).min()) > 1:
            witness = (
                witness or f"of {clusters} clusters one has {int((last - first).max())} bands, and one fewer by two"
            )
    if STRIP * plan.a.band * bands < plan.m:
        witness = witness or f"{bands} bands of {STRIP * plan.a.band} are fewer than {plan.m} features"
    starts = plan.a.unit(np.arange(bands))
    rows = np.asarray(starts[0]) * UNIT_ROWS + np.asarray(starts[1]) * STRIP
    if (rows != np.arange(bands) * plan.a.band * STRIP).any() or QUARTERS % plan.a.band:
        witness = witness or "a band does not begin where the one before ends, or crosses a row block"
    features = STRIP * plan.a.band
    statement = f"runs of {bands} bands of {features} features cover {plan.m}, each band once, and differ by one"
    return Check("bands", statement, not witness, "exhaustion (grids)", witness)


def _units(plan: StreamedPlan) -> Check:
    """The warps of a cluster have every unit along K once; an item's number gives band and turn in order."""
    witness, config = "", plan.config
    times = np.zeros(plan.turns * config.warps * config.split, np.int64)
    own = np.zeros(plan.turns * config.warps, np.int64)
    for turn in range(plan.turns):
        np.add.at(own, np.asarray(plan.place_of(np.arange(config.warps), turn)), 1)
        for part in range(config.split):
            np.add.at(times, np.asarray(plan.unit_of(np.arange(config.warps), turn, part)), 1)
    if (times != 1).any() or len(times) < plan.units:
        at = int(np.nonzero(times != 1)[0][0]) if (times != 1).any() else len(times)
        witness = f"unit {at} of {plan.units} is taken {times[at] if at < len(times) else 0} times"
    if (own != 1).any():
        at = int(np.nonzero(own != 1)[0][0])
        witness = witness or f"place {at} of a block's units of x is taken {own[at]} times"
    number = np.arange(3 * plan.turns)
    further, place = (np.asarray(v) for v in plan.item(number))
    wrong = np.nonzero((further * plan.turns + place != number) | (place >= plan.turns))[0]
    if len(wrong):
        at = int(wrong[0])
        witness = witness or f"item {at} is turn {place[at]} of band {further[at]}"
    slot = {int(plan.slot(w, s)) for w in range(config.warps) for s in range(plan.stages)}
    if len(slot) != config.warps * plan.stages:
        witness = witness or f"{len(slot)} places of {config.warps} warps' {plan.stages} slots"
    blocks = f" of {config.split} blocks" if config.split > 1 else ""
    statement = (
        f"{config.warps} warps{blocks} take each of {plan.units} units along K once, in {plan.turns} turn(s) a band"
    )
    return Check("units", statement, not witness, f"exhaustion ({len(times)} units)", witness)


# ---------------------------------------------------------------------------------------------------- slots of a lane


def _slots(plan: StreamedPlan) -> Check:
    """A lane's loads find its own words and scales of the unit: words that it copied itself, scales of its warp."""
    a, order, lanes, witness = plan.a, plan.a.packing, np.arange(WARP), ""
    for quarter in range(0, QUARTERS, a.band):
        source, owner = np.full(a.slot_bytes, -1), np.full(a.slot_bytes, -1)
        times = np.zeros(a.slot_bytes, np.int64)
        for unit_byte, slot_byte, size, count in a.copies(lanes, quarter):
            first, target = np.asarray(unit_byte)[:count], np.asarray(slot_byte)[:count]
            if not 0 < count <= WARP or size not in (4, 8, 16) or (first % size).any() or (target % size).any():
                witness = (
                    witness or f"{count} lanes' copies of {size} bytes from {first[0]} to {target[0]}: not aligned"
                )
            for byte in range(size):
                source[target + byte], owner[target + byte] = first + byte, lanes[:count]
                np.add.at(times, target + byte, 1)
        for strip in range(a.band):
            thread, base = lanes + WARP * (quarter + strip), strip * a.strip_bytes
            loads = [(base + np.asarray(a.codes(lanes, v)), np.asarray(order.vector_bytes(thread, v)), VECTOR_BYTES,
                      f"vector {v}") for v in range(a.vectors)]  # fmt: skip
            loads += [
                (base + a.strip_codes + np.asarray(a.numbers(lanes, g)),
                 order.code_bytes + np.asarray(order.scale_bytes(thread, g)), a.number_bytes, f"scales {g}")
                for g in range(a.groups)
            ]  # fmt: skip
            for first, wanted, size, what in loads:
                at = first[:, None] + np.arange(size)
                bad = (source[at] != wanted[:, None] + np.arange(size)) | (times[at] != 1)
                bad |= (owner[at] != lanes[:, None]) & (what.startswith("vector") or not a.shares_scales)
                if bad.any():
                    lane, of = int(np.argwhere(bad)[0][0]), f"quarter {quarter + strip}"
                    witness = witness or f"{of}, lane {lane}, {what}: not its own, not copied once, or not by it"
    vectors, scales = f"{a.vectors} vector(s) of {a.band} strip(s) that it copied", f"{a.groups} scale(s) of its rows"
    statement = f"each lane loads {vectors}, and {scales} that {'its warp' if a.shares_scales else 'it'} copied"
    return Check("slots", statement, not witness, f"exhaustion ({QUARTERS}x{WARP} lanes)", witness)


def _ahead(plan: StreamedPlan) -> Check:
    """The bytes that are brought to L2 ahead are those that lanes copy."""
    witness, lanes = "", np.arange(WARP)
    for quarter in range(0, QUARTERS, plan.a.band):
        copies = plan.a.copies(lanes, quarter)
        copied = [np.asarray(at)[:count, None] + np.arange(size) for at, _, size, count in copies]
        wanted = np.unique(np.concatenate([each.reshape(-1) for each in copied]))
        runs = [int(first) + np.arange(size) for first, size in plan.a.runs(quarter)]
        found = np.sort(np.concatenate(runs))
        if len(found) != len(wanted) or (found != wanted).any():
            witness = witness or f"quarter {quarter}: {len(found)} bytes brought, {len(wanted)} copied, or others"
        if any(len(run) % VECTOR_BYTES or run[0] % VECTOR_BYTES for run in runs):
            witness = witness or f"quarter {quarter}: a run is no multiple of {VECTOR_BYTES} bytes"
    statement = f"{len(plan.a.runs(0))} run(s) of bytes are what the lanes of a warp copy of a unit"
    return Check("bytes ahead", statement, not witness, f"exhaustion ({QUARTERS} quarters)", witness)


def _unlike(plan: StreamedPlan) -> str:
    """The first register of a warp's share that is not the instruction's A, or ""."""
    order, atom, lanes = plan.a.packing, plan.mma, np.arange(WARP)[:, None]
    values = np.arange(int(atom.layout_A[1].size))[None, :]
    row, k = (np.asarray(v) for v in atom.coords("A")(lanes, values))
    for quarter in range(QUARTERS):
        have = [np.asarray(v) for v in order.atom.coords("A")(lanes + WARP * quarter, values)]
        wrong = np.argwhere((have[0] != row + STRIP * quarter) | (have[1] != k))
        if len(wrong):
            lane, value = (int(x) for x in wrong[0])
            found = f"row {have[0][lane, value]}, column {have[1][lane, value]}"
            return f"quarter {quarter}, lane {lane}, value {value}: {found}"
    return ""


def _groups(plan: StreamedPlan) -> Check:
    """When a unit is loaded, its own group is complete: there is one for each unit, in order."""
    witness, slots = "", plan.stages
    for number in range(2 * slots + 3):
        committed, pending = slots + plan.groups_of_x + number, slots - 1
        own = number + (plan.groups_of_x if number >= slots else 0)
        complete = max(committed - pending, (slots + plan.groups_of_x) * (plan.groups_of_x > 0))
        if complete < 1 + own:
            witness = witness or f"unit {number}: of {committed} groups {complete} are complete"
    reused = all((number + slots) % slots == number % slots for number in range(slots))
    witness = witness or ("" if reused else "a unit is copied over one that is not the one just loaded")
    statement = (
        f"with {slots} slots, a unit's group is complete when all but {slots - 1} are, and its slot is refilled next"
    )
    return Check("groups of copies", statement, not witness, f"exhaustion ({2 * slots + 3} units)", witness)


# ------------------------------------------------------------------------------------------------------------- x, sums


def _copies_of_x(plan: StreamedPlan) -> Check:
    """Each warp's lanes fill the columns of x that it multiplies, each once."""
    b, witness = plan.b, ""
    row, byte = (np.asarray(v) for v in b.chunk(np.arange(b.unit_chunks)))
    warps, turns = np.arange(plan.config.warps), np.arange(plan.turns)
    units = np.asarray(plan.place_of(warps[:, None], turns[None, :])).reshape(-1)
    at = (np.asarray(b.byte(row, 0)) + byte)[None, :] + units[:, None] * b.unit_step
    if not plan.n <= b.rows <= COLUMNS:
        witness = f"room for {b.rows} rows of {plan.n}"
    if b.depth * plan.config.split < plan.k or b.depth * b.dtype.bytes != len(units) * b.unit_step:
        witness = f"lines of {b.depth} for K = {plan.k} and {len(units)} units"
    if (at % VECTOR_BYTES).any() or int(at.max()) + VECTOR_BYTES > b.bytes:
        witness = witness or f"a vector at byte {int(at.max())} of {b.bytes}"
    columns = np.arange(0, b.depth, VECTOR_BYTES // b.dtype.bytes)
    wanted = np.sort(np.asarray(b.byte(np.arange(b.rows)[:, None], columns)).reshape(-1))
    if not np.array_equal(np.sort(at.reshape(-1)), wanted):
        witness = witness or f"{at.size} vectors are not the {len(wanted)} of all lines, each once"
    statement = (
        f"{at.size} vectors of 16 bytes fill {b.rows} line(s) of {b.depth} elements, each once, by its unit's warp"
    )
    return Check("copies B", statement, not witness, f"exhaustion ({at.size} vectors)", witness)


def _fragments_of_x(plan: StreamedPlan) -> Check:
    """The lanes' own addresses give mma.sync's B of every fragment; columns of no row of x may have any."""
    b, atom, witness = plan.b, plan.mma, ""
    lanes, values = np.arange(WARP)[:, None], np.arange(int(atom.layout_B[1].size))[None, :]
    n, k = (np.asarray(v) for v in atom.coords("B")(lanes, values))
    if len(b.places.bases) != 1:
        witness = f"{len(b.places.bases)} addresses a lane, and the kernel has one"
    places = register_bytes(b) if not witness else None
    for number in range(b.fragments if places is not None else 0):
        assert places is not None
        load, first = b.load_of(number)
        raw = places[load, :, first : first + atom.registers("B")].reshape(WARP, -1)[:, :: b.dtype.bytes]
        wanted = np.asarray(b.byte(n, k + number * atom.shape_mnk[2]))
        wrong = np.argwhere((raw != wanted) & (n < b.rows))
        if len(wrong):
            lane, value = (int(x) for x in wrong[0])
            witness = witness or f"fragment {number}, lane {lane}, value {value}: byte {raw[lane, value]}"
    statement = f"{b.loads} ldmatrix.x4 give B's {b.fragments} fragments of a unit, for {b.rows} of {COLUMNS} columns"
    return Check("fragments B", statement, not witness, f"exhaustion ({b.fragments} fragments)", witness)


def _sums(plan: StreamedPlan) -> Check:
    """Sums lie apart; one thread adds each element of the strips, one stores it, and its pairs are of one row."""
    witness, config = "", plan.config
    room = config.strips * plan.smem.c_buffer_bytes // F32
    if not plan.sums.is_injective() or plan.sums.cosize > room:
        witness = f"{plan.sums} has two elements in one place, or more than {room} sums"
    for strips in {config.strips, plan.own_strips}:
        witness = witness or _taken(plan, strips)
    statement = f"sums of {config.warps} warps and {config.strips} strips lie apart; one thread adds each element"
    return Check(
        "sums", statement, not witness, f"exhaustion ({config.strips * STRIP}x{plan.b.rows} elements)", witness
    )


def _taken(plan: StreamedPlan, strips: int) -> str:
    """The first element that not exactly one thread takes, or a pair of two rows; else ""."""
    rows, thread = strips * STRIP, np.arange(plan.threads)
    times = np.zeros((rows, plan.b.rows), np.int64)
    for value in range(plan.values_of(strips)):
        row, column = np.broadcast_arrays(*(np.asarray(v) for v in plan.coords_C(thread, value)))
        inside = (row < rows) & (column < plan.b.rows)
        np.add.at(times, (row[inside], column[inside]), 1)
        if value % 2 and (row != plan.coords_C(thread, value - 1)[0]).any():
            return f"values {value - 1} and {value} are not neighbours of a row"
    return not_once(times, f"row {{}}, column {{}} of {strips} strips is taken {{}} times")


def _received(plan: StreamedPlan) -> Check:
    """Each sum that a block sends has a place of its own."""
    witness, config = "", plan.config
    room = plan.smem.received_bytes // F32
    if not plan.received.is_injective() or plan.received.cosize > room:
        witness = f"{plan.received} has two sums in one place, or more than {room}"
    owners = np.arange(config.strips) // plan.own_strips
    if owners.max() >= config.split or (np.bincount(owners, minlength=config.split) != plan.own_strips).any():
        witness = witness or f"{config.strips} strips are not {plan.own_strips} for each of {config.split} blocks"
    statement = f"{config.split} blocks' sums of {config.strips} strips lie apart in the block that stores a strip"
    return Check("sums of blocks", statement, not witness, "exhaustion (layout)", witness)


# -------------------------------------------------------------------------------------------------------------- memory


def _banks(plan: StreamedPlan) -> list[Check]:
    """Loads of slots, of x, and both accesses to sums."""
    a, lanes = plan.a, np.arange(WARP)
    codes = [np.asarray(a.codes(lanes, v)) for v in range(a.vectors)]
    found = [bank_conflicts(np.stack(codes), VECTOR_BYTES, "ld.shared").as_check("banks A")]
    if a.groups:
        numbers = [np.asarray(a.numbers(lanes, g)) for g in range(a.groups)]
        found.append(bank_conflicts(np.stack(numbers), a.number_bytes, "ld.shared").as_check("banks of scales"))
    lines = [np.asarray(plan.b.line_byte(lanes, load, np.minimum)) for load in range(plan.b.loads)]
    found.append(bank_conflicts(np.stack(lines), VECTOR_BYTES, "ldmatrix").as_check("banks B"))
    if plan.b.rows == COLUMNS:  # of fewer columns some lanes store and add nothing
        i, j = (np.asarray(v) for v in plan.mma.coords("C")(lanes[:, None], np.arange(plan.mma.accumulator_registers)))
        put = np.broadcast_arrays(np.asarray(plan.sums(i, j, 0, 0)).T * F32)[0]
        found.append(bank_conflicts(put, F32, "st.shared").as_check("banks of sums, stored"))
        row, column = (np.asarray(v) for v in plan.coords_C(lanes, 0))
        added = np.asarray(plan.sums(row % STRIP, column, 0, row // STRIP))[None] * F32
        found.append(bank_conflicts(added, F32, "ld.shared").as_check("banks of sums, added"))
    return found


def _map(plan: StreamedPlan) -> Check:
    """Slots, x and sums lie apart, and aligned."""
    smem, config = plan.smem, plan.config
    regions = [
        (f"slot {s} of warp {w}", int(plan.slot(w, s)), plan.a.slot_bytes, VECTOR_BYTES)
        for w in range(config.warps)
        for s in range(plan.stages)
    ]
    regions.append(("x", smem.b_offset, plan.b.bytes, VECTOR_BYTES))
    regions += [
        (f"sums {s}", smem.c_offset + s * smem.c_buffer_bytes, smem.c_buffer_bytes, 4) for s in range(config.strips)
    ]
    if smem.received_bytes:
        regions.append(("sums of blocks", smem.received_offset, smem.received_bytes, F32))
    witness = misplaced(regions, smem.alignment, smem.total)
    statement = (
        f"{config.warps}x{plan.stages} slots, x and sums of {config.strips} strips lie apart in {smem.total} bytes"
    )
    return Check("map", statement, not witness, "arithmetic", witness)
