"""Triton's views of linear layouts, as it prints them, and lists of bases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from layoutgemm import parse
from layoutgemm.errors import ParseError
from layoutgemm.layouts import LinearLayout

Bases = dict[str, list[tuple[int, ...]]]
# The accumulator of m16n8 over two warps, and one that repeats in registers, lanes, warps and blocks
MMA: Bases = {"register": [(0, 1), (8, 0)], "lane": [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)], "warp": [(16, 0)]}
COPIES: Bases = {"register": [(0, 1), (0, 0)], "lane": [(1, 0), (0, 0)], "warp": [(0, 0)], "block": [(0, 0), (2, 0)]}


def shape_of(bases: Bases) -> list[int]:
    vectors = [v for each in bases.values() for v in each]
    return [1 << max(v[d].bit_length() for v in vectors) for d in range(len(vectors[0]))]


def values(bases: Bases) -> Iterator[tuple[dict[str, int], tuple[int, ...]]]:
    """Each place, the first input fastest, and its element."""
    for numbers in itertools.product(*(range(1 << len(bases[name])) for name in reversed(bases))):
        place = dict(zip(bases, reversed(numbers)))
        element = [0] * len(shape_of(bases))
        for name, vectors in bases.items():
            for i, vector in enumerate(vectors):
                if place[name] >> i & 1:
                    element = [a ^ b for a, b in zip(element, vector)]
        yield place, tuple(element)


def nested(cells: Sequence[str], shape: Sequence[int]) -> str:
    """Cells in row-major order in brackets, as Triton prints them: a line a row."""
    if len(shape) == 1:
        return "[" + ", ".join(cells) + "]"
    size = len(cells) // shape[0]
    return "[" + "\n ".join(nested(cells[i : i + size], shape[1:]) for i in range(0, len(cells), size)) + "]"


def tensor_view(bases: Bases) -> str:
    shape, held = shape_of(bases), dict[tuple[int, ...], list[str]]()
    for place, element in values(bases):
        block = f"B{place['block']}:" if "block" in place else ""
        thread = place["lane"] + (place["warp"] << len(bases["lane"]))
        held.setdefault(element, []).append(f" {block}T{thread}:{place['register']}")
    return nested(["|".join(held[element]) for element in itertools.product(*map(range, shape))], shape)


def hardware_view(bases: Bases) -> str:
    lines = list[str]()
    before: tuple[int, ...] = ()
    moved = {name: bases[name] for name in ("lane", "register", "warp", "block") if name in bases}
    for place, element in values(moved):
        outer = tuple([place[name] for name in ("block", "warp") if name in place])
        if place["lane"] == place["register"] == 0 and outer != before:
            lines += [f"Block{place['block']}:"] if "block" in place and place["warp"] == 0 else []
            lines += [f"Warp{place['warp']}:"]
            before = outer
        said = f"({','.join(f'{x:2}' for x in element)})"
        lines = [*lines, said] if place["lane"] == 0 else [*lines[:-1], f"{lines[-1]}, {said}"]
    return "\n".join(lines)


def flat(bases: Bases) -> dict[str, list[int]]:
    shape = shape_of(bases)
    steps = [1, *itertools.accumulate(shape[:-1], int.__mul__)]
    return {name: [sum(a * b for a, b in zip(v, steps)) for v in vectors] for name, vectors in bases.items()}


def columns(found: object) -> dict[str, list[int]]:
    assert isinstance(found, LinearLayout)
    ends = list(itertools.accumulate(found.bits))
    return {n: list(found.columns[e - b : e]) for n, b, e in zip(found.names, found.bits, ends)}


@pytest.mark.parametrize("bases", [MMA, COPIES])
def test_a_view_of_threads_is_its_layout(bases: Bases) -> None:
    right = flat(bases)
    assert columns(parse(hardware_view(bases))) == right
    threads = {"register": right["register"], "thread": right["lane"] + right["warp"]}
    assert columns(parse(tensor_view(bases))) == threads | {n: right[n] for n in right if n == "block"}


@pytest.mark.parametrize("vectors", [[(0, 1), (0, 2), (1, 3), (2, 1)], [(1, 0, 0), (0, 0, 1), (0, 1, 0)], [(2,), (1,)]])
def test_a_view_of_shared_memory_is_its_layout(vectors: list[tuple[int, ...]]) -> None:
    bases: Bases = {"offset": vectors}
    elements = [element for _, element in values(bases)]
    cells = ["(" + ":".join(map(str, element)) + ")" for element in elements]
    lines = "\n".join(f"Offset: {i} -> ({','.join(map(str, each))})" for i, each in enumerate(elements))
    assert columns(parse(nested(cells, shape_of(bases)))) == flat(bases)
    assert columns(parse(f"Block: 0:\n{lines}")) == {"offset": flat(bases)["offset"], "block": []}


def test_bases_of_a_linear_layout_in_python() -> None:
    """`LinearLayout.bases` is a list of pairs."""
    text = "[('register', [[0, 1]]), ('lane', [[1, 0], [2, 0]]), ('warp', [])]"
    assert parse(text) == parse('{"register": [[0, 1]], "lane": [[1, 0], [2, 0]], "warp": []}')
    with pytest.raises(ParseError, match="another name than lane"):
        parse("[('lane', [[0, 1]]), ('lane', [[1, 0]])]")


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("[[T0:0, T1:0]\n[T2:0, T4:0]]", "T4", "a power of two of threads, not 5"),
        ("[[T0:0, T1:0]\n[T2:0, T0:0]]", "T0:0]]", "a power of two of threads, not 3"),
        ("[[T0:0, T1:0]\n[T3:0, T0:0]]", "T0:0]]", "4 entries, each of 1 registers x 4 threads once"),
        ("[T0:0, T1:0, T3:0, T2:0, T4:0, T5:0, T6:0, T7:0]", "T6:0", "(7,), which the bits of register 0, thread 6"),
        ("[[T0:0, T1:0]\n[T2:0]]", "]]", "2 entries, not 1"),
        ("[T0:0, B1:T1:0]", "B1", "an entry with its register, thread"),
        ("[T0:0, T1:0] x", " x", "the end of the view"),
        ("[T0:0, x]", "x]", "an entry, as in T0:1"),
        ("Warp0:\n(0,0), (0,1)\n(1,0), (1,x)", "(1,x", "a coordinate, as in (0,1)"),
        ("Warp0:\n(0,0), (0,1)\n(1,0), (1,2)", "(1,2)", "(1, 1), which the bits of register 1, lane 1, warp 0"),
        ("Warp0:\n(0,0), (0,1)\n(1,0)", "(1,0)", "4 entries"),
        ("Offset: 0 -> (0)\nOffset: 1 -> (1)\nOffset: 2 -> (3)", "(3)", "a power of two of offsets, not 3"),
        ("[[0, 1], [1, 0]]", "[[0", "LinearLayout.from_matrix([[...]]) takes it"),
    ],
)  # fmt: skip
def test_what_no_linear_layout_has_is_refused_where_it_stands(text: str, at: str, expected: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert expected in str(error.value)
    assert error.value.position in (text.index(at), text.index(at) + 1)
