"""Texts of several lines that CuTe, its DSL and Triton print: every value of them, by brute force."""

from __future__ import annotations

import itertools
import random

import pytest

from layoutgemm import Layout, parse, wgmma
from layoutgemm.atoms import mma_sync
from layoutgemm.errors import ParseError
from layoutgemm.layouts import LinearLayout
from layoutgemm.layouts.listing import Listing
from layoutgemm.layouts.proofs.prove import prove
from tests.layouts.damage import damaged, outcomes

CUTE_MMA = """TiledMMA
  ThrLayoutVMNK:  (_32,_2,_2,_1):(_1,_32,_64,_0)
  PermutationMNK: (_32,_,_16)
MMA_Atom
  ThrID:      _32:_1
  Shape_MNK:  (_16,_8,_16)                      // instruction
  LayoutA_TV: ((_4,_8),(_2,_2,_2)):((_32,_1),(_16,_8,_128))
  LayoutB_TV: ((_4,_8),(_2,_2)):((_16,_1),(_8,_64))
  LayoutC_TV: ((_4,_8),(_2,_2)):((_32,_1),(_16,_8))
"""
DSL_MMA = """Tiled MMA
  Thr Layout VMNK: (32,2,2,1):(1,32,64,0)
  Permutation MNK: (32,_,16)
MMA Atom
  ThrID:           32:1
  Shape MNK:       (16,8,16)
  TV Layout A:     ((4,8),(2,2,2)):((32,1),(16,8,128))
  TV Layout B:     ((4,8),(2,2)):((16,1),(8,64))
  TV Layout C:     ((4,8),(2,2)):((32,1),(16,8))"""
DSL_COPY = """Tiled Copy
  Tiler MN:        ((8,8,2):(1,16,8),4:1,[2:1;4096:1])
  TV Layout tiled: ((4,8,8),(2,2,2)):((128,1,8),(512,64,1024))
Copy Atom
  ThrID:           32:1
  TV Layout Src:   (32,(2,4)):(2,(1,64))
  TV Layout Dst:   (32,8):(8,1)
  Value type:      f16"""


def test_listings_of_cute_and_of_the_dsl_are_one() -> None:
    found = parse(CUTE_MMA)
    assert isinstance(found, Listing)
    assert found == parse(DSL_MMA) == parse(str(found))
    assert found == Layout.parse("\n".join(f"# {line}" for line in DSL_MMA.split("\n")))
    assert found.title == "TiledMMA" and found["PermutationMNK"] == (32, None, 16) and found["Shape_MNK"] == (16, 8, 16)
    atom = mma_sync("m16n8k16", "f16")
    for operand in "ABC":
        assert prove(found[f"Layout{operand}_TV"], atom.layout(operand))
    assert not prove(found["LayoutA_TV"], wgmma(64, "f16", a_source="rmem").layout("A"))


def test_a_listing_of_a_copy_has_its_tiler() -> None:
    found = parse(DSL_COPY)
    assert isinstance(found, Listing) and found == parse(str(found))
    assert found["Tiler_MN"] == (Layout((8, 8, 2), (1, 16, 8)), Layout(4), (Layout(2), Layout(4096)))
    assert found["ValueType"] == "f16"
    assert list(found.layouts) == ["TiledLayout_TV", "ThrID", "ValLayoutSrc", "ValLayoutDst"]
    with pytest.raises(KeyError, match="no 'x' among Tiler_MN"):
        found["x"]


def test_lines_with_names_are_a_listing() -> None:
    found = parse("sA: Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)\n\nsB:\t(4,8):(8,1)  // B\n")
    assert isinstance(found, Listing)
    assert str(found) == "  sA: S<3,3,3>[16b] o 0 o (8,64):(64,1)\n  sB: (4,8):(8,1)"


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("TiledMMA\n  ThrLayoutVMNK: (_32,_2(_1,_32)", "\n  Thr", "',' or ')'"),
        ("TiledMMA\n  ThrID: 32:1\n  ThrID: 32:1", "ThrID: 32:1\n", "another name than ThrID"),
        ("MMA_Atom\n  ThrID: 32:1\n  junk", "junk", "a name and its layout"),
        ("a: 4:1\nb: 8:1\n(4,8)", "(4,8)", "a name and its layout"),
    ],
)
def test_a_damaged_listing_is_refused_where_it_is(text: str, at: str, expected: str) -> None:
    with pytest.raises(ParseError, match="expected") as error:
        parse(text)
    assert expected in str(error.value) and error.value.position >= text.index(at)


# ---------------------------------------------------------------- Triton


