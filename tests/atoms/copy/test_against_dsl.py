"""Copy atoms against the CuTe DSL 4.8.1, as functions, and against published rows; where they differ, who is wrong."""

import json
import sys
from pathlib import Path

import pytest

from layoutgemm import Layout
from layoutgemm.atoms import (
    bulk_copy,
    cp_async,
    ldmatrix,
    ldmatrix_m16n8,
    load_global,
    load_shared,
    st_async,
    stmatrix,
    store_global,
    store_shared,
    universal_copy,
)
from layoutgemm.atoms.copy.base import counted_in, in_bits
from layoutgemm.errors import AtomError
from tests.oracle.runner import ask

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "tests" / "vectors" / "tv_vectors.json"
ELEMENTS = {"Int8": "u8", "Float16": "f16", "Float32": "f32", "Float4E2M1FN": "e2m1", "Float6E2M3FN": "e2m3"}
PACKED = {None: "b8", 6: "b8x16.b6x16_p32", 4: "b8x16.b4x16_p64"}


def load_8x16(transpose, count, unpack):
    if transpose:
        raise AtomError("no m8n16 with .trans")
    # Without unpacking there is no m8n16: the DSL issues m8n8.b16, which moves the same bytes.
    return ldmatrix(count, f"m8n16.{PACKED[unpack]}" if unpack else "m8n8.b16")


def load_8x8(transpose, count, unpack):
    if unpack:
        raise AtomError("m8n8 unpacks nothing")
    return ldmatrix(count, transpose=transpose)


def store(form):
    def make(transpose, count, unpack):
        if unpack:
            raise AtomError("stmatrix unpacks nothing")
        return stmatrix(count, form, transpose)

    return make


def load_16x8(transpose, count, unpack):
    if not transpose:
        raise AtomError("m16n8 exists with .trans alone")
    return ldmatrix_m16n8(count, PACKED[unpack])


