"""Matrices that an epilogue reads, on the way that C goes out. Line by line into a warp's buffer, then by ldmatrix.

A lane of an accumulator has two neighbours of a row. Loads of its own elements touch eight lines of memory, 16 bytes of
each; eight lanes that read along a row touch one line.

    16 rows x width --ld.global, 16 bytes a lane--> registers --st.shared--> buffer, as C lies there --ldmatrix--> pairs

The loads of a round are issued before the round before it is converted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...dsl import bridge
from ...dsl.fused import FusedBlock
from ...dsl.math import load_sixteen_bytes
from ...epilogue.chain import EpilogueOperand
from ...store import WARP_ROWS, RowVectors, StoreChunk, StoreRound


class BufferedMatrices:
    """The matrices of a warp's 16 rows of one block.

    fused  the epilogue of the block, which gets the elements
    first  the warp's first row of C
    """

    def __init__(self, matrices: Sequence[EpilogueOperand], fused: FusedBlock, first: Int32, lane: Int32):
        self.matrices, self.fused, self.first, self.lane = matrices, fused, first, lane
        self.lines: dict[tuple[str, int, int], Int64] = {}  # addresses of a lane's rows, which all rounds share
        self.rounds: Iterator[StoreRound] = iter(())  # those whose loads are not issued yet
        self.loaded: list[list[Int32]] = []  # a round's vectors: of each matrix those of each chunk

    def begin(self, rounds: Sequence[StoreRound]) -> None:
        """Issue the loads of the first of the rounds."""
        self.rounds = iter(rounds)
        self.load_next()

    def load_next(self) -> None:
        """Issue the loads of the next round, if there is one."""
        chunks = next((round_.chunks for round_ in self.rounds), ())
        self.loaded = [vector for matrix in self.matrices for chunk in chunks for vector in self.vectors(matrix, chunk)]

    def vectors(self, matrix: EpilogueOperand, chunk: StoreChunk) -> list[list[Int32]]:
        """The lane's vectors of a chunk. Outside of C they are of its edge: what comes of them is not stored."""
        job, vectors, size = self.fused.job, RowVectors(chunk.tile), matrix.dtype.bytes
        found = []
        for number in range(vectors.passes):
            i, j = vectors.place(number, self.lane)
            column = cutlass.min(self.fused.column + chunk.column + j, job.n - vectors.width)
            found.append(load_sixteen_bytes(self.line(matrix, (vectors.vectors, number), i) + Int64(column) * size))
        return found

    def line(self, matrix: EpilogueOperand, key: tuple[int, int], i: Int32) -> Int64:
        """The address of a row's first element; `key` tells the row from the lane's others."""
        job = self.fused.job
        if (at := (matrix.name, *key)) not in self.lines:
            row = Int64(cutlass.min(self.first + i, job.m - 1))
            first = self.fused.of_batch(matrix, getattr(job.given, matrix.name))
            self.lines[at] = first + row * getattr(job.given, f"{matrix.name}_ld") * matrix.dtype.bytes
        return self.lines[at]

    def take(self, round_: StoreRound, buffer: cute.Pointer) -> None:
        """Give a round's elements to the epilogue through the round's buffer, which is free. Load the next ones."""
        loaded = iter(self.loaded)
        self.load_next()
        for matrix in self.matrices:
            for chunk in round_.chunks:
                self.put(loaded, chunk, buffer + chunk.offset)
            bridge.warp_sync()
            for chunk in round_.chunks:
                self.get(matrix, chunk, buffer + chunk.offset)
            bridge.warp_sync()

    @cute.jit
    def put(self, loaded: Iterator[list[Int32]], chunk: StoreChunk, tile: cute.Pointer) -> None:
        """A chunk's vectors into its tile."""
        vectors = RowVectors(chunk.tile)
        for number in cutlass.range_constexpr(vectors.passes):
            words = next(loaded)
            i, j = vectors.place(number, self.lane)
            address = (tile + vectors.byte((i, j))).toint()
            if const_expr(vectors.is_even):
                bridge.store_shared(address, words)
            else:
                if i < WARP_ROWS:
                    bridge.store_shared(address, words)

    def get(self, matrix: EpilogueOperand, chunk: StoreChunk, tile: cute.Pointer) -> None:
        """A chunk's pairs out of its tile, from where C's pairs go."""
        for i in range(chunk.values // 2 // chunk.matrices):
            row = tile + chunk.rows((self.lane, (i, 0))) * matrix.dtype.bytes
            for number, word in enumerate(bridge.load_matrices(row, chunk.matrices)):
                self.fused.hold(matrix, chunk.first_value + 2 * (i * chunk.matrices + number), word)
