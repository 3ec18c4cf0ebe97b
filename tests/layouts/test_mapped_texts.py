"""Printed maps of threads onto tiles against their definitions.

They are those of Tilus, Hidet, Composable Kernel and TileLang.
"""

from __future__ import annotations

import itertools
import random
from math import prod

import pytest

from layoutgemm import Layout, parse, wgmma
from layoutgemm.errors import ParseError


def flat(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """The flat index whose first dimension runs fastest."""
    return sum(x * prod(shape[:dim]) for dim, x in enumerate(index))


def row_major(index: list[int], extents: list[int]) -> int:
    out = 0
    for x, extent in zip(index, extents):
        out = out * extent + x
    return out


def holds(found: object, owners: dict[tuple[int, int], int]) -> None:
    """The layout gives each (thread, value) its element, and has no others."""
    assert isinstance(found, Layout) and found.rank == 2
    assert (found[0].size, found[1].size) == tuple(max(x) + 1 for x in zip(*owners))
    for (thread, value), element in owners.items():
        assert found(thread, value) == element, (thread, value)


def of_tilus(
    shape: tuple[int, ...], modes: list[int], spatial: list[int], local: list[int]
) -> dict[tuple[int, int], int]:
    """Every element by its modes: (thread, value) -> element."""
    owners = {}
    copies = [-n for n in spatial if n < 0]
    for index in itertools.product(*map(range, shape)):
        left, mode_index, dims = list(index), [], iter(shape)
        digits: list[int] = []
        # The modes of a dimension are its mixed-radix digits, most significant first.
        groups: list[list[int]] = []
        size = 1
        for n in modes:
            if size == 1:
                groups.append([])
                size = next(dims)
            groups[-1].append(n)
            size //= n
        for x, group in zip(left, groups):
            for i, n in enumerate(group):
                digits.append(x // prod(group[i + 1 :]) % n)
        mode_index = digits
        for copy in itertools.product(*map(range, copies)):
            of_copy = iter(copy)
            thread = row_major(
                [mode_index[n] if n >= 0 else next(of_copy) for n in spatial],
                [modes[n] if n >= 0 else -n for n in spatial],
            )
            value = row_major([mode_index[n] for n in local], [modes[n] for n in local])
            owners[thread, value] = flat(index, shape)
    return owners


def test_tilus_spreads_modes_over_threads_and_values() -> None:
    rng = random.Random(3)
    for _ in range(60):
        modes = [rng.choice([2, 2, 3, 4]) for _ in range(rng.randint(1, 5))]
        cut = rng.randint(1, len(modes))
        shape = tuple(prod(part) for part in (modes[:cut], modes[cut:]) if part)
        numbers = list(range(len(modes)))
        rng.shuffle(numbers)
        split = rng.randint(0, len(modes))
        spatial, local = numbers[:split], numbers[split:]
        if rng.random() < 0.4:
            spatial.insert(rng.randint(0, split), -rng.choice([2, 3]))
        text = f"RegisterLayout(shape={list(shape)}, mode_shape={modes}, spatial_modes={spatial}, local_modes={local})"
        holds(parse(text), of_tilus(shape, modes, spatial, local))
        holds(parse("layout = tilus." + text + "\n┌──┬──┐\n│ 0: 0 │"), of_tilus(shape, modes, spatial, local))


def of_factors(factors: list[tuple[str, list[int]]]) -> dict[tuple[int, int], tuple[int, ...]]:
    """By recursion: an outer factor places copies of what the inner ones are."""
    if not factors:
        return {(0, 0): (0, 0)}
    (name, extents), inner = factors[0], of_factors(factors[1:])
    shape = [max(index[dim] for index in inner.values()) + 1 for dim in range(2)]
    threads, values = (max(x) + 1 for x in zip(*inner))
    owners = {}
    for i, j in itertools.product(*map(range, extents)):
        number = j * extents[0] + i if name.startswith("column") else i * extents[1] + j
        for (thread, value), (a, b) in inner.items():
            spatial = name.endswith("spatial")
            key = (number * threads + thread, value) if spatial else (thread, number * values + value)
            owners[key] = (i * shape[0] + a, j * shape[1] + b)
    return owners


def test_factors_of_tilus_and_hidet_nest() -> None:
    rng = random.Random(4)
    names = ["spatial", "local", "repeat", "column_spatial", "column_local"]
    for _ in range(60):
        factors = [(rng.choice(names), [rng.randint(1, 4), rng.randint(1, 4)]) for _ in range(rng.randint(1, 4))]
        sign = rng.choice([".", " * "])
        text = sign.join(f"{name}({a}, {b})" for name, (a, b) in factors)
        owners = of_factors(factors)
        shape = tuple(max(index[dim] for index in owners.values()) + 1 for dim in range(2))
        holds(parse(text), {key: flat(index, shape) for key, index in owners.items()})


def of_kernel(rs: list[int], hs: list[list[int]], ps: list[list[tuple[int, int]]], ys: list[tuple[int, int]]) -> str:
    """The type of an encoding."""

    def sequence(numbers: list[int]) -> str:
        return f"sequence<{', '.join(map(str, numbers))}>"

    def both(which: int) -> str:
        return f"tuple<{', '.join(sequence([place[which] for place in p]) for p in ps)}>"

    parts = [sequence(rs), f"tuple<{', '.join(map(sequence, hs))}>", both(0), both(1)]
    parts += [sequence([place[which] for place in ys]) for which in (0, 1)]
    return f"ck_tile::tile_distribution_encoding<{', '.join(parts)}>"


def test_composable_kernel_merges_lengths_into_warps_lanes_and_registers() -> None:
    rng = random.Random(5)
    for _ in range(60):
        hs = [[rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 2))]
        rs = [2] if rng.random() < 0.3 else []
        places = [(major + 1, i) for major, h in enumerate(hs) for i in range(len(h))]
        rng.shuffle(places)
        cuts = sorted(rng.randint(0, len(places)) for _ in range(2))
        ps, ys = [places[: cuts[0]], places[cuts[0] : cuts[1]]], places[cuts[1] :]
        if rs:
            ps[rng.randint(0, 1)].append((0, 0))
        lengths = {(0, 0): 2} | {(major + 1, i): n for major, h in enumerate(hs) for i, n in enumerate(h)}
        shape = tuple(map(prod, hs))
        owners = {}
        for digits in itertools.product(*(range(lengths[place]) for place in [*ps[0], *ps[1], *ys])):
            at = dict(zip([*ps[0], *ps[1], *ys], digits))
            thread = row_major([at[p] for p in [*ps[0], *ps[1]]], [lengths[p] for p in [*ps[0], *ps[1]]])
            value = row_major([at[y] for y in ys], [lengths[y] for y in ys])
            index = tuple(row_major([at[major + 1, i] for i in range(len(h))], h) for major, h in enumerate(hs))
            owners[thread, value] = flat(index, shape)
        holds(parse(of_kernel(rs, hs, ps, ys)), owners)


def fragment(shape: str, out: str, copies: int, threads: int, thread: str, index: str) -> str:
    """As TileLang prints one in its errors."""
    said = f"replicate: {copies}, thread: {threads}, forward_thread: {thread}, forward_index: [{index}]"
    return f"Fragment([{shape}] -> [{out}], {said}, thread_range: I.Range(0, {threads}))"


OF_LANES = "_i % 8 * 4 + _j % 8 // 2"
FRAGMENTS = [
    fragment("16, 64", "8", 1, 128, f"_j % 32 // 8 * 32 + {OF_LANES}", "_j // 32 * 4 + _i // 8 * 2 + _j % 2"),
    "    loop " + fragment("16, 64", "32", 4, 128, f"_rep * 32 + {OF_LANES}", "_j // 8 * 4 + _i // 8 * 2 + _j % 2"),
    fragment("16", "4", 32, 128, "_rep % 4 * 32 + _rep // 4 * 4 + _i % 8 // 2", "_i // 8 * 2 + _i % 2"),
    fragment(
        "64, 64", "16", 1, 256, f"_j // 32 * 128 + _i // 16 * 32 + {OF_LANES}",
        "_j % 32 // 8 * 4 + _i % 16 // 8 * 2 + _j % 2",
    ),
]  # fmt: skip


@pytest.mark.parametrize("text", FRAGMENTS)
def test_a_fragment_of_tilelang_is_the_inverse_of_its_formulas(text: str) -> None:
    shape = tuple(map(int, text.partition("[")[2].partition("]")[0].split(",")))
    copies = int(text.partition("replicate: ")[2].partition(",")[0])
    thread, index = (
        compile(text.partition(begin)[2].partition(end)[0], "text", "eval")
        for begin, end in (("forward_thread: ", ", forward_index"), ("forward_index: [", "]"))
    )
    owners = {}
    for *where, copy in itertools.product(*map(range, shape), range(copies)):
        names = dict(zip(("_i", "_j"), where)) | {"_rep": copy}
        owners[eval(thread, names), eval(index, names)] = flat(tuple(where), shape)
    holds(parse(text), owners)


def test_a_fragment_may_be_an_instruction() -> None:
    text = (
        "Fragment([64, 8] -> [4], replicate: 1, thread: 128, forward_thread: _i // 16 * 32 + _i % 8 * 4 + _j // 2, "
        "forward_index: [_i % 16 // 8 * 2 + _j % 2])"
    )
    assert parse(text) == wgmma(8).layout_C


def test_a_layout_of_tilelang_is_its_formula() -> None:
    text = "Layout([8, 64] -> [1, 512], transform: [_i, _j] -> [0, _i * 64 + T.bitwise_xor(_j // 8, _i) * 8 + _j % 8])"
    found = parse(text)
    for i, j in itertools.product(range(8), range(64)):
        assert found(i, j) == i * 64 + (j // 8 ^ i) * 8 + j % 8
    assert str(found) == "S<3,3,3> o 0 o (8,64):(64,1)"


ENCODING = of_kernel([], [[4, 2]], [[(1, 0)]], [(1, 1)])


@pytest.mark.parametrize(("text", "at", "expected"), [
    (FRAGMENTS[0].replace("thread: 128", "thread: 64"), "0, 128", "expected threads from 0 to 64"),
    (FRAGMENTS[0].replace("_j % 2]", "_j % 4]"), "", "expected"),
    (FRAGMENTS[0].replace("replicate: 1, ", ""), "thread", "expected replicate: 1, thread"),
    (FRAGMENTS[0].replace(", thread_range", ", foo: 3, thread_range"), "replicate", "expected replicate: 1, thread"),
    (fragment("257", "2", 1, 256, "_i % 256", "_i // 256"), "Fragment", "257 elements and copies in 256 threads"),
    ("Fragment([16] -> [4], replicate: 1, thread: tk // 4, forward_thread: _i, forward_index: [0])", "repl", "128"),
    ("Layout([8, 64] -> [512], [_i * 64 + _j])", "[_i", "expected transform"),
    ("Layout([8, 64] -> [512], transform: [_i, _j] -> [_i * _j])", "_i * _j]", "expected a formula that is a layout"),
    ("Layout([8, 64] -> [512], transform: [_i, _j] -> [_i * 64 + f(_j)])", "_i * 64", "expected a formula"),
    ("RegisterLayout(shape=[8], mode_shape=[4, 2], spatial_modes=[0])", "Register", "expected shape, mode_shape"),
    ("RegisterLayout(shape=[8], mode_shape=[4, 2], spatial_modes=[0], local_modes=[1], foo=[2])", "Regi", "not foo"),
    ("RegisterLayout(shape=[8], mode_shape=[4, 3], spatial_modes=[0], local_modes=[1])", "Reg", "split [8] in order"),
    ("RegisterLayout(shape=[8], mode_shape=[4], spatial_modes=[0], local_modes=[])", "Register", "the product of [8]"),
    ("RegisterLayout(shape=[8], mode_shape=[4, 2], spatial_modes=[0], local_modes=[0])", "Register", "2 modes once"),
    ("RegisterLayout(shape=[8], mode_shape=[4, 2], spatial_modes=[0], local_modes=[2])", "Reg", "numbers of 2 modes"),
    ("RegisterLayout(shape=[8], mode_shape=[8], spatial_modes=[0], local_modes=[]).foo", ".foo", "the end of the text"),
    ("spatial(4, 8).local(2)", "local", "expected 2 extents from 1"),
    ("spatial(4, 8).local(2, 1) + 1", "+ 1", "or the end of the text"),
    ("spatial(4, 8).reduce(2, 1)", ".reduce", "or the end of the text"),
    (ENCODING.replace(", sequence<1>>", ">"), "tile_dist", "expected Rs, Hs, Ps to RHs"),
    (ENCODING.replace("sequence<4, 2>", "sequence<4, 2, 2>"), "tile_dist", "expected each length"),
    (ENCODING.replace("sequence<4, 2>", "sequence<4>"), "tile_dist", "expected places of 1 Hs"),
    (ENCODING + " o 2", "o 2", "expected the end of the text"),
    ("tile_distribution_encoding{Rs: sequence<1>}", "tile", "Composable Kernel"),
    ("st_bf<64, 64>", "st_bf", "ThunderKittens"), ("kittens::rt<kittens::bf16, 16, 64>", "kittens", "ThunderKittens"),
    ("[(4,8):(8,1)].fp16.SH", "[(4", "Graphene"), ("cutlass::layout::RowMajor", "RowMajor", "(4,8):(8,1)"),
    ("row_major(4, M)", "row_major", "Hidet"), ("row_major(4, 8).swizzle(0)", "row_major", "Hidet"),
    ("#4:[2,2].[8].thread", "[2,2]", "Graphene"), ("A:[16,16].[8,8].fp16.SH", "[16", "Graphene"),
    ("tilus.SharedLayout(shape=[4], mode_shape=[4])", "SharedL", "Tilus"),
    ("tensor_descriptor{ntransforms: 3}", "tensor_d", "tile_distribution_encoding<...> is read"),
])  # fmt: skip
def test_what_is_no_map_says_where_and_what_was_expected(text: str, at: str, expected: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert expected in str(error.value), error.value
    assert not at or text[error.value.position :].startswith(at), (error.value.position, str(error.value))


@pytest.mark.parametrize(("text", "right"), [
    ('T.Buffer((4, 8), "float16", strides=(16, 2))', "(4,8):(16,2)"),
    ('a = T.match_buffer(x, (4, 8), "float32", strides=[8, 1])', "(4,8):(8,1)"),
    ("make_naive_tensor_descriptor(make_tuple(4, 8), make_tuple(8, 1))", "(4,8):(8,1)"),
])  # fmt: skip
def test_sizes_and_strides_of_tvm_and_composable_kernel(text: str, right: str) -> None:
    assert str(parse(text)) == right
