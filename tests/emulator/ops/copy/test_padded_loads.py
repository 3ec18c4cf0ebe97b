"""TMA loads of packed elements that are padded in shared memory."""

from __future__ import annotations

import struct

import numpy as np

from layoutgemm.atoms.tma.rules import TensorMap
from layoutgemm.dtypes import dtype
from layoutgemm.emulator.machine.interpreter import Launch, PtxMachine
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.machine.tensor_map import encode
from tests.emulator.ops.copy.tensor_copies import BEGIN, LOAD, OUT, SHARED, WAIT
from tests.emulator.run_ptx import module, program


def test_packed_4_bit_elements_are_padded_to_bytes_in_shared_memory():
    """Tensor map type 14: 16 elements of 8 bytes fill the first half of 16 bytes; the barrier counts what was read."""
    tmap = TensorMap(
        dtype("e2m1"), (256, 8), (128,), (128, 4), (1, 1), "none", "16U4_ALIGN16B", l2_promotion="none"
    )  # fmt: skip
    source, out = np.random.default_rng(3).integers(0, 256, 1024, dtype=np.uint8), np.zeros(512, np.uint8)
    memory = GlobalMemory()
    tensor, result = memory.add("tensor", source), memory.add("out", out)
    body = (
        BEGIN
        + f"""mov.u32 %r10, 512; mov.b64 %d3, %map;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 %d2, [%r2], 256;
    @%p0 {LOAD.format(rank=2)} [%r1], [%d3, {{128, 2}}], [%r2];"""
        + WAIT
        + OUT
    )
    text = module(body, {"map": "u64", "out": "u64"}, "sm_100a")
    content = np.frombuffer(bytearray(encode(tmap, tensor.address)), np.uint8)
    parameters = struct.pack("<QQ", memory.add("map", content).address, result.address)
    launch = Launch((1, 1, 1), (32, 1, 1), parameters, memory, (1, 1, 1), SHARED)
    machine = PtxMachine(program(text), launch).run()
    assert not machine.findings.found
    assert np.array_equal(out.reshape(4, 8, 16)[:, :, :8], source.reshape(8, 128)[2:6, 64:].reshape(4, 8, 8))
