"""The reads of an H200 for descriptor words, element by element. The words have every mode, stride, start and base
offset."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from layoutgemm.atoms.smem.descriptor import SmemDescriptor, element_addresses
from layoutgemm.dtypes import bf16
from tests.micro import cuda_driver as driver
from tests.micro import descriptor_read

READS = json.loads((Path(__file__).parents[2] / "vectors" / "h200_operand_reads.json").read_text())["reads"]
CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1), (8, 0), (0, 8), (63, 15))


def digest(addresses: np.ndarray) -> str:
    return hashlib.sha256(addresses.astype("<i8").tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("row", READS, ids=lambda row: f"{row['major']}-{row['word']}")
def test_the_model_reads_what_the_hardware_read(row: dict) -> None:
    model = element_addresses(int(row["word"], 16), row["major"], (64, 16), bf16)
    assert [int(model[at]) for at in CORNERS] == row["first"]
    assert digest(model) == row["read"]


def test_the_words_try_what_a_layout_may_ask_for() -> None:
    """Both majors and all modes; strides that are no multiple of the pattern's period; starts and base offsets."""
    words = [(row["major"], SmemDescriptor.decode(int(row["word"], 16))) for row in READS]
    assert {(major, word.swizzle_name) for major, word in words} == {
        (major, name) for major in ("K", "MN") for name in ("none", "32B", "64B", "128B")
    }
    periods = {"32B": 256, "64B": 512, "128B": 1024}
    uneven = [(m, w) for m, w in words if w.swizzle_name in periods and w.stride_bytes % periods[w.swizzle_name]]
    assert {major for major, _ in uneven} == {"K", "MN"} and len(uneven) > 10
    assert {word.base_offset for _, word in words} >= {0, 1, 2, 4, 7}
    assert len({word.address for _, word in words}) > 8


@pytest.mark.gpu
def test_this_gpu_reads_what_the_model_reads() -> None:
    with driver.Device() as device:
        if device.capability != (9, 0):
            pytest.skip(f"needs a GPU of compute capability 9.0, for wgmma; this one is {device.name}")
        modules = {major: device.load(descriptor_read.ptx(major == "MN")) for major in ("K", "MN")}
        for row in READS:
            word = np.array([int(row["word"], 16)], dtype=np.uint64)
            halves = []
            for high in (False, True):
                inputs = [descriptor_read.image(high), word]
                (raw,) = device.launch(modules[row["major"]], "read", 1, 128, inputs, [descriptor_read.RESULT_BYTES])
                halves.append(raw.view(np.float32).reshape(128, 8))
            found = descriptor_read.addresses(*halves)
            assert np.array_equal(found, element_addresses(int(row["word"], 16), row["major"], (64, 16), bf16)), row
