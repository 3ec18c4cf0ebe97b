"""The model of the copy engine against an H200, and against itself: loads, stores, reductions, edges, formats."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from layoutgemm.atoms.tma import engine
from layoutgemm.atoms.tma.rules import TensorMap, broken, format_of, line_overrun, whole_units
from layoutgemm.dtypes import dtype
from layoutgemm.errors import TmaError

MEASURED = json.loads((Path(__file__).resolve().parents[2] / "vectors" / "tma_h200.json").read_text())
LOADS, MAPS, WRITES = MEASURED["loads"], MEASURED["maps"], MEASURED["writes"]


def tensor_map(record, **changes):
    fields = {"dtype": dtype(record["type"]), "oob_fill": record["fill"], "format": record.get("format", "")}
    fields |= {key: tuple(record[key]) for key in ("extents", "strides", "box", "steps")}
    return TensorMap(**(fields | {"swizzle": record["swizzle"]} | changes))


def digest(record, tmap):
    """md5 of 64 KiB of shared memory after the load; both memories begin with the patterns of the measurement."""
    i = np.arange(1 << 20)
    memory = ((i * 37 + i // 251 * 11) % 251).astype(np.uint8)
    shared = np.full(1 << 14, 0x3F800011, dtype=np.uint32).view(np.uint8)
    shared = np.concatenate([np.zeros(1024, np.uint8), shared])
    engine.load(tmap, memory, record["coordinates"], shared, 1024 + record["address"])
    return hashlib.md5(shared[1024:].tobytes()).hexdigest()[:8]


@pytest.mark.parametrize("record", LOADS, ids=range(len(LOADS)))
def test_loads_are_those_of_an_h200(record):
    assert digest(record, tensor_map(record)) == record["md5"]


def test_the_measurements_tell_wrong_models_apart():
    # rows narrower than the span; addresses that do not begin a pattern; steps; the fill
    narrow = next(r for r in LOADS if r["swizzle"] == "128B" and r["box"][0] == 24 and r["address"] == 1664)
    for change in ({"swizzle": "64B"}, {"box": (24, 15)}, {"box": (32, 16)}):
        assert digest(narrow, tensor_map(narrow, **change)) != narrow["md5"]
    filled = next(r for r in LOADS if r["fill"] == "nan")
    assert digest(filled, tensor_map(filled, oob_fill="zeros")) != filled["md5"]
    rounded = next(r for r in LOADS if r["type"] == "tf32" and r["fill"] == "zeros")
    assert digest(rounded, tensor_map(rounded, dtype=dtype("f32"))) != rounded["md5"]


@pytest.mark.parametrize("record", WRITES, ids=lambda record: f"{record['operation']}-{record['type']}")
def test_stores_and_reductions_are_those_of_an_h200(record):
    """No md5: the H200 ended the kernel with an illegal instruction, which the model and the table refuse."""
    i = np.arange(1 << 20)
    memory = ((i * 37 + i // 251 * 11) % record["modulus"]).astype(np.uint8)
    words = np.arange(0, 1 << 16, 4, dtype=np.uint64) * record["shared_step"] + 0x3F800011
    shared = np.concatenate([np.zeros(1024, np.uint8), (words & 0xFFFFFFFF).astype(np.uint32).view(np.uint8)])
    arguments = tensor_map(record), memory, record["coordinates"], shared, 1024 + record["address"]
    try:
        if record["operation"] == "store":
            engine.store(*arguments)
        else:
            engine.reduce(*arguments, record["operation"])
    except TmaError as error:
        assert record["md5"] is None and error.rule in ("coordinate", "reduction")
    else:
        assert hashlib.md5(memory.tobytes()).hexdigest()[:8] == record["md5"]


@pytest.mark.parametrize("record", MEASURED["edges"], ids=lambda record: record["type"])
def test_a_stored_line_ends_where_an_h200_ends_it(record):
    """At a multiple of 16 bytes from its start; rows end where the tensor does."""
    element = dtype(record["type"])
    for columns, last in record["last"].items():
        strides = (record["pitch"] * element.bytes,)
        tmap = TensorMap(element, (int(columns), 3), strides, (16, 4), (1, 1))
        memory, shared = np.full(4 * strides[0], 0xFF, np.uint8), np.zeros(1 << 12, np.uint8)
        for start in (1024, 1040):
            engine.store(tmap, memory, (start, 1), shared, 0)
        written = np.argwhere((memory == 0).reshape(4, record["pitch"], -1).all(axis=2))
        assert (written.min(axis=0).tolist(), written.max(axis=0).tolist()) == ([1, 1024], [2, last])
        assert len(written) == 2 * (last + 1 - 1024)


def test_the_recorded_writes_do_not_reach_a_ragged_end():
    """Why those did not show it: no box of theirs holds the end of a line that ends within 16 bytes."""
    for record in WRITES:
        line, at = record["extents"][0], record["coordinates"][0]
        assert line * dtype(record["type"]).bytes % 16 == 0 or at + record["box"][0] <= line


def test_whole_units_of_every_width():
    for element, unit in (("u8", 16), ("bf16", 8), ("f32", 4), ("f64", 2), ("e2m1", 32)):
        for line in range(512, 512 + 2 * unit, 2 if element == "e2m1" else 1):
            tmap = whole_units(TensorMap(dtype(element), (line, 7), (1024,), (unit, 4), (1, 1)))
            assert tmap.extents == (-(-line // unit) * unit, 7)
            assert line_overrun(line, tmap.kind) == tmap.extents[0] - line
    padded = TensorMap(dtype("e2m3"), (384, 7), (1024,), (128, 4), (1, 1))  # extents of 128 elements, 96 bytes
    assert whole_units(padded) is padded


@pytest.mark.parametrize("record", MEASURED["faults"], ids=lambda record: f"{record['type']}-{record['coordinates']}")
def test_an_h200_wants_inner_coordinates_at_16_bytes(record):
    with pytest.raises(TmaError, match="is no multiple of 16 bytes"):
        digest(record, tensor_map(record))


def test_the_driver_accepts_what_the_rules_allow():
    """cuTensorMapEncodeTiled on an H200, against the table of rules; the differences are these, and why."""
    stricter, later = [], []
    for record in MAPS:
        swizzle = record["swizzle"]
        tmap = tensor_map(record)
        faults = {fault.rule.name for fault in broken(tmap, record["address"])}
        if record["accepted"] and faults:
            stricter.append((faults.pop(), record))
        elif not record["accepted"] and not faults:
            later.append((tmap.kind.name if tmap.kind.packed else swizzle, record))
    # A step of the innermost dimension is ignored by the engine. A stride of 0, which repeats a row, is loaded, not
    # stored.
    assert [(name, r["strides"], r["steps"]) for name, r in stricter] == [("step", [512], [2, 1])]
    (repeated,) = [tensor_map(record) for record in MAPS if record["accepted"] and record["strides"] == [0]]
    assert [fault.rule.name for fault in broken(repeated, operation="store")] == ["stride"]
    # Formats and a swizzle of sm_100.
    assert [name for name, _ in later] == ["16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B", "128B, atom 32B"]
    assert "sm_90a" not in format_of(dtype("e2m1")).archs


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("element", ["u8", "bf16", "f32", "f64", "e2m1", "e3m2"])
def test_a_store_returns_what_a_load_brought(swizzle, element):
    kind = format_of(dtype(element))
    inner = kind.inner_box or {"none": 64, "32B": 32, "64B": 64, "128B": 128}[swizzle] * 8 // kind.smem_bits
    extents, pitch = (2 * inner, 5, 3), 2 * inner * kind.gmem_bits // 8
    strides = (pitch, 5 * pitch)
    tmap = TensorMap(dtype(element), extents, strides, (inner, 4, 2), (1, 1, 1), swizzle)
    if element == "e3m2" and swizzle not in ("none", "128B"):  # 16U6_ALIGN16B has no such swizzle
        assert "swizzle" in {fault.rule.name for fault in broken(tmap)}
        return
    assert not list(broken(tmap))
    source = np.random.default_rng(0).integers(0, 256, 15 * pitch, dtype=np.uint8)
    target = np.zeros_like(source)
    for at in ((0, 0, 0), (inner, 0, 0), (0, 4, 0), (inner, 4, 0), (0, 0, 2), (inner, 0, 2), (0, 4, 2), (inner, 4, 2)):
        shared = np.full(1 << 15, 0xEE, dtype=np.uint8)
        assert engine.load(tmap, source, at, shared, 1024) == inner * 8 * kind.gmem_bits // 8
        engine.store(tmap, target, at, shared, 1024)
    assert np.array_equal(source, target)


def test_reductions_combine_whole_units_of_the_tensor():
    """An assumption, where a line ends within 16 bytes: the model must not say less than a GPU may do."""

    def reduced(operation, element, old, new, at=(0,), line=None):
        words = dtype(element).storage
        memory = np.array(old, dtype=words).view(np.uint8).copy()
        shared = np.zeros(512, dtype=np.uint8)
        shared[128:256] = np.resize(np.array(new, dtype=words), 128 // words().itemsize).view(np.uint8)
        box = 16 // words().itemsize
        tmap = TensorMap(dtype(element), (line or len(old),), (), (box,), (1,))
        engine.reduce(tmap, memory, at, shared, 128, operation)
        return memory.view(words).tolist()

    assert reduced("add", "u32", [1, 2, 3, 4], [10, 20, 30, 2**32 - 4]) == [11, 22, 33, 0]
    eight = [1, 2, 3, 4, 5, 6, 7, 8]
    assert reduced("add", "u32", eight, [10, 20, 30, 40], (4,), 6) == [1, 2, 3, 4, 15, 26, 37, 48]
    assert reduced("add", "u32", eight, [10, 20, 30, 40], (4,), 4) == eight
    assert reduced("max", "u32", eight, [0, 0, 0, 9], (4,), 5) == [*eight[:7], 9]
    assert reduced("inc", "u32", [1, 5, 6, 9], [5, 5, 5, 5]) == [2, 0, 0, 0]
    assert reduced("dec", "u32", [1, 0, 6, 5], [5, 5, 5, 5]) == [0, 5, 5, 4]
    minus = 2**32 - 7
    assert reduced("min", "i32", [1, minus, 3, 4], [minus, 2, 3, 3]) == [minus, minus, 3, 3]
    assert reduced("min", "u32", [1, minus, 3, 4], [minus, 2, 3, 3]) == [1, 2, 3, 3]
    assert reduced("xor", "u64", [6, 5], [3, 5]) == [5, 0]
    one, big = 0x3F80, 0x4380  # 1 and 256 in bf16: 257 rounds to 256
    assert reduced("add", "bf16", [one] * 8, [big] * 8) == [big] * 8
    with pytest.raises(TmaError, match="and reduces"):
        reduced("and", "bf16", [one] * 8, [big] * 8)


def test_addresses_and_coordinates_are_checked():
    tmap = TensorMap(dtype("bf16"), (64, 64), (128,), (64, 8), (1, 1), "128B")
    shared, memory = np.zeros(4096, np.uint8), np.zeros(8192, np.uint8)
    with pytest.raises(TmaError, match="must be a multiple of 128"):
        engine.load(tmap, memory, (0, 0), shared, 64)
    with pytest.raises(TmaError, match="no coordinate may be negative"):
        engine.store(tmap, memory, (0, -1), shared, 0)
    with pytest.raises(TmaError, match="2 coordinates for a 2-dimensional map, not 1"):
        engine.load(tmap, memory, (0,), shared, 0)
