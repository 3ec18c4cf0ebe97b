"""Answers with symbols against the integers' at many sizes. An extent of 1 and a stride of 0 are among them."""

import random

import pytest

from layoutgemm import Layout
from layoutgemm.layouts.int_tuple import leaves, product_each
from layoutgemm.layouts.proofs.prove import at
from layoutgemm.layouts.symbols.dims import dim, dims
from layoutgemm.layouts.symbols.facts import Facts
from layoutgemm.layouts.symbols.polynomial import MissingFact, Polynomial
from tests.layouts.symbols.test_operations import REFUSED, offsets, pool, random_layout, sizes


def at_sizes(x, env):
    """An argument at the values of the generators: a tuple part by part, None and ints as they are."""
    if isinstance(x, tuple):
        return tuple(at_sizes(y, env) for y in x)
    return x if x is None or x.__class__ is int else at(x, env)


def layouts_in(args):
    for x in args:
        if isinstance(x, tuple):
            yield from layouts_in(x)
        elif isinstance(x, Layout):
            yield x
        elif isinstance(x, Polynomial):
            yield Layout(1, x)


def random_tiler(rng, a, symbols):
    strided = Layout(rng.choice([2, 4, rng.choice(symbols)]), rng.choice([1, 2, *symbols]))
    if a.rank > 1 and rng.random() < 0.5:
        modes = [None, 2, 4, rng.choice(symbols), Layout(2, 2), random_layout(rng, symbols, 1)]
        return tuple(rng.choice(modes) for _ in range(rng.randint(1, a.rank)))
    return rng.choice([2, 4, 8, rng.choice(symbols), strided, random_layout(rng, symbols, 2)])


def tiled(rng, a, b, symbols):
    return (random_tiler(rng, a, symbols),)


WIDTHS = [(8, 16), (16, 8), (6, 8), (12, 8), (24, 16), (16, 24), (32, 8)]
ARGUMENTS = {
    "compose": lambda rng, a, b, s: (b,),
    "logical_divide": tiled,
    "zipped_divide": tiled,
    "tiled_divide": tiled,
    "flat_divide": tiled,
    "logical_product": tiled,
    "zipped_product": tiled,
    "tiled_product": tiled,
    "flat_product": tiled,
    "blocked_product": lambda rng, a, b, s: (b,),
    "raked_product": lambda rng, a, b, s: (b,),
    "tile_to_shape": lambda rng, a, b, s: (tuple(m.size * rng.choice([1, 2, 3, *s]) for m in a),),
    "complement": lambda rng, a, b, s: (rng.choice([None, a.size, 4 * a.size, 16, rng.choice(s)]),),
    "left_inverse": lambda rng, a, b, s: (),
    "nullspace": lambda rng, a, b, s: (),
    "filter": lambda rng, a, b, s: (),
    "with_shape": lambda rng, a, b, s: (tuple(rng.sample(leaves(a.shape), len(leaves(a.shape)))),),
    "upcast": lambda rng, a, b, s: (rng.choice([2, 3, 4, 8]),),
    "downcast": lambda rng, a, b, s: (rng.choice([2, 3, 4]),),
    "recast": lambda rng, a, b, s: rng.choice(WIDTHS),
}
# Their modes are what they are for general sizes; the others have the integers' top-level modes.
OTHER_MODES = {"complement", "left_inverse", "nullspace", "filter", "compose", "tiled_divide", "flat_divide"}
OTHER_MODES |= {"tiled_product", "flat_product"}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_answer_is_the_integers_answer_at_every_size(name):
    """At the sizes where an extent is 1 too: there the integer operation drops that mode."""
    rng = random.Random(name)
    answered = refused = checked = 0
    for _ in range(400 if name == "recast" else 250):  # of random layouts few have a mode that takes in the parts
        symbols = pool(rng)
        a, b = random_layout(rng, symbols), random_layout(rng, symbols, 3)
        if rng.random() < 0.1 and name not in ("compose", "blocked_product"):
            a = Layout.join(a, Layout(3, dim("Z", min=0)))  # a stride that may be 0
        try:
            args = ARGUMENTS[name](rng, a, b, symbols)
            r = getattr(a, name)(*args)
        except REFUSED:
            refused += 1
            continue
        answered += 1
        for env in sizes(a, b, r, *layouts_in(args)):
            expected = getattr(at(a, env), name)(*at_sizes(args, env))
            x = at(r, env)
            text = f"{a}.{name}{args} = {r} at {env}: {x}, and {expected} of integers"
            assert x.size == expected.size and offsets(x) == offsets(expected), text
            assert name in OTHER_MODES or product_each(x.shape) == product_each(expected.shape), text
            checked += 1
    assert answered > 50 and checked > 200 and (refused > 10 or name in ("filter", "nullspace")), (answered, refused)


