"""The bytes of tensor maps: recorded from the driver of an H200, and what the CuTe DSL writes by itself."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutgemm.atoms.tma.rules import FORMATS, MODES, TensorMap
from layoutgemm.dtypes import dtype
from layoutgemm.emulator.machine.tensor_map import decode, encode, from_driver, replaced
from layoutgemm.errors import EmulatorError

RECORDED = json.loads((Path(__file__).parents[1] / "recorded" / "tensor_maps.json").read_text())["maps"]
LEFT_OUT = (10, 12)  # formats that flush denormals
DRIVER = {entry.driver: entry.name for entry in FORMATS.values()}


def content(entry: dict[str, Any]) -> bytes:
    words = [int(word, 16) for word in entry["words"].split()]
    return struct.pack("<32I", *words, *[0] * (32 - len(words)))


def test_the_drivers_maps_are_read() -> None:
    seen = 0
    for entry in RECORDED:
        arguments = entry["arguments"]
        if arguments["interleave"] or arguments["tensorDataType"] in LEFT_OUT:
            with pytest.raises(EmulatorError, match="is not emulated"):
                decode(content(entry))
            continue
        tmap, address = decode(content(entry))
        said = tmap.encode_arguments()
        assert address == arguments["globalAddress"]
        for name in ("tensorDataType", "interleave", "swizzle", "l2Promotion", "oobFill"):
            assert said[name] == arguments[name], (name, arguments)
        for name in ("globalDim", "globalStrides", "boxDim"):
            assert list(said[name]) == arguments[name], (name, arguments)
        assert list(said["elementStrides"][1:]) == arguments["elementStrides"][1:], arguments
        seen += 1
    assert seen > 60


def test_the_drivers_maps_are_written() -> None:
    """Bit for bit, except the innermost step, which the driver keeps and the engine ignores."""
    for entry in RECORDED:
        arguments = entry["arguments"]
        if arguments["interleave"] or arguments["tensorDataType"] in LEFT_OUT or arguments["elementStrides"][0] != 1:
            continue
        tmap, address = decode(content(entry))
        assert encode(tmap, address) == content(entry), arguments


KINDS = ("e2m1", "u8", "u16", "i32", "u64", "f16", "bf16", "f32", "tf32", "f64")


@st.composite
def maps(draw: st.DrawFn) -> tuple[TensorMap, int]:
    rank = draw(st.integers(1, 5))
    kind = dtype(draw(st.sampled_from(KINDS)))
    swizzle = draw(st.sampled_from([name for name, mode in MODES.items()]))
    inner = draw(st.integers(1, MODES[swizzle].span // 16)) * 128 // kind.bits
    rest = [draw(st.integers(1, 256)) for _ in range(rank - 1)]
    steps = (1, *[draw(st.integers(1, 8)) for _ in range(rank - 1)])
    extents = tuple([2 * draw(st.integers(1, 1 << 31)) for _ in range(rank)])
    strides = tuple([16 * draw(st.integers(1, (1 << 36) - 1)) for _ in range(rank - 1)])
    promotion = draw(st.sampled_from(("none", "64B", "128B", "256B")))
    # Four bits have no NaN.
    fill = draw(st.sampled_from(("zeros", "nan"))) if kind.kind == "float" and kind.bits > 4 else "zeros"
    address = 16 * draw(st.integers(0, 1 << 44))
    return TensorMap(kind, extents, strides, (inner, *rest), steps, swizzle, "", promotion, fill), address


def test_a_map_whose_flags_are_all_zero() -> None:
    """One dimension of UINT8, no swizzle, no promotion: word 2 says each of these with zeros."""
    tmap = TensorMap(dtype("u8"), (81,), (), (64,), (1,), l2_promotion="none")
    assert decode(encode(tmap, 0x7F0000000000)) == (tmap, 0x7F0000000000)
    with pytest.raises(EmulatorError, match="not a tensor map"):
        decode(bytes(128))


@settings(max_examples=60, deadline=None)
@given(maps())
def test_reading_undoes_writing(made: tuple[TensorMap, int]) -> None:
    assert decode(encode(*made)) == made


def test_packed_4_bit_elements_that_are_padded_in_shared_memory() -> None:
    """CUtensorMapDataType 14: 16 elements of 8 bytes lie in 16 bytes of shared memory."""
    made = TensorMap(dtype("e2m1"), (256, 64), (128,), (128, 8), (1, 1), "128B", "16U4_ALIGN16B")
    content = encode(made, 1 << 20)
    assert decode(content) == (made, 1 << 20)
    assert from_driver(14, 1 << 20, (256, 64), (128,), (128, 8), (1, 1), 0, 3, 2, 0) == content
    assert decode(replaced(encode(replace(made, format=""), 1 << 20), "elemtype", 0, 14))[0] == made


PLAIN = TensorMap(dtype("bf16"), (64, 64), (128,), (64, 8), (1, 1), "128B")


@pytest.mark.parametrize(
    ("tmap", "address", "message"),
    [
        (PLAIN, 8, "16"),
        (TensorMap(dtype("bf16"), (64, 64), (130,), (64, 8), (1, 1)), 0, "stride"),
        (TensorMap(dtype("bf16"), (64, 64), (128,), (64, 8), (1, 1), "64B"), 0, "64 bytes"),
    ],
)
def test_unencodable_maps_are_refused(tmap: TensorMap, address: int, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        encode(tmap, address)


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (2, 0, "not a tensor map|box"),
        (2, 0x1F0, "rank"),
        (2, 0x710, "format"),
        (2, 1 << 22, "not a tensor map"),
        (2, 0x510 | 2 << 19, "atom 2"),
        (0, 8, "16"),
    ],
)
def test_bytes_that_are_no_map_are_refused(word: int, value: int, message: str) -> None:
    words = list(struct.unpack("<32I", encode(PLAIN, 0)))
    words[word] = value
    if (word, value) == (2, 0):
        words = [0] * 32
    with pytest.raises(EmulatorError, match=message):
        decode(struct.pack("<32I", *words))
