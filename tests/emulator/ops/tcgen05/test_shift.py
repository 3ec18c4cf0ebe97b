"""tcgen05.shift and .ashift in the emulator: which words go where, in which order, and what is refused.

The rule is that of NVIDIA's example of .ashift (`shifted[r] = A[r + 1]` in each 32 rows, the last one stays), said
again here on arrays.
"""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.atoms.mma.tcgen05 import tcgen05_mma
from layoutgemm.errors import EmulatorError, PtxError
from tests.emulator.ops.tcgen05.case import EARLY, Case, only
from tests.emulator.run_ptx import run
from tests.micro import tcgen05 as text_of

COPY = "tcgen05.cp.cta_group::1.{} [%base], %descA;"
WORD = 1 << 46 | 128 >> 4 << 32 | 4096 >> 4 << 16  # no swizzle, K-major: `tests/emulator/ops/tcgen05/test_copy.py`


def by_one(rows):
    """Within each 32 rows of the second axis from the end: row r gets row r + 1, the last stays."""
    out = rows.copy()
    out[..., :-1, :] = rows[..., 1:, :]
    out[..., 31::32, :] = rows[..., 31::32, :]
    return out


def shifted(body, group=1, policy=None, given=None, tile=False):
    """Run the body on an image of 16 columns; the result, and the image before."""
    rng = np.random.default_rng(7)
    image = rng.integers(0, 1 << 32, size=(group, 128, 16), dtype=np.uint32)
    tiles = {"A": text_of.Tile(8192, WORD)} if tile else {}
    text = text_of.kernel([*body, *text_of.commit(group)], tiles, 16, group, given)
    buffers = {"T": image.copy()} | ({"A": np.zeros((group, 8192), dtype=np.uint8)} if tile else {})
    return run(text, buffers, block=128, grid=group, cluster=group, policy=policy), image


@pytest.mark.parametrize("lane", (0, 32, 64, 96))
@pytest.mark.parametrize("group", (1, 2))
def test_the_rows_of_one_sub_partition_move(group: int, lane: int) -> None:
    body = [f"add.u32 %at, %base, {(lane << 16) + 3};", f"tcgen05.shift.cta_group::{group}.down [%at];"]
    for policy in (None, EARLY):
        found, image = shifted(body, group, policy)
        image[:, lane : lane + 32, 3:11] = by_one(image[:, lane : lane + 32, 3:11])
        assert found.findings == [] and np.array_equal(found["T"], image)


def test_the_other_spelling_of_the_manual() -> None:
    found, image = shifted(["tcgen05.shift.down.cta_group::1 [%base];"])
    assert found.findings == [] and np.array_equal(found["T"][:, :31, :8], image[:, 1:32, :8])


@pytest.mark.parametrize("group", (1, 2))
@pytest.mark.parametrize("kind,element,accumulator", (("f16", "bf16", "f32"), ("tf32", "tf32", "f32")))
def test_ashift(kind: str, element: str, accumulator: str, group: int) -> None:
    """NVIDIA's example: a product with .ashift, then one without that overwrites it, of A's rows moved by one."""
    case = Case(tcgen05_mma(kind, 128 * group, 32, element, element, accumulator, group, a_source="tmem"), adds=False)
    at = next(index for index, line in enumerate(case.body) if line.startswith("tcgen05.mma"))
    product = case.body[at]
    first = product.replace(f"kind::{kind}", f"kind::{kind}.ashift")
    plain = case.exact
    for body, wanted in (
        ([first], plain),  # the rows move after they have been read
        ([first, product], by_one(plain)),  # a row of D is a row of A times B
        ([first, first, product], by_one(by_one(plain))),
    ):
        text = text_of.kernel(
            [*case.body[:at], *body, *case.body[at + 1 :]], case.tiles, case.image.shape[2], group
        )  # fmt: skip
        for policy in (None, EARLY):
            found = case.run(text, policy)
            assert found.findings == []
            assert np.array_equal(case.result(found), wanted)


def test_a_shift_and_products_are_in_order() -> None:
    """mma -> shift -> mma of one thread need no wait: the first reads the rows as they were, the second moved."""
    case = Case(tcgen05_mma("f16", 128, 32, "bf16", "bf16", "f32", a_source="tmem"), adds=False)
    at = next(index for index, line in enumerate(case.body) if line.startswith("tcgen05.mma"))
    moves = []
    for lane in (0, 32, 64, 96):
        moves += [f"add.u32 %at, %a, {lane << 16};", "tcgen05.shift.cta_group::1.down [%at];"]
    body = [*case.body[: at + 1], *moves, *case.body[at:]]
    for policy in (None, EARLY):
        found = case.run(text_of.kernel(body, case.tiles, case.image.shape[2]), policy)
        assert found.findings == [] and np.array_equal(case.result(found), by_one(case.exact))


