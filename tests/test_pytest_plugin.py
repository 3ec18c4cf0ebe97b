"""The pytest plugin, in one test run of its own: a failed proof is readable, everything else is left alone."""

import re
from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "layoutgemm.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:xdist")


def plugin_options() -> tuple[str, ...]:
    """Options that load the plugin once: an installed package registers it by itself."""
    installed = any(ep.name == "layoutgemm" for ep in entry_points(group="pytest11"))
    return PLUGIN[2:] if installed else PLUGIN


IMPORTS = """
from layoutgemm import Layout, Swizzle, dims, prove, smem_tile
from layoutgemm.checks import bank_conflicts, matrix_access
from layoutgemm.layouts import LinearLayout
from layoutgemm.report import Check, Report
"""
# Statements of a test that fails -> lines that its failure shows behind the plugin's heading.
FAILURES = [
    ("a, b = Layout((4, 8), (8, 1)), Layout((4, 8), (8, 2)); assert a.equivalent(b)",
     ["left:  (4,8):(8,1)", "right: (4,8):(8,2)", "*(0,1) gives 1 and 2*"]),
    ("M, N = dims('M N'); assert prove(Layout((M, N), (N, 1)), Layout((M, N)))",
     ["left:  (M,N):(N,1)", "right: (M,N):(1,M)", "*M=2, N=2: (1,0) gives 2 and 1*"]),
    ("assert Layout((4, 2), (1, 8)).can_compose(Layout((3, 2), (1, 3)))", ["*the offset is 1 + 3 = 4*"]),
    ("assert (Swizzle(1, 0, 2) @ Layout(4, 2)).is_injective() and (Swizzle(1, 0, 2) @ Layout(4, 2)).is_bijective()",
     ["*is not a bijection onto 0..3: 2 gives 5*"]),
    ("assert (Swizzle(3, 3, 3) @ Layout((2, 2), (1, 1))).is_injective()",
     ["*not injective: indices 1 and 2 both give 1*"]),
    ("assert LinearLayout((1, 2, 3)).is_injective()", ["*not injective: indices 0 and 7 both give 0*"]),
    ("assert bank_conflicts(Layout((64, 64), (64, 1)), matrix_access((64, 64), 'bf16'), element='bf16')",
     ["*bank 0 gives 8 words*"]),
    ("assert prove(smem_tile((8, 64), 'bf16', 'K'), Layout((8, 64), (64, 1)))", ["*gives 72 and 64*"]),
    ("assert Report((Check('tile', 'it is whole', False, 'arithmetic', '3 of 4'),))", ["*tile*it is whole*3 of 4*"]),
    ("verdict = Layout((4, 2), (1, 2)).is_injective(); assert verdict, 'not one to one'", ["*is not injective*"]),
]  # fmt: skip
OTHERS = ["assert Layout(8).size == 9", "raise ValueError('no assertion')"]
PASSES = "assert Layout(8).equivalent(Layout((2, 4))); assert not Layout(8).equivalent(Layout(9))"


def test_false_verdicts_show_their_reasons_and_nothing_else_does(pytester: pytest.Pytester) -> None:
    bodies = [*(body for body, _ in FAILURES), *OTHERS, PASSES]
    pytester.makepyfile(IMPORTS + "".join(f"def test_{i}():\n    {body}\n" for i, body in enumerate(bodies)))
    result = pytester.runpytest_subprocess(*plugin_options())
    result.assert_outcomes(passed=1, failed=len(bodies) - 1)
    _, *found = re.split(r"(?m)^_+ test_(\d+) _+$", result.stdout.str().partition("short test summary info")[0])
    sections = {int(number): text.splitlines() for number, text in zip(found[::2], found[1::2], strict=True)}
    assert sections.keys() == set(range(len(bodies) - 1))
    for number, (_, shown) in enumerate(FAILURES):
        pytest.LineMatcher(sections[number]).fnmatch_lines(["*- layoutgemm -*", *shown])
    for number in range(len(FAILURES), len(bodies) - 1):
        assert "- layoutgemm -" not in "\n".join(sections[number])
