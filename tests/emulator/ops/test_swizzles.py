"""A tile that is written in one swizzle and read in another."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from layoutgemm.atoms.smem.tile import swizzle_of
from layoutgemm.emulator.machine.memory import WHOLE, CtaSharedMemory, LoadedBox, TileBox
from layoutgemm.emulator.ops.swizzles import ROWS, check_loaded, check_operand, check_stored

LINE = 8  # chunks of 128 bytes
START, ROW_COUNT = 64, 16


def column(swizzle: str, at: int = 0, first: int = 0) -> np.ndarray:
    """The chunks of column `at` in 8 rows of a tile of 128-byte rows."""
    offsets = (START + LINE * (first + np.arange(ROWS)) + at) * 16
    return np.asarray(swizzle_of(swizzle)(offsets)) // 16


class Threads:
    """A tile of 8 rows that threads wrote from rows of global memory."""

    def __init__(self, swizzle: str, pitch: int) -> None:
        self.shared, self.found = CtaSharedMemory(4096), list[tuple[str, str]]()
        for at in range(LINE):
            rows = column(swizzle, at)
            content = np.random.default_rng(at).integers(0, 256, 128, dtype=np.uint8).view(WHOLE)
            self.shared.chunks[rows] = content
            labels = 1 << 40 | np.arange(ROWS) * pitch + 16 * at
            self.shared.came(rows, labels, content, 7, lambda: "cp.async")

    def report(self, kind: str, message: str, orders: str = "") -> None:
        """Keep a finding."""
        self.found.append((kind, message))

    def matrix(self, swizzle: str) -> list[tuple[str, str]]:
        """The findings of an ldmatrix.x4."""
        check_loaded(self.shared, np.concatenate([column(swizzle, at) for at in range(4)]), self.report)
        return self.found

    def operand(self, swizzle: str) -> list[tuple[str, str]]:
        """The findings of an operand that a descriptor reads."""
        chunks = np.stack([column(swizzle, at) for at in range(4)], axis=1)
        check_operand(self.shared, swizzle, chunks, self.report)
        return self.found


class Tile:
    """Shared memory with a loaded box of 16 rows of 128 bytes, and the findings."""

    def __init__(self, swizzle: str, content: str = "random") -> None:
        self.shared, self.found = CtaSharedMemory(4096), list[tuple[str, str]]()
        self.tile = TileBox(swizzle, LINE)
        self.chunks = np.concatenate([column(swizzle, at, row) for row in (0, 8) for at in range(LINE)])
        values = np.random.default_rng(0).integers(0, 256, 16 * len(self.chunks), dtype=np.uint8)
        self.content = (values if content == "random" else np.zeros_like(values)).view(WHOLE)
        self.shared.chunks[self.chunks] = self.content
        self.load()

    def load(self, start: int = START) -> None:
        """Note the box as loaded."""
        end = START + len(self.chunks)
        self.shared.load(start, LoadedBox(self.tile, START, end, self.chunks, self.content, lambda: "a load"))

    def report(self, kind: str, message: str, orders: str = "") -> None:
        """Keep a finding."""
        self.found.append((kind, message))

    def operand(self, swizzle: str, rows: int = ROW_COUNT) -> list[str]:
        """The kinds of findings of an operand that a descriptor reads."""
        chunks = np.concatenate([column(swizzle, at, row) for row in range(0, rows, 8) for at in (0, 1)])
        check_operand(self.shared, swizzle, chunks.reshape(-1, 2), self.report)
        return [kind for kind, _ in self.found]

    def matrix(self, swizzle: str) -> list[str]:
        """The kinds of findings of an ldmatrix.x2."""
        check_loaded(self.shared, np.concatenate([column(swizzle, at) for at in (2, 3)]), self.report)
        return [kind for kind, _ in self.found]

    def store(self, swizzle: str) -> list[str]:
        """The kinds of findings of a tensor store of what stmatrix wrote in a swizzle."""
        rows = np.concatenate([column(swizzle, at) for at in range(4)])
        self.shared.came(rows, ROWS, self.shared.chunks[rows], 7, lambda: "stmatrix")
        check_stored(self.shared, self.tile, START, self.chunks, self.report)
        return [kind for kind, _ in self.found]


@pytest.mark.parametrize("read", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("wrote", ["none", "32B", "64B", "128B"])
def test_only_another_swizzle_is_reported(wrote: str, read: str) -> None:
    kind = [] if read == wrote else ["lint" if wrote == "none" else "descriptor"]
    assert Tile(wrote).operand(read) == kind
    assert Tile(wrote).matrix(read) == Tile(wrote).store(read) == ["lint"] * (read != wrote)


@pytest.mark.parametrize("pitch", [128, 144, 4096])
def test_what_threads_copied_is_compared(pitch: int) -> None:
    for wrote, read in product(("none", "32B", "64B", "128B"), repeat=2):
        for found in (Threads(wrote, pitch).matrix(read), Threads(wrote, pitch).operand(read)):
            assert [kind for kind, _ in found] == ["lint"] * (read != wrote), (wrote, read)
            assert all(wrote in text and read in text and "cp.async" in text for _, text in found)


def test_rows_that_threads_gathered_are_no_finding() -> None:
    tile = Threads("128B", 128)
    assert tile.shared.origins is not None
    rows = tile.shared.origins.label
    rows[rows > 0] += (rows[rows > 0] & 1023) // 128**2 * 4096
    assert tile.matrix("128B") == tile.operand("128B") == []


def test_the_message_names_the_writer_and_both_swizzles() -> None:
    tile = Tile("64B")
    tile.operand("128B")
    assert "with swizzle 128B what a load wrote with swizzle 64B" in tile.found[0][1]
    tile.store("none")
    assert "with swizzle 64B what stmatrix wrote with swizzle none" in tile.found[1][1]


def test_values_that_the_swizzle_does_not_change_are_no_finding() -> None:
    assert Tile("64B", "zeros").operand("128B") == []


def test_a_tile_that_threads_changed_is_no_finding() -> None:
    tile = Tile("none")
    tile.shared.chunks[tile.chunks[5]] = 1.0
    assert tile.operand("128B") == tile.matrix("128B") == []


def test_unused_rows_in_another_tensors_tile_are_no_finding() -> None:
    """An operand of 64 rows reads beyond a tile of 16, into what lies there."""
    tile = Tile("128B")
    tile.shared.boxes.clear()
    half = len(tile.chunks) // 2
    for number, swizzle in enumerate(("128B", "64B")):
        part = slice(half * number, half * (number + 1))
        tile.tile, chunks, end = TileBox(swizzle, LINE), tile.chunks[part], START + len(tile.chunks)
        tile.shared.load(number, LoadedBox(tile.tile, START, end, chunks, tile.content[part], lambda: "a load"))
    assert tile.operand("128B") == []


def test_a_later_load_counts() -> None:
    tile = Tile("64B")
    tile.tile = TileBox("128B", LINE)
    tile.load(start=0)
    assert tile.operand("128B") == []


def test_a_load_of_another_kind_is_compared_again() -> None:
    tile = Tile("64B")
    tile.shared.compared.reads.add("a read")
    tile.load()
    assert tile.shared.compared.reads
    tile.tile = TileBox("128B", LINE)
    tile.load()
    assert not tile.shared.compared.reads