SHIFT = "tcgen05.shift.cta_group::1.down [%base];"


@pytest.mark.parametrize(
    "body,races",
    (
        ([SHIFT, SHIFT], True),
        ([COPY.format("128x128b"), SHIFT], True),
        ([SHIFT, COPY.format("128x128b")], True),
        ([SHIFT, COPY.format("4x256b")], False),
        ([SHIFT, "add.u32 %at, %base, 8;", SHIFT.replace("%base", "%at")], False),
        ([SHIFT, "add.u32 %at, %base, 0x200000;", SHIFT.replace("%base", "%at")], False),
    ),
)
def test_unordered_pipeline_pairs_race(body: list[str], races: bool) -> None:
    found, _ = shifted(body, tile=any(".cp." in line for line in body))
    if races:
        only(found, "race", "PTX pipelines no such pair")
    else:
        assert found.findings == []


def test_waiting_for_a_commit_orders_everything() -> None:
    waits = "{0}:\n  mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], {1};\n  @!%done bra {0};\n"
    first = [*text_of.commit(), *waits.format("committed", 0).splitlines()]
    text = text_of.kernel([SHIFT, *first, SHIFT, *text_of.commit()], {}, 16)
    text = text.replace(waits.format("wait", 0), waits.format("before", 0) + waits.format("wait", 1))
    image = np.arange(128 * 16, dtype=np.uint32).reshape(1, 128, 16)
    found = run(text, {"T": image.copy()}, block=128)
    wanted = image.copy()
    wanted[:, :32, :8] = by_one(by_one(image[:, :32, :8]))
    assert found.findings == [] and np.array_equal(found["T"], wanted)


def test_a_shift_is_watched_like_any_access() -> None:
    text = text_of.kernel([SHIFT, *text_of.commit()], {}, 16)
    image = np.zeros((1, 128, 16), dtype=np.uint32)
    only(run(text.replace("  @!%done bra wait;\n", ""), {"T": image}, block=128), "race", "tensor memory of CTA")


def test_words_that_nothing_wrote_move_as_such() -> None:
    """A product that reads them is told, in the row to which they went."""
    case = Case(tcgen05_mma("f16", 128, 32, "bf16", "bf16", "f32", a_source="tmem"), adds=False)
    at = next(index for index, line in enumerate(case.body) if line.startswith("tcgen05.mma"))
    first = case.body[at].replace("kind::f16", "kind::f16.ashift")
    given = [column for column in range(0, case.image.shape[2], 8) if column != case.at["A"]]
    text = text_of.kernel([*case.body[:at], first, *case.body[at:]], case.tiles, case.image.shape[2], 1, given)
    assert set(case.run(text).kinds) == {"uninitialised"}


@pytest.mark.parametrize(
    "line,says",
    (
        ("add.u32 %at, %base, 0x100000; tcgen05.shift.cta_group::1.down [%at];", "multiple of 32"),
        ("sub.u32 %at, %base, 4; tcgen05.shift.cta_group::1.down [%at];", "not allocated"),
    ),
)
def test_wrong_addresses(line: str, says: str) -> None:
    with pytest.raises(EmulatorError, match=says):
        shifted([line])


@pytest.mark.parametrize(
    "old,new",
    (
        ("shift.cta_group::1.down", "shift.cta_group::1.up"),
        ("shift.cta_group::1.down", "shift.cta_group::1"),
        ("shift.cta_group::1.down", "shift.down"),
        ("[%base]", "[%base], 1"),
    ),
)
def test_unknown_forms_are_refused_at_load(old: str, new: str) -> None:
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        shifted([SHIFT.replace(old, new)])


@pytest.mark.parametrize("m,word,says", ((64, "kind::f16.ashift", "M = 128 or 256"),))
def test_ashift_has_its_sizes(m: int, word: str, says: str) -> None:
    case = Case(tcgen05_mma("f16", m, 32, "bf16", "bf16", "f32", a_source="tmem"))
    with pytest.raises(EmulatorError, match=says):
        case.run(case.text.replace("kind::f16", word))


@pytest.mark.parametrize("words", ("ashift.collector::a::fill", "collector::a::use.ashift"))
def test_ashift_is_refused_with_what_it_excludes(words: str) -> None:
    case = Case(tcgen05_mma("f16", 128, 32, "bf16", "bf16", "f32", a_source="tmem"))
    with pytest.raises(PtxError, match="ashift"):
        case.run(case.text.replace("kind::f16 ", f"kind::f16.{words} "))
    shared = Case(tcgen05_mma("f16", 128, 32, "bf16", "bf16", "f32"))
    with pytest.raises(PtxError, match="A in tensor memory"):
        shared.run(shared.text.replace("kind::f16 ", "kind::f16.ashift "))
