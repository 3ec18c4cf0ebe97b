"""Any two arguments of matmul: the product is right in float64, or refused with both of them named."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import matmul
from layoutgemm.errors import LayoutError
from layoutgemm.kernels import Prologue, Triangles
from layoutgemm.kernels.epilogue.chain import ColumnReduce, Epilogue, Residual, RowReduce, Step

SIZE, K2, SEED = 136, 16, 7
ROW = torch.arange(SIZE)


class Problem:
    """A call, and its parts for the formula. Operands are small integers, whose products are exact."""

    def __init__(self, *names: str):
        self.random = torch.Generator().manual_seed(SEED)
        self.names, self.front = names, (2,) if "batch" in names else ()
        self.a, self.b, self.b1 = (self.drawn(SIZE, SIZE) for _ in range(3))
        self.a2, self.b2, self.b3 = self.drawn(SIZE, K2), self.drawn(K2, SIZE), self.drawn(K2, SIZE)
        self.options: dict[str, Any] = {"out_dtype": torch.float32}
        self.given: dict[str, Any] = {}
        self.steps: list[Step] = []
        for name in names:
            ASKED[name](self)
        if "triangles" in names:
            self.a = self.a.tril()
        if "symmetric" in names:
            self.b, self.b2 = self.a.mT, self.a2.mT

    def drawn(self, *shape: int) -> Any:
        return torch.randint(-2, 3, (*self.front, *shape), generator=self.random).bfloat16()

    def has(self, name: str) -> bool:
        return name in self.names

    def call(self) -> Any:
        a, b = self.a, self.b
        if self.has("several b"):
            b = (self.b, self.b1)
        if self.has("pairs"):
            a, b = (self.a, self.a2), (b, (self.b2, self.b3) if self.has("several b") else self.b2)
        if self.steps:
            self.options["epilogue"] = Epilogue(*self.steps, stores_c=not self.has("no C"))
        return matmul(a, b, **self.options, **({"given": self.given} if self.given else {}))

    def product(self) -> Any:
        """The product's rows in order, before they are placed."""
        x = self.a.double()
        if self.has("prologue"):
            x = x * self.given["s"].double()[..., None]
        if self.has("rows"):
            x = x.gather(-2, self.options["rows"][..., None].expand(x.shape))
        sums = [x @ b.double() for b in (self.b, self.b1)]
        if self.has("pairs"):
            sums = [x + self.a2.double() @ b.double() for x, b in zip(sums, (self.b2, self.b3), strict=True)]
        c = sums[0] + 2 * sums[1] if self.has("several b") else sums[0]
        bias = self.options["bias"].double() if self.has("bias") else 0.0
        if self.has("gate"):
            gate, up = (c + bias).chunk(2, -1)
            c, bias = torch.nn.functional.silu(gate) * up, 0.0
        c = c + bias
        c = c.relu() if self.has("activation") else c
        return c + self.given["d"].double() if self.has("residual") else c

    def check(self) -> None:
        got, c = self.call(), self.product()
        for name, of in (("rows reduced", c.amax(-1)), ("columns reduced", c.sum(-2)), ("no C", c.amax(-1))):
            if self.has(name) and not self.has("lower"):
                torch.testing.assert_close(self.given[name[:2]].double(), of, rtol=1e-5, atol=1e-3)
        if self.has("no C"):
            return
        want = torch.full_like(c, 5.0 if self.has("out") else 0.0)
        if self.has("lower"):  # and what else is in a tile that the diagonal crosses, as test_composed has it
            if self.has("out_rows") or self.has("add_rows"):
                return
            want = torch.where((ROW[:, None] >= ROW[: c.shape[-1]]) | (got != want), c, want)
        elif self.has("out_rows"):
            want = want.index_copy(0, self.options["out_rows"], c)
        elif self.has("add_rows"):
            want = want.index_add(0, self.options["add_rows"], c)
        else:
            want = c
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


def set_option(name: str, value: Callable[[Problem], object]) -> Callable[[Problem], None]:
    return lambda problem: problem.options.__setitem__(name, value(problem))


def add_step(step: Step, name: str, value: Callable[[Problem], object]) -> Callable[[Problem], None]:
    def add(problem: Problem) -> None:
        problem.steps.append(step)
        problem.given[name] = value(problem)

    return add


