"""Verdicts for all sizes by two solvers of others: Z3 on formulas with sizes, isl on sets of integers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from layoutgemm import Layout, dims, prove
from layoutgemm.layouts import CounterExample, Proof
from tests import needs

M, N = dims("M N")


def some(rng: random.Random) -> Layout:
    """A random layout of two or three modes, with sizes M and N."""
    shape = [rng.choice([M, N, 2, 4]) for _ in range(rng.randint(2, 3))]
    if rng.random() < 0.5:  # compact, in some order
        order = list(range(len(shape)))
        rng.shuffle(order)
        return Layout.ordered(tuple(shape), tuple(order))
    return Layout(tuple(shape), tuple(rng.choice([1, 2, M, N, 2 * M, M * N]) for _ in shape))


def text_value(layout: Layout, flat: Any, names: dict[str, Any]) -> Any:
    """The value at a flat index, as a term over the sizes: digit by digit, by div and mod."""

    def term(entry: Any) -> Any:
        return eval(str(entry), {}, names) if not isinstance(entry, int) else entry

    total: Any = 0
    entries = list(zip(layout.shape, layout.stride, strict=True))
    for i, (s, d) in enumerate(entries):
        digit = flat if i == len(entries) - 1 else flat % term(s)
        total, flat = total + digit * term(d), flat / term(s) if i < len(entries) - 1 else flat
    return total


@pytest.mark.parametrize("seed", range(60))
def test_z3_finds_no_size_that_refutes_a_proof(seed: int) -> None:
    z3 = needs.module("z3")
    rng = random.Random(seed)
    a = some(rng)
    b = a.coalesce() if rng.random() < 0.3 else some(rng)
    b = b if isinstance(b.shape, tuple) else Layout((b.shape, 1), (b.stride, 0))
    found = prove(a, b)
    m, n, x = z3.Ints("M N x")
    names = {"M": m, "N": n}
    sizes = [eval(str(layout.size), {}, names) for layout in (a, b)]
    solver = z3.Solver()
    solver.set("timeout", 2000)
    solver.add(1 <= m, m <= 6, 1 <= n, n <= 6)
    differ = z3.And(0 <= x, x < sizes[0], text_value(a, x, names) != text_value(b, x, names))
    solver.add(z3.Or(sizes[0] != sizes[1], differ))
    answer = solver.check()
    if isinstance(found, Proof):
        assert answer != z3.sat, (str(a), str(b), solver.model())
    elif isinstance(found, CounterExample):
        at = dict(found.sizes)
        values = {"M": at.get("M", 1), "N": at.get("N", 1)}
        plain = [Layout(*_at(layout, values)) for layout in (a, b)]
        assert plain[0].size != plain[1].size or [plain[0](i) for i in range(plain[0].size)] != [
            plain[1](i) for i in range(plain[1].size)
        ]
        if max(values.values()) <= 6:
            assert answer != z3.unsat, (str(a), str(b), found.explain())


def _at(layout: Layout, values: dict[str, int]) -> tuple[Any, Any]:
    return tuple(
        tuple(eval(str(e), {}, values) if not isinstance(e, int) else e for e in part)
        for part in (layout.shape, layout.stride)
    )


def as_map(isl: Any, layout: Layout) -> Any:
    """The relation {flat index -> value} of a layout of integers."""
    shape, stride = layout.flatten()[:].shape, layout.flatten()[:].stride
    names = [f"c{i}" for i in range(len(shape))]
    pitch, flat = 1, []
    for name, s in zip(names, shape, strict=True):
        flat.append(f"{pitch}*{name}")
        pitch *= s
    value = " + ".join(f"{d}*{name}" for name, d in zip(names, stride, strict=True))
    inside = " and ".join(f"0 <= {name} < {s}" for name, s in zip(names, shape, strict=True))
    bound = " and ".join((f"x = {' + '.join(flat)}", f"y = {value}", inside))
    return isl.Map(f"{{ [x] -> [y] : exists {', '.join(names)} : {bound} }}")


@pytest.mark.parametrize("seed", range(60))
def test_isl_agrees_on_equality_injectivity_and_images(seed: int) -> None:
    isl = needs.module("islpy")
    rng = random.Random(seed)

    def one() -> Layout:
        shape = tuple(rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 3)))
        return Layout(shape, tuple(rng.choice([0, 1, 2, 3, 4, 6, 12]) for _ in shape))

    a = one()
    b = rng.choice([a.coalesce(), a.flatten(), one()])
    left, right = as_map(isl, a), as_map(isl, b)
    assert bool(a.equivalent(b)) == left.is_equal(right)
    assert bool(a.is_injective()) == left.is_injective()
    whole = isl.Set(f"{{ [y] : 0 <= y < {a.size} }}")
    assert bool(a.is_bijective()) == (left.is_injective() and left.range().is_equal(whole))
    assert bool(a.disjoint(b, 1)) == left.range().is_disjoint(isl.Set("{ [y] }").identity().domain().intersect(
        right.range().apply(isl.Map("{ [y] -> [y + 1] }"))
    ))  # fmt: skip
