"""Hold the matrix copies' maps against the hardware: ldmatrix, stmatrix and movmatrix, every form the GPU has.

    python benchmarks/verify_copies.py matrix --json benchmarks/results/verify_copies_h200.json

Each form runs a batch of cases. Shared memory holds random bytes; the lanes that supply an address get random rows of
16 bytes, all different, and the others addresses that are no row's start, which nothing may read or write. What the
registers (of a load), the memory (after a store, every byte of it) or the moved registers must be is read off the
atom's two maps alone, and one wrong byte fails the form. Needs a driver and a GPU, nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt

from layoutgemm import __version__
from layoutgemm.atoms import CopyAtom, matrix_copies
from tests.micro import copy_matrix
from tests.micro.cuda_driver import CudaError, Device

CASES = 256
Bytes = npt.NDArray[np.uint8]


def random_addresses(rng: np.random.Generator, atom: CopyAtom, side: str) -> npt.NDArray[np.uint32]:
    """[case][lane]: rows of 16 bytes, all different within a case; lanes that are ignored get another row's bytes."""
    rows = copy_matrix.SHARED // 16
    out = np.stack([rng.permutation(rows)[:32] for _ in range(CASES)]).astype(np.uint32) * 16
    ignored = [lane for lane in range(32) if lane not in atom.address_threads(side)]
    out[:, ignored] += rng.integers(1, 16, size=(CASES, len(ignored)), dtype=np.uint32)  # not even a row's start
    return out


def places(atom: CopyAtom, side: str, addresses: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """[case][element] -> byte of shared memory at which the element begins."""
    layout, size = atom.layout(side), atom.element.bytes
    table = layout.offsets().reshape(layout[1].size, 32)
    out = np.zeros((len(addresses), layout.cosize), dtype=np.int64)
    for lane in atom.address_threads(side):
        for j in range(layout[1].size):
            out[:, table[j, lane]] = addresses[:, lane].astype(np.int64) + j * size
    return out


def register_bytes(atom: CopyAtom, side: str) -> npt.NDArray[np.int64]:
    """[lane][value] -> element that these bytes of the lane's registers are."""
    layout = atom.layout(side)
    return layout.offsets().reshape(layout[1].size, 32).T


def expected(atom: CopyAtom, image: Bytes, addresses: npt.NDArray[np.uint32], registers: Bytes) -> Bytes:
    """What the kernel must write, from the maps."""
    size = atom.element.bytes
    within = np.arange(size)
    case = np.arange(CASES)[:, None]
    if atom.source == atom.target:
        tile = np.zeros((CASES, 64, size), dtype=np.uint8)
        tile[:, register_bytes(atom, "src")] = registers.reshape(CASES, 32, -1, size)
        return tile[:, register_bytes(atom, "dst")].reshape(CASES, -1)
    memory = "src" if atom.source == "smem" else "dst"
    at = places(atom, memory, addresses)[:, :, None] + within
    elements = register_bytes(atom, "dst" if memory == "src" else "src")
    if memory == "src":
        return image[case[:, :, None], at][:, elements].reshape(CASES, -1)
    tile = np.zeros((CASES, at.shape[1], size), dtype=np.uint8)
    tile[:, elements] = registers.reshape(CASES, 32, -1, size)
    after = image.copy()
    after[case[:, :, None], at] = tile
    return after


def verify(gpu: Any, atom: CopyAtom, rng: np.random.Generator, version: str) -> dict[str, Any]:
    """One form: its row of the report."""
    image = rng.integers(0, 256, size=(CASES, copy_matrix.SHARED), dtype=np.uint8)
    registers = rng.integers(0, 256, size=(CASES, 32 * 4 * copy_matrix.registers(atom)), dtype=np.uint8)
    moved = atom.source == atom.target
    addresses = (
        np.zeros((CASES, 32), np.uint32)
        if moved
        else random_addresses(rng, atom, "src" if atom.source == "smem" else "dst")
    )
    given = {"image": image, "addresses": addresses, "registers": registers}
    names = copy_matrix.parameters(atom)
    written = names[-1]
    want = expected(atom, image, addresses, registers)
    row: dict[str, Any] = {"instruction": str(atom), "cases": CASES, "bytes": int(want.size)}
    try:
        module = gpu.load(copy_matrix.kernel(atom, gpu.target, version))
        inputs = [given[name] for name in names if name != written]
        got = gpu.launch(module, "kernel", CASES, 32, inputs, [want.size])[0].reshape(want.shape)
        gpu.unload(module)
    except CudaError as error:
        gpu.reopen()
        return row | {"ok": False, "why": str(error)}
    wrong = np.argwhere(got != want)
    why = "" if not len(wrong) else f"case {wrong[0][0]}, byte {wrong[0][1]}; {len(wrong)} of {want.size} bytes differ"
    return row | {"ok": not len(wrong), "why": why}


def matrix(args: argparse.Namespace) -> int:
    with Device() as gpu:
        version = "{}.{}".format(*min(tuple(map(int, copy_matrix.PTX_VERSION.split("."))), gpu.ptx_version))
        rng = np.random.default_rng(args.seed)
        rows, absent = [], []
        for atom in matrix_copies():
            if gpu.target not in atom.archs:
                absent.append(str(atom))
                continue
            rows.append(verify(gpu, atom, rng, version))
            print(f"{'ok' if rows[-1]['ok'] else 'WRONG':6}{rows[-1]['instruction']}  {rows[-1]['why']}", flush=True)
        report = {
            "gpu": gpu.name,
            "target": gpu.target,
            "driver": "{}.{}".format(*gpu.driver),
            "ptx": version,
            "layoutgemm": __version__,
            "python": platform.python_version(),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "seed": args.seed,
            "rows": rows,
            "absent": absent,
        }
    failed = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} forms are as their maps say; {len(absent)} not on {report['target']}")
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if failed or not rows else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="hold the copy atoms' maps against the GPU")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("matrix", help="ldmatrix, stmatrix, movmatrix")
    one.add_argument("--json", help="write the report there")
    one.add_argument("--seed", type=int, default=0)
    one.set_defaults(run=matrix)
    args = parser.parse_args()
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