def with_factors(problem: Problem) -> None:
    problem.options["prologue"] = Prologue.of(lambda x, i, k, ops, s: x * s, s="m")
    problem.given["s"] = 2.0 ** torch.randint(-1, 2, (*problem.front, SIZE), generator=problem.random)


def columns(problem: Problem) -> int:
    return SIZE // 2 if problem.has("gate") else SIZE


ASKED: dict[str, Callable[[Problem], None]] = {
    "prologue": with_factors,
    "triangles": set_option("triangles", lambda p: Triangles("lower")),
    "symmetric": set_option("order", lambda p: "symmetric"),
    "lower": set_option("order", lambda p: "lower"),
    "snake": set_option("order", lambda p: "snake"),
    "several b": set_option("combine", lambda p: lambda x, y, ops: x + 2.0 * y),
    "gate": set_option("activation", lambda p: "swiglu"),
    "pairs": lambda p: None,
    "batch": lambda p: None,
    "rows": set_option("rows", lambda p: torch.randint(0, SIZE, (*p.front, SIZE), generator=p.random)),
    "out_rows": set_option("out_rows", lambda p: torch.randperm(SIZE, generator=p.random)),
    "add_rows": set_option("add_rows", lambda p: torch.randint(0, SIZE, (SIZE,), generator=p.random)),
    "bias": set_option("bias", lambda p: torch.arange(SIZE).remainder(5).float()),
    "activation": set_option("activation", lambda p: "relu"),
    "residual": add_step(Residual("f32", beta=None), "d", lambda p: torch.ones(*p.front, SIZE, columns(p))),
    "rows reduced": add_step(RowReduce("max", "ro"), "ro", lambda p: torch.zeros(*p.front, SIZE)),
    "columns reduced": add_step(ColumnReduce("sum", "co"), "co", lambda p: torch.zeros(*p.front, columns(p))),
    "no C": add_step(RowReduce("max", "no"), "no", lambda p: torch.zeros(*p.front, SIZE)),
    "out": set_option("out", lambda p: torch.full((*p.front, SIZE, columns(p)), 5.0)),
}
ONE_OF = (("symmetric", "lower", "snake"), ("several b", "gate"), ("activation", "gate"), ("out_rows", "add_rows"),
          ("no C", "out"))  # fmt: skip
BEHIND = ("residual", "rows reduced", "columns reduced", "no C")
# Refused: the pair, and a pattern of the message.
REFUSED: dict[tuple[str, str], str] = {
    ("prologue", "symmetric"): "a prologue and a symmetric order",
    ("triangles", "rows"): "gathered rows and triangular operands",
    ("triangles", "out_rows"): "scattered rows and triangular operands",
    ("triangles", "add_rows"): "scattered rows and triangular operands",
    ("symmetric", "several b"): "several matrices B and a symmetric order",
    ("symmetric", "gate"): "a gate and a symmetric order",
    ("symmetric", "rows"): "gathered rows and a symmetric order",
    ("symmetric", "out_rows"): "scattered rows and a symmetric order",
    ("batch", "out_rows"): "out_rows: the rows of a batch are gathered alone",
    ("batch", "add_rows"): "two matrices, as add_rows are of their rows",
    ("out_rows", "no C"): "rows of C are scattered, and stores_c = False",
    ("add_rows", "no C"): "rows of C are scattered, and stores_c = False",
    **{("bias", name): "bias and epilogue: one or the other" for name in BEHIND},
    **{("activation", name): "activation and epilogue: one or the other" for name in BEHIND},
}
PAIRS = [pair for pair in combinations(ASKED, 2) if not any(set(pair) <= set(group) for group in ONE_OF)]


def test_every_refusal_is_one_of_a_pair() -> None:
    assert set(REFUSED) <= set(PAIRS)


QUICK = ("bias", "rows reduced", "columns reduced")


@pytest.mark.parametrize(
    "first", [pytest.param(x, marks=[pytest.mark.slow] * (x not in QUICK)) for x in list(ASKED)[:-2]]
)
def test_two_arguments_are_right_or_refused_by_name(first: str) -> None:
    wrong = {}
    for pair in [pair for pair in PAIRS if pair[0] == first]:
        try:
            Problem(*pair).check()
            said = ""
        except LayoutError as error:
            said = str(error)
        except AssertionError as error:
            said = f"wrong: {error}"
        if (not said) != (pair not in REFUSED) or REFUSED.get(pair, "") not in said:
            wrong[pair] = said
    assert not wrong
