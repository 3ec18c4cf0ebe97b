"""Tensor memory, 7: the way of an accumulator into the next MMA. Load it, convert it, and store it as operand A.

    python kernels/blackwell_07_round_trip.py

Needs: dsl.

This is the middle of attention: S = Q K^T stays in tensor memory, a warp converts it to P, and O = P V reads P from
tensor memory. Nothing passes through shared memory. Operand A has one row per lane, with its elements along K packed
into words (`Tcgen05Atom.operand_a`). tcgen05.ld 32x32b gives a thread a row of the accumulator in the same order. Here
P is S rounded to bf16, with small integers, so that all results are exact. No Blackwell GPU has run this: its evidence
is the compiler and the emulator.
"""

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Int32, Int64

from layoutgemm.atoms import tcgen05_ld, tcgen05_mma, tcgen05_st
from layoutgemm.atoms.smem.instruction_descriptor import instruction_descriptor
from layoutgemm.atoms.tmem.layout import WARP_LANES, WORD_BITS, allocation_columns, tmem_address
from layoutgemm.checks import Mbarrier
from layoutgemm.dtypes import bf16, f32
from layoutgemm.kernels import Operand
from layoutgemm.kernels.derive import derive_operand
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.dsl import tcgen05 as tensor
from layoutgemm.kernels.ladder.primitives import Regions, emulate, right

ROWS, KEYS, DEPTH, WIDTH, THREADS = 128, 64, 64, 32, 128  # Q is ROWS x DEPTH, K KEYS x DEPTH, V KEYS x WIDTH


