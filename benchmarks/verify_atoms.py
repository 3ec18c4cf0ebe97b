"""Checks the atoms' maps on a GPU. It fills fragments through the maps, runs one instruction, and reads D.

    python benchmarks/verify_atoms.py all --json benchmarks/results/verify_atoms.json
    python benchmarks/verify_atoms.py mma-sync --match e4m3
    python benchmarks/verify_atoms.py wgmma --quick

Operands are small integers, exact in every format, so the result must equal the integer product bit for bit.

- mma.sync: a batch of random operands. Then A, B and C with a single 1 at every position in turn, which determines
  their maps.
- A wrong map moves a row, a column or an element. No run can show one renumbering of k in both A and B.
- Integer accumulators also overflow.
- wgmma: random operands, and an operand for each bit of an element's number; each swizzle, major and K step too.

The output has one line per atom. A kernel that does not compile or run is a line with the reason, and the run
continues. It needs a driver and a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt

from benchmarks import needs
from layoutgemm import __version__
from layoutgemm.atoms import SPANS, MmaAtom, SmemTile, atoms, smem_tile
from layoutgemm.atoms.mma.block_scales import selectors
from layoutgemm.atoms.smem.descriptor import derive
from layoutgemm.errors import LayoutError
from tests.micro import mma_sync, values, wgmma
from tests.micro.cuda_driver import CudaError, Device

Row = dict[str, Any]
Ints = npt.NDArray[np.int64]
CHUNK = 512  # cases of one launch
RANDOM_CASES = 64
ALL_VARIANTS = (8, 64, 256)  # the N at which wgmma runs every swizzle, major and K step


def version_for(gpu: Any) -> str:
    """The PTX version: the kernels', or the newest that the driver reads."""
    wanted = tuple(map(int, mma_sync.PTX_VERSION.split(".")))
    return "{}.{}".format(*min(wanted, gpu.ptx_version))


def random_matrices(rng: np.random.Generator, atom: MmaAtom, operand: str, cases: int) -> Ints:
    """[case, product, row, column] small integers, exact in the operand's type."""
    low, high = values.range_of(atom.dtype_of(operand))
    shape = (cases, values.products(atom), *atom.tile_of(operand))
    return rng.integers(low, high, size=shape, endpoint=True, dtype=np.int64)


def one_hot(atom: MmaAtom, operand: str) -> Ints:
    """A case for each element: a 1 there, 0 elsewhere, in every product of the instruction."""
    rows, columns = atom.tile_of(operand)
    eye = np.eye(rows * columns, dtype=np.int64).reshape(rows * columns, 1, rows, columns)
    return np.repeat(eye, values.products(atom), axis=1)


def index_bits(atom: MmaAtom, operand: str) -> Ints:
    """A case for each bit of an element's number: the bit itself, then its complement."""
    rows, columns = atom.tile_of(operand)
    number = np.arange(rows * columns).reshape(1, 1, rows, columns)
    bits = [number >> bit & 1 for bit in range((rows * columns - 1).bit_length())]
    return np.concatenate([case for bit in bits for case in (bit, 1 - bit)]).astype(np.int64)


def batches(rng: np.random.Generator, atom: MmaAtom) -> Iterator[tuple[str, Ints, Ints, Ints]]:
    """(name, A, B, C) of the batches that an mma.sync runs."""

    def zeros(operand: str, cases: int) -> Ints:
        return np.zeros((cases, values.products(atom), *atom.tile_of(operand)), dtype=np.int64)

    random = [random_matrices(rng, atom, operand, RANDOM_CASES) for operand in "ABC"]
    yield "random", random[0], random[1], random[2]
    for name in "ABC":
        hot = one_hot(atom, name)
        for start in range(0, len(hot), CHUNK):
            part = hot[start : start + CHUNK]
            others = {op: random_matrices(rng, atom, op, len(part)) for op in "ABC"}
            if name != "C":
                others["C"] = zeros("C", len(part))
            others[name] = part
            yield f"one-hot {name}", others["A"], others["B"], others["C"]
    if atom.c_dtype.name == "i32":
        ones, limit = zeros("A", 1) + 1, zeros("C", 1) + 2**31 - 1
        # XOR of ones with zeros counts every bit, AND of ones with ones
        second = zeros("B", 1) + (0 if ".xor." in atom.ptx else 1)
        yield "overflow", ones, second, limit


def difference(atom: MmaAtom, batch: str, got: npt.NDArray[Any], want: npt.NDArray[Any]) -> str:
    """The first element that differs, or an empty text."""
    wrong = np.argwhere(~(got == want))
    if not len(wrong):
        return ""
    case, product, row, column = (int(x) for x in wrong[0])
    return (
        f"{batch}: case {case}, product {product}, D({row}, {column}) = {got[case, product, row, column]}, "
        f"should be {want[case, product, row, column]}; {len(wrong)} of {got.size} differ"
    )