WARP_OPS = {
    "LdMatrix8x8x16bOp": load_8x8,
    "LdMatrix8x16x8bOp": load_8x16,
    "LdMatrix16x8x8bOp": load_16x8,
    "LdMatrix16x16x8bOp": lambda t, n, unpack: ldmatrix(n, f"m16n16.{PACKED[unpack]}", t),
    "StMatrix8x8x16bOp": store("m8n8.b16"),
    "StMatrix16x8x8bOp": store("m16n8.b8"),
}
SIMT_OPS = {
    ("nvgpu", "CopyUniversalOp"): lambda bits, e: universal_copy(bits, e),
    ("nvgpu", "CopyG2ROp"): lambda bits, e: load_global(bits, e),
    ("nvgpu", "CopyR2GOp"): lambda bits, e: store_global(bits, e),
    ("nvgpu", "CopyS2ROp"): lambda bits, e: load_shared(bits, e),
    ("nvgpu", "CopyR2SOp"): lambda bits, e: store_shared(bits, e),
    ("cpasync", "CopyG2SOp"): lambda bits, e: cp_async(bits // 8 if bits % 8 == 0 else bits / 8, "ca", e),
    ("cpasync", "CopyBulkG2SOp"): lambda bits, e: bulk_copy(bits // 8, "gmem", "smem", e),
    ("cpasync", "CopyBulkG2SMulticastOp"): lambda bits, e: bulk_copy(bits // 8, element=e, multicast=True),
    ("cpasync", "CopyBulkS2GOp"): lambda bits, e: bulk_copy(bits // 8, "smem", "gmem", e),
    ("cpasync", "CopyBulkS2GByteMaskOp"): lambda bits, e: bulk_copy(bits // 8, "smem", "gmem", e, byte_mask=True),
    ("cpasync", "CopyBulkS2SOp"): lambda bits, e: bulk_copy(bits // 8, "smem", "smem", e),
    ("cpasync", "CopyDsmemStoreOp"): lambda bits, e: st_async(bits, e),
}
WIDTHS = (8, 16, 24, 32, 64, 96, 128, 256, 512, 4096)
LOADS = [
    *[({"load_cache_mode": f"LoadCacheMode.{m}"}, {"cache": m.lower()}) for m in ("ALWAYS", "GLOBAL", "STREAMING")],
    *[({"load_cache_mode": f"LoadCacheMode.{m}"}, {"cache": m.lower()}) for m in ("LAST_USE", "NONE")],
    *[
        ({"l1c_evict_priority": f"CacheEvictionPriority.{m}"}, {"evict": m.lower()})
        for m in ("EVICT_NORMAL", "EVICT_FIRST", "EVICT_LAST", "EVICT_UNCHANGED", "NO_ALLOCATE")
    ],
    *[({"l2_prefetch_size": f"L2PrefetchSize.SIZE_{n}B"}, {"l2_prefetch": n}) for n in (64, 128, 256)],
    ({"invariant": True}, {"read_only": True}),
    ({"memory_order": "MemoryOrder.VOLATILE"}, {"order": "volatile"}),
    ({"memory_order": "MemoryOrder.RELAXED", "memory_scope": "MemoryScope.GPU"}, {"order": "relaxed", "scope": "gpu"}),
    ({"memory_order": "MemoryOrder.ACQUIRE", "memory_scope": "MemoryScope.SYS"}, {"order": "acquire", "scope": "sys"}),
]
STORES = [
    *[({"store_cache_mode": f"StoreCacheMode.{m}"}, {"cache": m.lower()}) for m in ("WRITE_BACK", "GLOBAL")],
    *[({"store_cache_mode": f"StoreCacheMode.{m}"}, {"cache": m.lower()}) for m in ("STREAMING", "WRITE_THROUGH")],
    *[
        ({"l1c_evict_priority": f"CacheEvictionPriority.{m}"}, {"evict": m.lower()})
        for m in ("EVICT_NORMAL", "EVICT_FIRST", "EVICT_LAST", "EVICT_UNCHANGED", "NO_ALLOCATE")
    ],
    ({"memory_order": "MemoryOrder.RELAXED", "memory_scope": "MemoryScope.GPU"}, {"order": "relaxed", "scope": "gpu"}),
    ({"memory_order": "MemoryOrder.RELEASE", "memory_scope": "MemoryScope.CTA"}, {"order": "release", "scope": "cta"}),
]


def questions():
    for name in WARP_OPS:
        for args in ((t, n, u) for t in (False, True) for n in (1, 2, 4) for u in (None, 6, 4)):
            for element in ELEMENTS:
                yield {"op": "warp", "name": name, "args": args, "element": element}
    for module, name in SIMT_OPS:
        for element in ELEMENTS:
            for bits in WIDTHS:
                yield {"op": "simt", "module": module, "name": name, "args": [], "element": element, "bits": bits}
    yield {"op": "ptx", "loads": [row[0] for row in LOADS], "stores": [row[0] for row in STORES]}


@pytest.fixture(scope="module")
def replies():
    asked = [{"id": i, **q} for i, q in enumerate(questions())]
    found = ask([sys.executable, str(ROOT / "tests/oracle/dsl_copy.py")], asked)
    return [(q, found[q["id"]]) for q in asked]


def layout_of(row):
    def as_tuple(nested):
        return tuple(map(as_tuple, nested)) if isinstance(nested, list) else nested

    return Layout(as_tuple(row["shape"]), as_tuple(row["stride"]))


def refused(make, *args):
    try:
        return None, make(*args)
    except AtomError as error:
        return str(error), None


def same_function(ours, theirs):
    return ours.equivalent(theirs) and [m.size for m in ours] == [m.size for m in theirs]


@pytest.mark.dsl
def test_every_warp_copy_of_the_dsl(replies):
    equal, split, neither = 0, 0, 0
    for question, reply in replies:
        if question["op"] != "warp":
            continue
        label = str(question)
        why, base = refused(WARP_OPS[question["name"]], *question["args"])
        if why is not None:
            assert "error" in reply, (label, why, reply)  # both refuse a form that PTX has not
            neither += 1
            continue
        assert "answer" in reply, (label, reply)
        theirs = {side: layout_of(reply["answer"][side]) for side in ("src", "dst")}
        why, atom = refused(base.recast, ELEMENTS[question["element"]])
        if why is None:
            for side in ("src", "dst"):
                assert same_function(atom.layout(side), theirs[side]), (label, side)
            equal += 1
            continue
        # The DSL is wrong: it counts the element all the same. Six bits do not divide a row of 16 bytes, of which it
        # makes 22 elements; and an element that lies in two lanes leaves its map with fewer threads than the warp's 32.
        assert "moves no whole" in why
        registers = theirs["dst" if question["name"].startswith("Ld") else "src"]
        six = question["element"] == "Float6E2M3FN"
        row = theirs["src" if question["name"].startswith("Ld") else "dst"][1].size
        assert row * 6 > 128 if six else registers[0].size < 32, (label, str(registers))
        split += 1
    assert (equal, split, neither) == (108, 72, 360)


@pytest.mark.dsl
def test_the_dsl_maps_of_split_elements_are_an_upcast_of_threads(replies):
    # Where they come from: CuTe divides the whole map by the width, and where the threads' stride is smaller than an
    # element it merges threads. 4-byte elements of a transposed m8n8 leave 16 threads of 32.
    theirs = next(
        layout_of(r["answer"]["dst"])
        for q, r in replies
        if q.get("args") == (True, 1, None) and q["name"] == "LdMatrix8x8x16bOp" and q["element"] == "Float32"
    )
    ours = in_bits(ldmatrix(1, transpose=True).layout_dst, 16)
    assert ours.upcast(32).equivalent(theirs) and theirs[0].size == 16
    assert counted_in(32, ours) is None


@pytest.mark.dsl
def test_every_thread_copy_of_the_dsl(replies):
    equal, beyond = 0, {}
    for question, reply in replies:
        if question["op"] != "simt":
            continue
        make = SIMT_OPS[question["module"], question["name"]]
        why, atom = refused(make, question["bits"], ELEMENTS[question["element"]])
        if why is None:
            assert "answer" in reply, (question, reply)
            for side in ("src", "dst"):
                assert same_function(atom.layout(side), layout_of(reply["answer"][side])), (question, side)
            equal += 1
        elif "answer" in reply:
            # The DSL makes atoms that no single instruction is: it rounds to whole elements, or copies in pieces.
            beyond.setdefault(question["name"], set()).add(question["bits"])
    assert equal == 201
    assert beyond["CopyG2SOp"] == {8, 16, 24, 32, 64, 96, 128, 256, 512, 4096}
    assert beyond["CopyS2ROp"] == {256, 512, 4096}


@pytest.mark.dsl
def test_instruction_names_are_what_the_dsl_emits(replies):
    reply = next(r for q, r in replies if q["op"] == "ptx")
    assert "answer" in reply, reply
    loads, stores = reply["answer"]
    assert loads == [load_global(128, "f32", **row[1]).ptx for row in LOADS]
    assert stores == [store_global(128, "f32", **row[1]).ptx for row in STORES]


def test_published_rows_of_stmatrix():
    rows = [row for row in json.loads(VECTORS.read_text())["rows"] if row["atom"].startswith("stmatrix")]
    compared = 0
    for row in rows:
        assert row["atom"] == "stmatrix.x1.trans.m8n8.b16"
        atom = stmatrix(1, transpose=True)
        theirs = layout_of(row)
        if row["elem_bits"] == 16 or row["operand"] == "dst":
            map_ = counted_in(row["elem_bits"], in_bits(atom.layout(row["operand"]), 16))
            assert same_function(map_, theirs), row
            compared += 1
        else:
            # The row is wrong: 32-bit elements are halves in lanes l and l+4, and its map knows 16 threads of the 32.
            assert row["elem_bits"] == 32 and theirs[0].size == 16
            with pytest.raises(AtomError, match=r"no whole f32 at src: thread 0, value 0 has bits 0..15"):
                atom.recast("f32")
    assert (len(rows), compared) == (4, 3)