class RoundTrip:
    """Computes O = (Q K^T) V with Q K^T in tensor memory."""

    def __init__(self) -> None:
        self.first = tcgen05_mma("f16", ROWS, KEYS, "bf16")
        self.second = tcgen05_mma("f16", ROWS, WIDTH, "bf16", a_source="tmem")
        self.q = derive_operand("A", Operand.parse("bf16"), "M", ROWS, DEPTH, None, self.first)
        self.k = derive_operand("B", Operand.parse("bf16:col"), "N", KEYS, DEPTH, None, self.first)
        self.v = derive_operand("B", Operand.parse("bf16"), "N", WIDTH, KEYS, None, self.second)
        self.words = (
            instruction_descriptor(self.first).word, instruction_descriptor(self.second, "K", self.v.major).word
        )  # fmt: skip
        # Columns: S, then P, then O. One instruction reads `step` columns of P: its K elements, packed.
        self.step = self.second.operand_a.columns
        packed = KEYS * bf16.bits // WORD_BITS
        self.p_at, self.o_at, self.columns = KEYS, KEYS + packed, allocation_columns(KEYS + packed + WIDTH)
        self.ld, self.st = tcgen05_ld("32x32b", KEYS), tcgen05_st("32x32b", packed, element="i32")
        self.ld_o = tcgen05_ld("32x32b", WIDTH)
        tiles = {"q": self.q, "k": self.k, "v": self.v}
        self.smem = Regions.of(
            **{name: (op.smem.bytes, 1024) for name, op in tiles.items()},
            loaded=(8, 8), scores=(8, 8), done=(8, 8), slot=(4, 8),
        )  # fmt: skip
        # Phases complete by the loader's arrival and the bytes of all tiles, and by one commit.
        self.loaded = Mbarrier("loaded", count=1, bytes=sum(op.tma.bytes for op in tiles.values()))
        self.barriers = self.loaded, Mbarrier("scores", count=1), Mbarrier("done", count=1)

    @cute.jit
    def __call__(self, q: Int64, k: Int64, v: Int64, o: Int64, stream: bridge.Stream) -> None:
        """Host side: tensor maps, and one CTA."""
        map_q = bridge.encode_tensor_map(self.q.tma, q, {"m": Int32(ROWS), "k": Int32(DEPTH)}, Int64(DEPTH))
        map_k = bridge.encode_tensor_map(self.k.tma, k, {"n": Int32(KEYS), "k": Int32(DEPTH)}, Int64(DEPTH))
        map_v = bridge.encode_tensor_map(self.v.tma, v, {"n": Int32(WIDTH), "k": Int32(KEYS)}, Int64(WIDTH))
        self.kernel(map_q, map_k, map_v, o).launch(
            grid=(1, 1, 1), block=(THREADS, 1, 1), smem=self.smem.total, stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        map_q: cutlass.GridConstant[bridge.TensorMap],
        map_k: cutlass.GridConstant[bridge.TensorMap],
        map_v: cutlass.GridConstant[bridge.TensorMap],
        o: Int64,
    ) -> None:
        """Device side."""
        thread, _, _ = cute.arch.thread_idx()
        warp = bridge.uniform(thread // 32)
        shared = tensor.SharedRegions(self.smem)
        if thread == 0:
            for barrier in self.barriers:
                bridge.barrier_init(shared[barrier.name], barrier.arrivals)
            bridge.barriers_visible()
        if warp == 0:
            tensor.tensor_allocate(shared["slot"], self.columns)
            tensor.tensor_relinquish()
        bridge.block_sync()
        base = tensor.tensor_address(shared["slot"])
        own = base + warp * tmem_address(WARP_LANES, 0)
        q, k, v = (
            tensor.TensorOperand(op.descriptor, shared[name], op.smem.bytes)
            for name, op in (("q", self.q), ("k", self.k), ("v", self.v))
        )

        # 1. S = Q K^T.
        if warp == 0:
            if bridge.elect():
                zero = {"m": Int32(0), "n": Int32(0), "k": Int32(0)}
                bridge.barrier_expect(shared["loaded"], self.loaded.bytes)
                bridge.load_tile(map_q, self.q.tma, zero, shared["q"], shared["loaded"])
                bridge.load_tile(map_k, self.k.tma, zero, shared["k"], shared["loaded"])
                bridge.load_tile(map_v, self.v.tma, zero, shared["v"], shared["loaded"])
            bridge.barrier_wait(shared["loaded"], 0)
            if bridge.elect():
                for block in cutlass.range_constexpr(len(self.q.descriptor.k_steps)):
                    words = q.word_at(0, block), k.word_at(0, block)
                    tensor.tensor_multiply(self.first, self.words[0], base, *words, block > 0)
                tensor.tensor_commit(shared["scores"])

        # 2. Every thread loads its row of S, rounds it, and stores it as a row of P.
        bridge.barrier_wait(shared["scores"], 0)
        tensor.fence_after_sync()
        row = tensor.tensor_load(self.ld, own)
        pairs = [bridge.convert_pair(row[i], row[i + 1], bf16) for i in range(0, KEYS, 2)]
        tensor.tensor_store(self.st, own + self.p_at, pairs)
        tensor.tensor_stored()

        # 3. After all rows of P are stored: O = P V, with P from tensor memory.
        tensor.fence_before_sync()
        bridge.block_sync()
        if warp == 0:
            tensor.fence_after_sync()
            if bridge.elect():
                for block in cutlass.range_constexpr(len(self.v.descriptor.k_steps)):
                    p = base + (self.p_at + block * self.step)
                    target, v_word = base + self.o_at, v.word_at(0, block)
                    tensor.tensor_multiply(self.second, self.words[1], target, p, v_word, block > 0)
                tensor.tensor_commit(shared["done"])
        bridge.barrier_wait(shared["done"], 0)
        tensor.fence_after_sync()
        for column, value in enumerate(tensor.tensor_load(self.ld_o, own + self.o_at)):
            bridge.store_element(o + (thread * WIDTH + column) * 4, value, f32)

        tensor.fence_before_sync()
        bridge.block_sync()
        if warp == 0:
            tensor.fence_after_sync()
            tensor.tensor_free(base, self.columns)


def main() -> None:
    rng = np.random.default_rng(0)
    kernel = RoundTrip()
    q, k = (rng.integers(-1, 2, (rows, DEPTH)).astype(np.float32) for rows in (ROWS, KEYS))
    v = rng.integers(-3, 4, (KEYS, WIDTH)).astype(np.float32)
    o = np.full((ROWS, WIDTH), np.nan, np.float32)
    emulate("round trip", kernel, {"q": bf16.encode(q), "k": bf16.encode(k), "v": bf16.encode(v), "o": o})
    said = f"P in {kernel.second.operand_a}; exact, in every order of events"
    right("O = (Q K^T) V", o, q @ k.T @ v, said)


if __name__ == "__main__":
    main()