@pytest.mark.parametrize(
    ("call", "needs", "answer"),
    [
        (lambda K, N: Layout((K,), (16,)).complement(), "K >= 2", "16:1"),
        (lambda K, N: Layout((K, N), (16, 16 * K)).complement(), "K >= 2", "16:1"),
        (lambda K, N: Layout((K,), (16,)).left_inverse(), "K >= 2", "(16,K):(K,1)"),
        (lambda K, N: Layout(K).logical_divide(Layout(K, 16)), "K >= 2", "(K,16):(16,1)"),
        (lambda K, N: Layout((K, N), (N, 1)).downcast(2), "N >= 2", "(K,2*N):(2*N,1)"),
        (lambda K, N: Layout((K, N), (N, 1)).recast(8, 16), "N >= 2", "(K,2*N):(2*N,1)"),
        (lambda K, N: Layout((1, K), (1, 1)).recast(8, 16), "K >= 2", "(1,2*K):(2,1)"),
        (lambda K, N: Layout((4, K), (1, 5)).complement(5 * K * N), "K >= 2", "N:5*K"),
        (lambda K, N: Layout((2, K, N), (1, 5, 40 * K)).logical_product(4), "K >= 2", None),
        (lambda K, N: Layout((4, N), (K - 1, 3)).filter(), "K >= 2", "(4,N):(K-1,3)"),
        (lambda K, N: Layout((4, N), (K - 1, 3)).nullspace(), "K >= 2", "1:0"),
    ],
)
def test_sizes_at_which_the_integers_answer_otherwise_are_named(call, needs, answer):
    K, N = dims("K N")
    with pytest.raises(MissingFact, match=f"needs {needs}|or {needs}"):
        call(K, N)
    r = call(*Facts(needs)(K, N))
    assert answer in (None, str(r)) and needs in r.conditions


def test_a_gap_that_is_rounded_above_a_mode_of_extent_1():
    """(K,J,4):(2,4K+1,..): above 2K there is room for 2 copies; without the mode K:2 there is room for 4K+1 above 1."""
    K, J = dim("K"), dim("J", min=2)
    a = Layout((K, J, 4), (2, 4 * K + 1, (4 * K + 1) * J))
    with pytest.raises(MissingFact, match="needs K >= 2"):
        a.complement()
    assert str(a.given("K >= 2").complement()) == "(2,2):(1,2*K)"
    assert Layout((1, 2, 4), (2, 5, 10)).complement() == Layout(5)


def test_a_recast_rounds_no_symbolic_extent():
    M = Facts("T = ceil_div(M, 2)")["M"]
    assert str(Layout(M).upcast(2)) == "T:1"
    with pytest.raises(MissingFact, match="whole elements"):
        Layout(M).recast(16, 8)


def test_a_gap_below_a_mode_of_extent_1_may_not_matter():
    """Dropping the mode keeps the function where copies go on from the gap. Then no fact is needed."""
    K, N = dims("K N")
    assert str(Layout((K, 4), (16, 16 * K)).complement()) == "16:1"
    assert str(Layout((K,), (16,)).logical_product(4)) == "((K),4):((16),1)"
    assert str(Layout((N, K), (K, 1)).left_inverse()) == "(K,N):(N,1)"