def printed(bases: dict[str, list[list[int]]], shape: list[int]) -> list[str]:
    """One linear layout as Triton's compiler, its Python and Gluon print it."""
    lines = []
    for name, vectors in bases.items():
        if not vectors:
            lines.append(f" - {name} is a size 1 dimension")
        for i, vector in enumerate(vectors):
            lines.append(f" {' ' if i else '-'} {name}={1 << i} -> ({', '.join(map(str, vector))})")
    dims = ", ".join(f"dim{i} (size {size})" for i, size in enumerate(shape))
    keys = {"register": "reg_bases", "lane": "lane_bases", "warp": "warp_bases", "block": "block_bases"}
    gluon = ", ".join(f"{keys[name]}={vectors}" for name, vectors in bases.items())
    attribute = ", ".join(f"{name} = {vectors}" for name, vectors in bases.items())
    pairs = list(bases.items())
    return [
        "\n".join([*lines, f"where out dims are: [{dims}]"]),
        "\n".join([*lines, f"where out dims are: [{', '.join(f'dim{i}' for i in range(len(shape)))}]"]),
        f"LinearLayout({bases}, {['x', 'y', 'z'][: len(shape)]})",
        f"#linear = #ttg.linear<{{{attribute}}}>",
        str(bases),
        f"layout = gl.DistributedLinearLayout({gluon}, shape={shape})",
        f"LinearLayout.from_bases({pairs}, {['x', 'y', 'z'][: len(shape)]}, {shape}, require_surjective=False)",
    ]


@pytest.mark.parametrize("seed", range(40))
def test_every_text_of_a_linear_layout_is_its_function(seed: int) -> None:
    rng = random.Random(seed)
    shape = [1 << rng.randint(0, 3) for _ in range(rng.randint(1, 3))]
    names = ["register", "lane", "warp", "block"]
    bases = {name: [[rng.randrange(s) for s in shape] for _ in range(rng.randint(0, 3))] for name in names}
    bases["register"].append([s - 1 for s in shape])  # so that the extents can be read off the vectors
    for text in printed(bases, shape):
        found = parse(text)
        assert isinstance(found, LinearLayout)
        assert found.names == tuple(names)
        for coord in itertools.product(*[range(1 << len(bases[name])) for name in names]):
            value = [0] * len(shape)
            for name, x in zip(names, coord, strict=True):
                for i, vector in enumerate(bases[name]):
                    if x >> i & 1:
                        value = [a ^ b for a, b in zip(value, vector, strict=True)]
            assert found(*coord) == Layout(tuple(shape))(tuple(value)), text


def test_shared_linear_layouts_and_refused_encodings() -> None:
    found = parse("#shared = #ttg.shared_linear<{offset = [[0, 1], [0, 2], [1, 0], [2, 2]]}, alignment = 16>")
    assert isinstance(found, LinearLayout) and found.inverse()(4 * 2 + 2) == 8 ^ 2 ^ 2
    for text, name in (
        ("#ttg.partitioned_shared<{numPartitions = 2}>", "partitioned_shared<"),
        ("ttgl.PartitionedSharedLayout(2, 4)", "PartitionedSharedLayout("),
    ):
        with pytest.raises(ParseError, match=f"{name[:-1]} of Triton is none of those that are read") as error:
            parse(text)
        assert error.value.position == text.index(name)


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("#ttg.linear<{register = [[0, 1]], lane = [[1, 0] [2, 0]]}>", 49, "',' or ']'"),
        ("{'register': [[0, 1], [0]]}", 13, "vectors of 2 integers"),
        ("{'register': [[0, -1]]}", 13, "integers from 0"),
        ("{'register': [[1]], 'register': [[2]]}", 20, "another name than register"),
        ("{'register': 3}", 0, "the bases of register"),
        ("- lane=1 -> (0, 1)\n  lane=4 -> (0, 2)", 21, "lane=2, the next bit"),
        ("DistributedLinearLayout(reg_bases=[[4]], shape=[4])", 34, "a vector inside (4,)"),
        ("{'register': [[1]]} junk", 20, "the end of the text"),
    ],
)  # fmt: skip
def test_damaged_bases_are_refused_where_they_are(text: str, position: int, expected: str) -> None:
    with pytest.raises(ParseError, match="expected") as error:
        parse(text)
    assert expected in str(error.value)
    assert error.value.position == position


def test_random_damage_is_read_or_refused() -> None:
    texts = [
        *printed({"register": [[0, 1]], "lane": [[1, 0], [2, 0]], "warp": [], "block": []}, [4, 2]),
        CUTE_MMA,
        DSL_COPY,
    ]
    signs = ["", "(", "]", "{", "}", "=", "9", "x", "\n", ",", "->", "'"]
    read, refused = outcomes(damaged(texts, 1, signs, places=3, most=4))
    assert read > 100 and refused > 2500, (read, refused)
