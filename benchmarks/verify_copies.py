"""Checks the copy models on a GPU: matrix copies, and the clipping of TMA stores.

    python benchmarks/verify_copies.py matrix --json benchmarks/results/verify_copies_h200.json
    python benchmarks/verify_copies.py edges --json benchmarks/results/verify_edges_h200.json

`matrix`: ldmatrix, stmatrix and movmatrix, every form of the GPU, with a batch of cases each. Shared memory holds
random bytes. Lanes that supply an address get different random rows of 16 bytes. The other lanes get addresses that are
not row starts, which must not be accessed. The atom's two maps alone determine the expected registers of a load, every
byte of memory after a store, and the moved registers. One wrong byte fails the form.

`edges`: TMA stores and reductions (cp.async.bulk.tensor, cp.reduce.async.bulk.tensor) with rows that end within 16
bytes. They cover elements of 1, 2, 4 and 8 bytes in one to three dimensions. Every byte of global memory must match the
TMA model, which clips rows at multiples of 16 bytes. The report has the last written column for each number of columns,
also for a wrong model.

It needs a driver and a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt

from benchmarks import needs
from layoutgemm import __version__
from layoutgemm.atoms import CopyAtom, matrix_copies
from layoutgemm.atoms.tma import engine as tma_engine
from layoutgemm.dtypes import dtype
from tests.micro import copy_matrix, tensor_stores
from tests.micro.cuda_driver import CudaError, Device

CASES = 256
Bytes = npt.NDArray[np.uint8]


def random_addresses(rng: np.random.Generator, atom: CopyAtom, side: str) -> npt.NDArray[np.uint32]:
    """[case][lane]: 16-byte rows, all different within a case; ignored lanes point inside another row."""
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
    """The expected output, from the maps."""
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
    """The command `matrix`; exits 1 for a wrong form or an empty run."""
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
        report = about(gpu, version, args.seed) | {"rows": rows, "absent": absent}
    failed = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} forms are as their maps say; {len(absent)} not on {report['target']}")
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if failed or not rows else 0


def about(gpu: Any, version: str, seed: int) -> dict[str, Any]:
    """The head of a report: GPU, driver, versions, date."""
    return {
        "gpu": gpu.name,
        "target": gpu.target,
        "driver": "{}.{}".format(*gpu.driver),
        "ptx": version,
        "layoutgemm": __version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "seed": seed,
    }


# ---------------------------------------------------------------------------------------------- where stored lines end

STORED = ("u8", "bf16", "f32", "f64")
ADDED = ("bf16", "f16", "u32", "f32", "u64", "f64")  # no reduction has elements of one byte


def forms() -> Iterator[list[tensor_stores.Case]]:
    """Cases by type, rank and operation, with one case per row end within 16 bytes."""
    for rank in (1, 2, 3):
        for swizzle in ("none", "64B") if rank == 2 else ("none",):
            for name in STORED:
                yield tensor_stores.cases(dtype(name), rank, "store", swizzle)
        for name in ADDED:
            yield tensor_stores.cases(dtype(name), rank, "add")


def ends(gpu: Any, cases: list[tensor_stores.Case], rng: np.random.Generator, version: str) -> dict[str, Any]:
    """One form: its row of the report. `last`: columns of the tensor -> the last column written, None for none."""
    row: dict[str, Any] = {"copy": str(cases[0]), "cases": len(cases), "last": {}}
    wrong = []
    for case in cases:
        image, before = tensor_stores.contents(case, rng)
        want = before.copy()
        for at in case.coordinates:
            if case.operation == "store":
                tma_engine.store(case.tmap, want, at, image, 0)
            else:
                tma_engine.reduce(case.tmap, want, at, image, 0, case.operation)
        try:
            module = gpu.load(tensor_stores.kernel(case, gpu.target, version))
            got = gpu.launch(module, "kernel", 1, 32, [image, before], [before.size], maps=[(case.tmap, 2)])[0]
            gpu.unload(module)
        except CudaError as error:
            gpu.reopen()
            return row | {"ok": False, "why": f"{case.columns} columns: {error}"}
        row["last"][case.columns] = last_column(case, before, got)
        if (got != want).any():
            there = last_column(case, before, want)
            wrong.append(f"{case.columns} columns: the last one written is {row['last'][case.columns]}, not {there}")
    return row | {"ok": not wrong, "why": "; ".join(wrong)}


def last_column(case: tensor_stores.Case, before: Bytes, after: Bytes) -> int | None:
    """The last column of the tensor's memory that changed."""
    count = int(np.prod(case.shape)) * case.dtype.bytes
    changed = (before != after)[:count].reshape(*case.shape, case.dtype.bytes).any(axis=-1)
    columns = np.flatnonzero(changed.reshape(-1, case.shape[-1]).any(axis=0))
    return int(columns[-1]) if len(columns) else None


def edges(args: argparse.Namespace) -> int:
    """The command `edges`; exits 1 if rows are not clipped as in the model."""
    with Device() as gpu:
        version = tensor_stores.PTX_VERSION if gpu.target == "sm_90a" else "{}.{}".format(*gpu.ptx_version)
        rng, rows = np.random.default_rng(args.seed), []
        for cases in forms():
            rows.append(ends(gpu, cases, rng, version))
            print(f"{'ok' if rows[-1]['ok'] else 'WRONG':6}{rows[-1]['copy']}  {rows[-1]['why']}", flush=True)
        report = about(gpu, version, args.seed) | {"rows": rows}
    failed = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} forms end lines as the model says, at multiples of 16 bytes")
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong form, 2 without a GPU."""
    parser = argparse.ArgumentParser(description="hold the models of copies against the GPU")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("matrix", help="ldmatrix, stmatrix, movmatrix")
    one.add_argument("--json", help="write the report there")
    one.add_argument("--seed", type=int, default=0)
    one.set_defaults(run=matrix)
    other = commands.add_parser("edges", help="where tensor stores and reductions end a line")
    other.add_argument("--json", help="write the report there")
    other.add_argument("--seed", type=int, default=0)
    other.set_defaults(run=edges)
    args = parser.parse_args(argv)
    if status := needs.refused(needs.no_driver()):
        return status
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