def run_mma_sync(gpu: Any, atom: MmaAtom, rng: np.random.Generator, quick: bool) -> tuple[int, str]:
    """(number of cases, first difference or empty) of one atom."""
    choices: list[mma_sync.Selectors] = [((0, 0), (0, 0))]
    if atom.scale is not None:
        first, second = (list(itertools.product(*selectors(atom, name))) for name in ("SFA", "SFB"))
        choices = list(itertools.product(first, second))[:: 7 if quick else 1]
    cases = 0
    for number, chosen in enumerate(choices):
        module = gpu.load(mma_sync.kernel(atom, gpu.target, version_for(gpu), selectors=chosen))
        try:
            for name, a, b, c in batches(rng, atom):
                if number and name != "random":
                    break  # other selectors change which scales are read, not the maps of the operands
                cases += len(a)
                inputs = [values.pack(atom, operand, x) for operand, x in zip("ABC", (a, b, c))]
                scales: list[Ints] = []
                if atom.scale is not None:
                    for operand, selector in zip(("SFA", "SFB"), chosen):
                        shape = (len(a), *atom.tile_of(operand))
                        factors = 2 ** rng.integers(0, 2, size=shape, dtype=np.int64)
                        scales.append(factors)
                        inputs.append(values.pack_scales(atom, operand, factors, *selector))
                size = len(a) * 32 * atom.registers("D") * 4
                count = len(inputs)
                order = [0, 1, 2, count, *range(3, count)]
                (raw,) = gpu.launch(module, "kernel", len(a), 32, inputs, [size], order)
                got = values.unpack(atom, "D", raw.view(np.uint32).reshape(len(a), 32, -1))
                bad = difference(atom, name, got, values.multiply(atom, a, b, c, *scales))
                if bad:
                    return cases, f"selectors {chosen}: {bad}" if atom.scale is not None else bad
        finally:
            gpu.unload(module)
    return cases, ""


def verify_mma_sync(gpu: Any, wanted: Callable[[str], bool], quick: bool) -> Iterator[Row]:
    """A row for each requested mma.sync form of the GPU's architecture."""
    rng = np.random.default_rng(1)
    for atom in atoms(gpu.target, "mma.sync"):
        if isinstance(atom, MmaAtom) and wanted(atom.ptx):
            yield report(gpu, atom.ptx, "", lambda atom=atom: run_mma_sync(gpu, atom, rng, quick))


def fill_tile(rng: np.random.Generator, tile: SmemTile, offset: int, matrices: Ints) -> npt.NDArray[np.uint8]:
    """[case, row, column] integers -> [case, byte] of the tile; unread bytes are random."""
    cases, rows, columns = matrices.shape
    size = tile.dtype.bytes
    first = np.asarray(tile.byte(np.arange(rows)[:, None], offset + np.arange(columns)[None, :]))
    data = rng.integers(0, 256, size=(cases, tile.bytes), dtype=np.uint8)
    bits = values.encode(tile.dtype, matrices)
    for byte in range(size):
        data[:, first + byte] = (bits >> np.uint64(8 * byte)).astype(np.uint8)
    return data


def tiles(atom: MmaAtom, operand: str, everything: bool) -> Iterator[tuple[str, SmemTile, int, int]]:
    """(name, tile, K step, its byte offset) of an operand's shared-memory layouts."""
    rows, depth = atom.tile_of(operand)
    dtype = atom.dtype_of(operand)
    for major in atom.a_majors if operand == "A" else atom.b_majors:
        for swizzle in sorted(SPANS, key=SPANS.__getitem__, reverse=True):
            span = SPANS[swizzle] // dtype.bytes
            extent = (rows, max(depth, span)) if major == "K" else (rows, 2 * depth)
            try:
                tile = smem_tile(extent, dtype, major, swizzle)
                steps = derive(tile, atom, operand).k_steps
            except LayoutError:
                continue  # the swizzle's span does not divide the tile
            for step in range(len(steps)) if everything else (0,):
                yield f"{major} {swizzle} step {step}", tile, step, steps[step]
            if not everything:
                return


def run_wgmma(gpu: Any, atom: MmaAtom, rng: np.random.Generator, pair: tuple[Any, Any]) -> tuple[int, str]:
    """(number of cases, first difference or empty) of an atom with given tiles."""
    sides = dict(zip("AB", pair))
    described: dict[str, wgmma.Tile | None] = {"A": None}
    for operand, (_, tile, _, offset) in ((key, side) for key, side in sides.items() if side is not None):
        word = derive(tile, atom, operand).word
        described[operand] = wgmma.Tile(tile.bytes, word, offset, tile.major == "MN")
    second = described["B"]
    assert second is not None
    text = wgmma.kernel(atom, described["A"], second, gpu.target, version_for(gpu))
    module = gpu.load(text)
    cases = 0
    try:
        plans: list[tuple[str, dict[str, np.ndarray]]] = [("random", {})]
        plans += [(f"index bits {name}", {name: index_bits(atom, name)}) for name in "AB"]
        for name, given in plans:
            count = len(next(iter(given.values()))) if given else 8
            matrices = {op: given.get(op, random_matrices(rng, atom, op, count)) for op in "ABC"}
            cases += count
            inputs: list[np.ndarray] = []
            for operand in "ABC":
                side = sides.get(operand)
                if operand == "C" or side is None:
                    inputs.append(values.pack(atom, operand, matrices[operand]))
                else:
                    _, tile, step, _ = side
                    depth = atom.tile_of(operand)[1]
                    inputs.append(fill_tile(rng, tile, step * depth, matrices[operand][:, 0]))
            size = count * 128 * atom.registers("D") * 4
            (raw,) = gpu.launch(module, "kernel", count, 128, inputs, [size])
            got = values.unpack(atom, "D", raw.view(np.uint32).reshape(count, 128, -1))
            bad = difference(atom, name, got, values.multiply(atom, matrices["A"], matrices["B"], matrices["C"]))
            if bad:
                return cases, bad
    finally:
        gpu.unload(module)
    return cases, ""


