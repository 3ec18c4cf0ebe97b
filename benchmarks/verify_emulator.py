"""Runs the same PTX on a GPU and in the emulator, and compares the results.

    python benchmarks/verify_emulator.py [--json FILE] [--every N]

It compares MMAs of every mma.sync and wgmma form of the GPU on the same random inputs. Integer results must be equal
bit by bit. For normally distributed floats the sums are rounded, and the largest difference is given in units of a
bound. The bound is the expected sum of absolute products, times 2**-21 for f32 accumulators and 2**-10 for f16. Tensor
cores align the products and truncate lower bits, so the last bits differ from a float32 sum. wgmma on 8-bit floats
keeps fewer bits of its f32 accumulator, hence 2**-12 there.

It also compares the effect of the lowest 13 bits of a tf32 operand, and the addresses of a CTA's shared memory in a
cluster. verify_copies.py compares matrix copies with their maps, and the tests compare the emulator with the same maps.

Without a GPU the program exits with 2.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np
import numpy.typing as npt

from benchmarks import needs
from benchmarks.verify_atoms import tiles, version_for
from layoutgemm import __version__
from layoutgemm.atoms import MmaAtom, atoms
from layoutgemm.atoms.smem.descriptor import derive
from tests.micro import mma_sync, values, wgmma
from tests.micro.cuda_driver import CudaError, Device
from tests.micro.emulated_device import EmulatedDevice

CASES = 4
UNIT = {"f32": 2.0**-21, "f16": 2.0**-10}
UNIT_FP8 = 2.0**-12  # of wgmma on 8-bit floats with an f32 accumulator


def register_words(atom: MmaAtom, operand: str, rng: np.random.Generator, normal: bool) -> npt.NDArray[np.uint32]:
    """[case, thread, word] random fragments: small integers, or rounded normal floats."""
    dtype = atom.dtype_of(operand)
    rows, columns = atom.tile_of(operand)
    shape = (CASES, values.products(atom), rows, columns)
    if not normal:
        low, high = values.range_of(dtype)
        return values.pack(atom, operand, rng.integers(low, high + 1, size=shape))
    threads = 32 if atom.threads <= 32 else atom.threads
    elements = atom.registers(operand) * 32 // dtype.bits
    raw = dtype.encode(rng.standard_normal((CASES, threads, elements)))
    return np.ascontiguousarray(raw).view(np.uint32).reshape(CASES, threads, -1)


def sync_case(atom: MmaAtom, version: str, target: str, rng: np.random.Generator, normal: bool) -> tuple[Any, ...]:
    """An mma.sync form's kernel, inputs, parameter order and threads per CTA."""
    inputs = [register_words(atom, operand, rng, normal) for operand in "ABC"]
    return mma_sync.kernel(atom, target, version), inputs, [0, 1, 2, 3], 32


def group_case(atom: MmaAtom, version: str, target: str, rng: np.random.Generator, normal: bool) -> tuple[Any, ...]:
    """The same for a wgmma form, with operands as whole shared-memory tiles."""
    described: dict[str, Any] = {"A": None}
    inputs: list[np.ndarray] = []
    for operand in "ABC":
        if operand == "C" or (operand == "A" and atom.a_source == "rmem"):
            inputs.append(register_words(atom, operand, rng, normal))
            continue
        _, tile, _, offset = next(iter(tiles(atom, operand, False)))
        described[operand] = wgmma.Tile(tile.bytes, derive(tile, atom, operand).word, offset, tile.major == "MN")
        count = CASES * tile.bytes * 8 // tile.dtype.bits
        low, high = values.range_of(tile.dtype)
        drawn = rng.standard_normal(count) if normal else rng.integers(low, high + 1, size=count)
        bits = tile.dtype.encode(drawn if tile.dtype.kind == "float" else drawn.astype(np.int64))
        inputs.append(np.ascontiguousarray(bits).view(np.uint8).reshape(CASES, tile.bytes))
    return wgmma.kernel(atom, described["A"], described["B"], target, version), inputs, None, 128


def both(gpu: Any, emulated: EmulatedDevice, atom: MmaAtom, case: tuple[Any, ...]) -> list[npt.NDArray[np.uint8]]:
    """The raw bytes of D from the GPU and from the emulator."""
    text, inputs, order, block = case
    size = CASES * block * atom.registers("D") * 4
    module = gpu.load(text)
    try:
        (real,) = gpu.launch(module, "kernel", CASES, block, inputs, [size], order)
    finally:
        gpu.unload(module)
    (ours,) = emulated.launch(text, "kernel", CASES, block, inputs, [size], order)
    return [real, ours]


def as_floats(raw: npt.NDArray[np.uint8], name: str) -> npt.NDArray[np.float64]:
    """The bytes of f32 or f16 values as float64."""
    return raw.view(np.float32 if name == "f32" else np.float16).astype(np.float64)


