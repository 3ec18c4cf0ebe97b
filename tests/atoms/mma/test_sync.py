"""mma.sync: every form against the formulas that PTX prints, its own laws, the assembler, and what must be refused."""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np
import pytest

from layoutgemm.atoms import MmaAtom, atoms, mma_sync
from layoutgemm.atoms.mma.block_scales import provider, selectors
from layoutgemm.atoms.mma.warp_fragments import fragment, run_of
from layoutgemm.atoms.targets import TARGETS, since
from layoutgemm.errors import AtomError
from tests import needs
from tests.atoms.mma.ptx_fragments import MULTIPLICANDS, place
from tests.micro import mma_sync as micro

EVERY = [atom for atom in atoms(family="mma.sync") if isinstance(atom, MmaAtom)]
SCALED = [atom for atom in EVERY if atom.scale is not None]
# One atom of each set of maps and slots: 173 atoms share a few dozen.
DISTINCT = list(
    {
        tuple((str(atom.layout(x)), atom.element_bits(x)) for x in atom.operands): atom for atom in reversed(EVERY)
    }.values()
)


def lanes_of(atom: MmaAtom) -> list[int]:
    return list(range(32)) if atom.thread_ids is None else list(map(int, atom.thread_ids.offsets()))


def test_every_form_is_there():
    count = {}
    for atom in EVERY:
        m, n, k = atom.shape_mnk
        key = f"m{m}n{n}k{k} {atom.a_dtype.kind if atom.a_dtype.kind == 'float' else 'int'}{atom.a_dtype.bits}"
        count[key] = count.get(key, 0) + 1
    fp8_pairs, narrow_pairs = 4, 25
    assert sum(count.values()) == len({atom.ptx for atom in EVERY}) == 173
    assert count["m8n8k4 float16"] == 4 * 3  # four pairs of majors; f16, f16 to f32, f32
    assert count["m16n8k8 float16"] == count["m16n8k16 float16"] == 2 + 1  # f16 twice, bf16
    assert count["m16n8k16 float8"] == fp8_pairs * 2
    narrow = [atom for atom in EVERY if "f8f6f4" in atom.ptx]
    assert len(narrow) == narrow_pairs * (2 + 1)  # f16 and f32 without scales, f32 with
    assert count["m16n8k32 int8"] == count["m16n8k64 int4"] == 4 * 2  # signs, saturation
    assert count["m16n8k256 int1"] == 2  # xor, and
    assert len(SCALED) == narrow_pairs + 1 + 3


def test_maps_are_those_that_ptx_prints():
    """One derivation against one formula per shape: every lane and every element of A, B, C and D."""
    seen = set()
    for atom in DISTINCT:
        for operand in "ABCD":
            rows = atom.tile_of(operand)[0]
            layout = atom.layout(operand)
            got = layout.offsets().reshape(layout[1].size, layout[0].size)
            want = [
                [row + rows * column for row, column in (place(atom, operand, lane, i) for lane in lanes_of(atom))]
                for i in range(layout[1].size)
            ]
            assert np.array_equal(got, want), (atom.ptx, operand)
            seen.add((atom.shape_mnk, atom.element_bits(operand)))
    assert set(MULTIPLICANDS) <= seen


