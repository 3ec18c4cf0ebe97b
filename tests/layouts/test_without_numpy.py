"""Layouts where NumPy is not installed: the same answers, and no import of it before an array is made."""

import random
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from layoutgemm import Layout, Swizzle, prove
from layoutgemm.errors import LayoutError
from layoutgemm.layouts.algebra import compose
from layoutgemm.view import layout_svg

ROOT = Path(__file__).resolve().parents[2]
# The modules that take a loop in Python instead of arrays.
LOOPS = ("layouts.algebra.compose", "layouts.proofs.verdicts", "layouts.swizzle", "view.grid")


def answer(question):
    try:
        return repr(question())
    except LayoutError as error:
        return f"{type(error).__name__}: {error}"


def both(monkeypatch, question):
    """The answer with arrays, and the answer without."""
    found = answer(question)
    with monkeypatch.context() as patch:
        for name in LOOPS:
            patch.setattr(import_module(f"layoutgemm.{name}"), "has_numpy", lambda: False)
        return found, answer(question)


def some_layout(rng, rank, steps):
    return Layout(
        tuple(rng.choice((1, 2, 3, 4, 6, 8)) for _ in range(rank)), tuple(rng.choice(steps) for _ in range(rank))
    )


def test_compositions_are_answered_alike(monkeypatch):
    rng = random.Random(1)
    answers = []
    for _ in range(1500):
        a, b = some_layout(rng, rng.randint(1, 3), range(9)), some_layout(rng, rng.randint(1, 3), range(13))
        with_arrays, without = both(monkeypatch, lambda a=a, b=b: a.compose(b))
        assert with_arrays == without, (a, b)
        answers.append(without)
    assert sum(text.startswith("CompositionError") for text in answers) > 100
    assert sum(text.startswith("Layout") for text in answers) > 100


def test_carries_that_cancel_are_looked_at_alike():
    # composed modes whose carries at two boundaries cancel: the cases for which all values are looked at
    seen = 0
    rng = random.Random(2)
    reader = compose._Reader
    for _ in range(2000):
        extents, strides = (
            [rng.choice((2, 3, 4)) for _ in range(3)],
            [rng.choice((-3, -2, -1, 1, 2, 3, 5)) for _ in range(3)],
        )
        parts = [(rng.choice((2, 3)), rng.choice(range(1, 9)), 1) for _ in range(2)]
        made = reader(extents, strides, ([], []), ([], []), None)
        seen += made.first_sum_that_differs(parts) is None
        assert made.first_sum_that_differs(parts) == made.first_sum_in_python(parts)
    assert 0 < seen < 2000


def test_verdicts_are_answered_alike(monkeypatch):
    rng = random.Random(3)
    for _ in range(600):
        a = some_layout(rng, rng.randint(2, 4), range(1, 14))
        for question in (a.is_injective, a.is_bijective):
            with_arrays, without = both(monkeypatch, question)
            assert with_arrays == without, a
    swizzled = Swizzle(2, 0, 3) @ Layout((6, 8), (8, 1))
    for question in (swizzled.is_bijective, lambda: swizzled.cosize, lambda: prove(swizzled, Layout((6, 8), (8, 1)))):
        with_arrays, without = both(monkeypatch, question)
        assert with_arrays == without


@pytest.mark.parametrize(
    "layout",
    [
        Layout(7, 3),
        Layout((4, 8), (8, 1)),
        Layout((4, 3, 2)),
        Swizzle(2, 0, 3) @ Layout((8, 8)),
        Layout.parse("(4,8):(1@1,1@0)"),
    ],
    ids=str,
)
def test_pictures_are_the_same(monkeypatch, layout):
    with_arrays, without = both(monkeypatch, lambda: str(layout_svg(layout)))
    assert with_arrays == without and "<svg" in without


PROGRAM = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "sympy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from layoutgemm import Layout, Swizzle, dim, parse, prove
from layoutgemm.layouts import complement, right_inverse
A = parse("(4,8):(8,1)")
print(A.zipped_divide((2, 4)), complement(Layout(4, 1), 24), right_inverse(A), A @ Layout((4, 4), (1, 8)))
print(prove(A, Layout((4, 8))).explain(), bool(A.is_bijective()), Layout((dim("M"), 4)).zipped_divide((1, 4)))
print(len(A.svg()) > 1000, (Swizzle(2, 0, 3) @ Layout((8, 8))).cosize)
try:
    A.offsets()
except ModuleNotFoundError as error:
    print(error)
"""


def test_the_algebra_needs_no_numpy():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "((2,4),(2,2)):((8,1),(16,4)) 6:4 (8,4):(4,1) (4,4):(8,2)",
        "not equivalent: (1,0) gives 8 and 1 True ((1,4),(M,1)):((0,M),(1,0))",
        "True 64",
        "No module named 'numpy'",
    ]


FIRST = """
import sys, layoutgemm
L = layoutgemm.Layout((4, 8))
L(1, 2), L @ L
before = "numpy" in sys.modules
L.offsets()
print(before, "numpy" in sys.modules)
"""


def test_numpy_is_loaded_by_the_first_array():
    done = subprocess.run([sys.executable, "-c", FIRST], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False True\n", done.stderr