def verify_wgmma(gpu: Any, wanted: Callable[[str], bool], quick: bool) -> Iterator[Row]:
    """A row for each requested wgmma form with each tile of its operands."""
    rng = np.random.default_rng(2)
    for atom in atoms(gpu.target, "wgmma"):
        if not isinstance(atom, MmaAtom) or not wanted(atom.ptx) or atom.a_dtype.bits < 8:
            continue  # a one-bit type has no shared-memory tile here
        n = atom.shape_mnk[1]
        if quick and n not in ALL_VARIANTS:
            continue
        everything = n in ALL_VARIANTS and not quick
        firsts = list(tiles(atom, "A", everything)) if atom.a_source == "smem" else [None]
        seconds = list(tiles(atom, "B", everything))
        # every tile of A with one of B, then every tile of B with one of A
        for a, b in [*((a, seconds[0]) for a in firsts), *((firsts[0], b) for b in seconds[1:])]:
            name = f"A {a[0] if a else 'registers'}, B {b[0]}"
            yield report(gpu, atom.ptx, name, lambda atom=atom, a=a, b=b: run_wgmma(gpu, atom, rng, (a, b)))


def report(gpu: Any, ptx: str, variant: str, run: Callable[[], tuple[int, str]]) -> Row:
    """One atom's row; a failure is a row too."""
    try:
        cases, bad = run()
    except CudaError as error:
        gpu.reopen()
        return {"atom": ptx, "variant": variant, "ok": False, "cases": 0, "detail": str(error)}
    except (ValueError, KeyError, AssertionError) as error:
        return {"atom": ptx, "variant": variant, "ok": False, "cases": 0, "detail": f"{type(error).__name__}: {error}"}
    return {"atom": ptx, "variant": variant, "ok": not bad, "cases": cases, "detail": bad}


def summary(rows: list[Row]) -> dict[str, Any]:
    """The file's content: correct variants per atom, and all failures."""
    atoms: dict[str, list[int]] = {}
    for row in rows:
        counts = atoms.setdefault(row["atom"], [0, 0, 0])
        counts[0] += row["ok"]
        counts[1] += 1
        counts[2] += row["cases"]
    return {
        "held": sum(row["ok"] for row in rows),
        "of": len(rows),
        "products": sum(row["cases"] for row in rows),
        "atoms": {name: "{} of {} variants, {} products".format(*counts) for name, counts in atoms.items()},
        "failures": [row for row in rows if not row["ok"]],
    }


FAMILIES: dict[str, Callable[[Any, Callable[[str], bool], bool], Iterator[Row]]] = {
    "mma-sync": verify_mma_sync,
    "wgmma": verify_wgmma,
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong form or an empty run, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=[*FAMILIES, "all"])
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--match", default="", help="only atoms whose name has this text")
    parser.add_argument("--quick", action="store_true", help="fewer selectors, three values of N")
    arguments = parser.parse_args(argv)
    if status := needs.refused(needs.no_driver()):
        return status
    rows: list[Row] = []
    with Device() as gpu:
        about = {
            "gpu": gpu.name,
            "target": gpu.target,
            "driver": "{}.{}".format(*gpu.driver),
            "ptx": version_for(gpu),
            "layoutgemm": __version__,
            "python": platform.python_version(),
            "date": datetime.date.today().isoformat(),
        }
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        for family in FAMILIES if arguments.family == "all" else (arguments.family,):
            for row in FAMILIES[family](gpu, lambda text: arguments.match in text, arguments.quick):
                rows.append({"family": family} | row)
                tail = f"  {row['variant']}" if row["variant"] else ""
                why = f"\n       {row['detail']}" if row["detail"] else ""
                print(
                    f"{'ok' if row['ok'] else 'WRONG':5}  {row['atom']}{tail}  [{row['cases']} cases]{why}", flush=True
                )
    bad = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - bad} of {len(rows)} hold, {sum(row['cases'] for row in rows)} products")
    if arguments.json:
        arguments.json.write_text(json.dumps({"about": about} | summary(rows), indent=1) + "\n")
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