def test_formula_of_the_docstring():
    for atom in EVERY:
        if atom.thread_ids is not None:
            continue
        for operand in "ABC":
            p = 2 if operand == "C" else run_of(atom.element_bits(operand))
            blocks = atom.tile_of(operand)[0] // 8
            t, v = np.arange(32)[:, None], np.arange(atom.layout(operand)[1].size)[None, :]
            row = t // 4 + 8 * (v // p % blocks)
            column = p * (t % 4) + v % p + 4 * p * (v // (p * blocks))
            got = atom.coords(operand)(t, v)
            assert np.array_equal(got[0], row) and np.array_equal(got[1], column), (atom.ptx, operand)


def test_every_fragment_is_a_bijection_and_its_owner_map_the_inverse():
    for atom in DISTINCT:
        for operand in atom.operands:
            assert atom.one_to_one(operand), (atom.ptx, operand)
            rows, columns = atom.tile_of(operand)
            row, column = (x.reshape(-1) for x in np.indices((rows, columns)))
            thread, value = atom.owner(operand)(row, column)
            back = atom.coords(operand)(thread, value)
            assert np.array_equal(back[0] + 0 * row, row) and np.array_equal(back[1] + 0 * row, column)
            if operand in ("SFA", "SFB"):
                assert atom.copies(operand) == (2 if operand == "SFA" else 4)
                layout = atom.layout(operand)
                table = layout.offsets().reshape(layout[1].size, layout[0].size)
                lowest = [np.argwhere(table.T == m + rows * j)[0][0] for m, j in zip(row, column)]
                assert np.array_equal(thread, lowest)
            else:
                assert atom.copies(operand) == 1
                assert atom.layout(operand).is_bijective()


def test_closed_form():
    atom = mma_sync("m16n8k16", "f16")
    row, column = map(str, atom.formula("A", "t", "v"))
    assert (row, column) == ("t//4 + 8*((v//2)%2)", "8*(v//4) + 2*(t%4) + v%2")
    for t in range(32):
        for v in range(8):
            assert (eval(row), eval(column)) == atom.coords("A")(t, v)
    thread, value = map(str, atom.owner("A").expr("m", "k"))
    assert (thread, value) == ("4*(m%8) + (k//2)%4", "4*(k//8) + 2*(m//8) + k%2")
    assert "2 hold each element, this is the lowest" in mma_sync("m16n8k32", "e4m3", kind="mxf8f6f4").explain("SFA")


def test_registers_and_slots():
    cases = {
        ("m16n8k16", "bf16"): (4, 2, 4),
        ("m16n8k8", "tf32"): (4, 2, 4),
        ("m16n8k16", "f64"): (16, 8, 8),
        ("m16n8k64", "i4"): (4, 2, 4),
        ("m8n8k4", "f16"): (2, 2, 8),
        ("m16n8k256", "b1"): (4, 2, 4),
    }
    for (shape, a), want in cases.items():
        atom = mma_sync(shape, a)
        assert tuple(atom.registers(operand) for operand in "ABC") == want
        slots = [atom.slot("A", v) for v in range(atom.layout_A[1].size)]
        width = atom.element_bits("A")
        assert [32 * register + low for register, low in slots] == [width * v for v in range(len(slots))]
    assert mma_sync("m16n8k16", "f16", c="f16").registers("C") == 2
    narrow = mma_sync("m16n8k32", "e2m1", "e3m2", kind="f8f6f4")
    # four bits in the middle of a byte, six at its foot
    assert narrow.slot("A", 1) == (0, 10) and narrow.slot("B", 1) == (0, 8)
    assert (narrow.registers("A"), narrow.registers("B")) == (4, 2)
    with pytest.raises(AtomError, match=r"values 0..7 in a thread, not 8"):
        mma_sync("m16n8k16").slot("A", 8)


def test_scale_selectors_are_the_published_table():
    # one atom of each kind and vector: the selectors do not look at the types
    for atom in {(atom.shape_mnk, atom.scale.vector): atom for atom in SCALED}.values():
        factors = atom.shape_mnk[2] // atom.scale.vector
        byte_ids = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}[factors]
        assert selectors(atom, "SFA") == (byte_ids, (0, 1))
        assert selectors(atom, "SFB") == (byte_ids, (0, 1, 2, 3))
        assert f"scale_vec::{factors}X" in atom.ptx and atom.ptx.endswith(atom.scale.dtype.name)
        for byte_id in byte_ids:
            for thread_id in (0, 1):
                for row in range(16):
                    # one pair of the quad: rows g and g + 8 in its lower and upper lane
                    lane = 4 * (row % 8) + 2 * thread_id + row // 8
                    assert provider(atom, "SFA", row, factors - 1, byte_id, thread_id) == (lane, byte_id + factors - 1)
            for thread_id in range(4):
                for row in range(8):
                    assert provider(atom, "SFB", row, 0, byte_id, thread_id) == (4 * row + thread_id, byte_id)
    with pytest.raises(AtomError, match=r"byte-id in \(0, 2\) and thread-id in \(0, 1\), not \{1, 0\}"):
        provider(mma_sync("m16n8k64", "e2m1", kind="mxf4"), "SFA", 0, 0, byte_id=1)
    with pytest.raises(AtomError, match="has no block scales 'SFA'"):
        selectors(mma_sync("m16n8k16"), "SFA")


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"shape": "m16n8k32", "a": "bf16"}, "of bf16 and bf16 has m16n8k8, m16n8k16; it has no m16n8k32"),
        ({"shape": (16, 8, 8), "a": "bf16", "b": "f16"}, "both from one of: f16 | bf16 | tf32"),
        ({"shape": (16, 8, 32), "a": "e2m1"}, "kind f8f6f4 or mxf4 or mxf4nvf4 or mxf8f6f4 takes them"),
        ({"shape": (16, 8, 32), "a": "e3m2", "b": "e4m3"}, "kind f8f6f4 or mxf8f6f4 takes them"),
        ({"shape": (16, 8, 16), "a": "bf16", "c": "f16"}, "accumulates in f32, not in f16"),
        ({"shape": (16, 8, 16), "a": "i8", "c": "f32"}, "accumulates in i32, not in f32"),
        ({"shape": (16, 8, 16), "a": "f16", "c": "f16", "d": "f32"}, "takes C and D of one type; got C f16 and D f32"),
        ({"shape": (8, 8, 4), "a": "f16", "c": "f32", "d": "f16"}, "or C f16 and D f32; got C f32 and D f16"),
        ({"shape": (16, 8, 16), "layouts": ("col", "col")}, 'takes A "row" and B "col", not'),
        ({"shape": (8, 8, 4), "a": "f16", "layouts": ("row", "mn")}, 'takes A "row" and B "col" or any other pair'),
        ({"shape": (16, 8, 16), "saturate": True}, "does not saturate: .satfinite is for 8-bit and 4-bit integers"),
        ({"shape": (16, 8, 256), "a": "b1", "saturate": True}, "does not saturate"),
        ({"shape": (16, 8, 256), "a": "b1", "bit_op": "or"}, 'has no bit operation \'or\': b1 has "xor" and "and"'),
        ({"shape": (16, 8, 16), "bit_op": "and"}, "other types none"),
        ({"shape": (16, 8, 16), "kind": "f16"}, "has no kind 'f16'; it has f8f6f4, mxf4, mxf4nvf4, mxf8f6f4"),
        ({"shape": (16, 8, 32), "a": "e2m1", "kind": "mxf4"}, "of kind mxf4 of e2m1 and e2m1 has m16n8k64"),
        ({"shape": (16, 8, 64), "a": "e2m1", "kind": "mxf4nvf4"}, "scale=None, vector=None leaves a choice"),
        ({"shape": (16, 8, 64), "a": "e2m1", "kind": "mxf4nvf4", "scale": "ue4m3", "vector": 32}, "is not there"),
        ({"shape": (16, 8, 16), "scale": "ue8m0"}, "has no block scales: kinds mxf8f6f4, mxf4 and mxf4nvf4"),
        ({"shape": "m16n8"}, "is no shape"),
        ({"shape": (16, 8, True)}, "must be 3 integers or a string"),
        ({"shape": (16.0, 8, 16)}, "must be 3 integers or a string"),
    ],
)
def test_refusals_name_what_ptx_has(arguments, says):
    with pytest.raises(AtomError, match=re.escape(says)):
        mma_sync(**arguments)