def compare(gpu: Any, atom: MmaAtom, rng: np.random.Generator) -> dict[str, Any]:
    """One form: equality of integer results, and the distance of float results."""
    emulated = EmulatedDevice(gpu.target)
    make = sync_case if atom.threads <= 32 else group_case
    row: dict[str, Any] = {"atom": atom.ptx}
    try:
        real, ours = both(gpu, emulated, atom, make(atom, version_for(gpu), gpu.target, rng, False))
        row["integers"] = bool((real == ours).all())
        d = (atom.d_dtype or atom.c_dtype).name
        if atom.a_dtype.kind == "float" and d in UNIT and atom.scale is None:
            real, ours = both(gpu, emulated, atom, make(atom, version_for(gpu), gpu.target, rng, True))
            x, y = as_floats(real, d), as_floats(ours, d)
            k = atom.shape_mnk[2]
            # standard normals: the absolute products sum to about k * 2/pi; C adds one term
            fp8 = atom.a_dtype.bits == 8 and d == "f32" and atom.threads == 128
            unit = UNIT_FP8 if fp8 else UNIT[d]
            row["floats"] = float(np.max(np.abs(x - y)) / (unit * (k * 2 / np.pi + 1)))
            row["same bits"] = float((real.reshape(-1, 4) == ours.reshape(-1, 4)).all(axis=1).mean())
    except CudaError as error:
        gpu.reopen()
        return row | {"error": str(error)[:400]}
    return row


def low_bits(gpu: Any, rng: np.random.Generator) -> dict[str, bool]:
    """Compares the effect of a tf32 operand's 13 lowest bits on the GPU and emulated."""
    from layoutgemm.atoms import mma_sync as make

    atom = make("m16n8k8", "tf32")
    text, inputs, order, block = sync_case(atom, version_for(gpu), gpu.target, rng, True)
    dirty = [inputs[0] | np.uint32(0x1FFF), inputs[1] | np.uint32(0x1FFF), inputs[2]]
    clean = [inputs[0] & ~np.uint32(0x1FFF), inputs[1] & ~np.uint32(0x1FFF), inputs[2]]
    out = {}
    for name, device in (("gpu", gpu), ("emulator", EmulatedDevice(gpu.target))):
        module = device.load(text)
        size = CASES * block * atom.registers("D") * 4
        results = [device.launch(module, "kernel", CASES, block, x, [size], order)[0] for x in (dirty, clean)]
        out[name] = bool((results[0] != results[1]).any())
    return out


ADDRESSES = """.shared .align 16 .b8 here[64];
.visible .entry kernel(.param .u64 out)
.explicitcluster
.reqnctapercluster 2, 1, 1
{
  .reg .b32 %r<8>; .reg .b64 %d<4>;
  mov.u32 %r0, here;
  mov.u32 %r1, %cluster_ctarank;
  mapa.shared::cluster.u32 %r2, %r0, %r1;
  xor.b32 %r3, %r1, 1;
  mapa.shared::cluster.u32 %r4, %r0, %r3;
  ld.param.u64 %d0, [out];
  mul.wide.u32 %d1, %r1, 16;
  add.u64 %d0, %d0, %d1;
  st.global.b32 [%d0], %r0;
  st.global.b32 [%d0+4], %r2;
  st.global.b32 [%d0+8], %r4;
  st.global.b32 [%d0+12], %r1;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  ret;
}
"""


def addresses(gpu: Any) -> dict[str, Any]:
    """Shared addresses of each CTA in a cluster of two. They are its own, mapped to itself, and mapped to the other."""
    text = mma_sync.header(gpu.target, version_for(gpu)) + ADDRESSES
    out: dict[str, Any] = {}
    for name, device in (("gpu", gpu), ("emulator", EmulatedDevice(gpu.target))):
        try:
            (raw,) = device.launch(device.load(text), "kernel", 2, 32, [], [32])
            out[name] = [[hex(int(x)) for x in row] for row in raw.view(np.uint32).reshape(2, 4)]
        except CudaError as error:
            out[name] = str(error)[:300]
    return out


def chosen(target: str, every: int) -> Iterator[MmaAtom]:
    """The compared forms: every mma.sync form without scales, wgmma at some N."""
    for number, atom in enumerate(atoms(target, "mma.sync")):
        if isinstance(atom, MmaAtom) and atom.scale is None and number % every == 0:
            yield atom
    for atom in atoms(target, "wgmma"):
        if isinstance(atom, MmaAtom) and atom.a_dtype.bits >= 8 and atom.shape_mnk[1] in (8, 64, 256)[:: min(every, 3)]:
            yield atom


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a different form, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--every", type=int, default=1, help="only every Nth mma.sync form")
    args = parser.parse_args(argv)
    if status := needs.refused(needs.no_driver()):
        return status
    rng = np.random.default_rng(3)
    with Device() as gpu:
        about = {"gpu": gpu.name, "target": gpu.target, "driver": "{}.{}".format(*gpu.driver),
                 "layoutgemm": __version__, "date": datetime.date.today().isoformat()}  # fmt: skip
        rows = []
        for atom in chosen(gpu.target, args.every):
            rows.append(compare(gpu, atom, rng))
            print(json.dumps(rows[-1]), flush=True)
        extra = {"tf32 low bits matter": low_bits(gpu, rng), "shared addresses": addresses(gpu)}
    bad = [row for row in rows if not row.get("integers") or row.get("floats", 0) > 1]
    print(json.dumps(extra))
    print(f"{len(rows) - len(bad)} of {len(rows)} forms agree: integers in all bits, floats within the bound")
    if args.json:
        args.json.write_text(json.dumps({"about": about, **extra, "rows": rows}, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