def test_only_the_family_is_derived():
    with pytest.raises(AtomError, match="not made of blocks of 8 rows and 4\\*2 columns"):
        fragment(8, 4, 2)
    with pytest.raises(AtomError, match="12 bits do not fill"):
        run_of(12)
    with pytest.raises(AtomError, match="no target 'sm_91'"):
        since("sm_91")


def assembler() -> str:
    found = shutil.which("ptxas")
    if found is None:
        pytest.skip(needs.NO_PTXAS)
    return found


def refused(text: str, target: str) -> dict[int, str]:
    """Number of a kernel in the text -> the assembler's error in it."""
    done = subprocess.run(
        [assembler(), "-arch", target, "-o", "/dev/null", "-"], input=text, capture_output=True, text=True, check=False
    )
    starts = [number for number, line in enumerate(text.splitlines()) if line.startswith(".visible")]
    errors: dict[int, str] = {}
    for line, why in re.findall(r"line (\d+); error\s*: (.*)", done.stderr):
        errors.setdefault(sum(start < int(line) for start in starts) - 1, why)
    assert done.returncode == 0 or errors, done.stderr
    return errors


# ue8m0 over 16 elements is of PTX 9.1; assemblers before it refuse the modifier.
NEWER = "mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue8m0"


@pytest.mark.parametrize("target", ("sm_75", "sm_80", "sm_89", "sm_90a", "sm_100", "sm_100a", "sm_120", "sm_120a"))
def test_the_assembler_takes_exactly_what_the_archs_say(target):
    errors = refused(micro.module(EVERY, target), target)
    for number, atom in enumerate(EVERY):
        if NEWER in atom.ptx:
            continue
        if (
            target == "sm_100a"
            and "kind::f8f6f4" in atom.ptx
            and {atom.a_dtype.name, atom.b_dtype.name}
            <= {
                "e4m3",
                "e5m2",
            }
        ):
            # PTX ISA says that .kind requires sm_120a; ptxas also takes it here for the types that need no kind.
            continue
        assert (number not in errors) == (target in atom.archs), (atom.ptx, errors.get(number))


@pytest.mark.parametrize("target", ("sm_90a", "sm_120a"))
def test_kernels_assemble_to_the_end(target):
    others = {"sm_90a": (), "sm_120a": ("sm_90a",)}[target]
    held = [
        atom for atom in EVERY if target in atom.archs and not set(others) & set(atom.archs) and NEWER not in atom.ptx
    ]
    assert len(held) > 70 and not refused(micro.module(held, target), target)


def test_targets_are_in_order():
    assert list(since("sm_70")) == list(TARGETS)
    assert mma_sync("m8n8k128", "b1").archs[0] == "sm_75"
    assert mma_sync("m8n8k128", "b1", bit_op="and").archs[0] == "sm_80"
    assert mma_sync("m16n8k8", "f64").archs[0] == "sm_90"
    assert mma_sync("m16n8k32", "e4m3", "e5m2").archs[0] == "sm_89"
    assert mma_sync("m16n8k32", "e4m3", "e2m1", kind="f8f6f4").archs == ("sm_120a", "sm_121a")
