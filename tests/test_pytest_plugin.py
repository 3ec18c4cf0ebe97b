"""The pytest plugin, in test runs of its own: a failed proof is readable, everything else is left alone."""

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "layoutgemm.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:xdist")


def plugin_options() -> tuple[str, ...]:
    """Options that load the plugin once: an installed package registers it by itself."""
    installed = any(ep.name == "layoutgemm" for ep in entry_points(group="pytest11"))
    return PLUGIN[2:] if installed else PLUGIN


def run(pytester: pytest.Pytester, test: str) -> pytest.RunResult:
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess(*plugin_options())


def test_a_failed_equivalence_shows_layouts_coordinate_and_values(pytester):
    result = run(
        pytester,
        """
        from layoutgemm import Layout

        def test_same():
            a, b = Layout((4, 8), (8, 1)), Layout((4, 8), (8, 2))
            assert a.equivalent(b)
        """,
    )
    result.assert_outcomes(failed=1)
    shown = ["*- layoutgemm -*", "left:  (4,8):(8,1)", "right: (4,8):(8,2)", "*(0,1) gives 1 and 2*"]
    result.stdout.fnmatch_lines(shown)


def test_a_failed_proof_with_symbols_is_explained(pytester):
    result = run(
        pytester,
        """
        from layoutgemm import Layout, dims, prove

        def test_same():
            M, N = dims("M N")
            assert prove(Layout((M, N), (N, 1)), Layout((M, N)))
        """,
    )
    result.assert_outcomes(failed=1)
    shown = ["*- layoutgemm -*", "left:  (M,N):(N,1)", "right: (M,N):(1,M)", "*M=2, N=2: (1,0) gives 2 and 1*"]
    result.stdout.fnmatch_lines(shown)


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("Layout((4, 2), (1, 8)).can_divide(3)", "*the offset is 1 + 3 = 4*"),
        ("(Swizzle(1, 0, 2) @ Layout(4, 2)).is_injective() and (Swizzle(1, 0, 2) @ Layout(4, 2)).is_bijective()",
         "*is not a bijection onto 0..3: 2 gives 5*"),
        ("(Swizzle(3, 3, 3) @ Layout((2, 2), (1, 1))).is_injective()", "*not injective: indices 1 and 2 both give 1*"),
        ("LinearLayout((1, 2, 3)).is_injective()", "*not injective: indices 0 and 7 both give 0*"),
        ("bank_conflicts(Layout((64, 64), (64, 1)), matrix_access((64, 64), 'bf16'), element='bf16')",
         "*bank 0 gives 8 words*"),
        ("prove(smem_tile((8, 64), 'bf16', 'K'), Layout((8, 64), (64, 1)))", "*gives 72 and 64*"),
        ("Report((Check('tile', 'it is whole', False, 'arithmetic', '3 of 4'),))", "*tile*it is whole*3 of 4*"),
    ],
)  # fmt: skip
def test_every_false_verdict_shows_its_reason(pytester, expression, shown):
    result = run(
        pytester,
        f"""
        from layoutgemm import Layout, Swizzle, prove, smem_tile
        from layoutgemm.checks import bank_conflicts, matrix_access
        from layoutgemm.layouts import LinearLayout
        from layoutgemm.report import Check, Report

        def test_holds():
            assert {expression}
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- layoutgemm -*", shown])


def test_a_verdict_in_a_variable_is_found(pytester):
    result = run(
        pytester,
        """
        from layoutgemm import Layout

        def test_injective():
            verdict = Layout((4, 2), (1, 2)).is_injective()
            assert verdict, "not one to one"
        """,
    )
    result.stdout.fnmatch_lines(["*- layoutgemm -*", "*is not injective*"])


def test_other_failures_and_passes_are_left_alone(pytester):
    result = run(
        pytester,
        """
        from layoutgemm import Layout

        def test_passes():
            assert Layout(8).equivalent(Layout((2, 4)))
            assert not Layout(8).equivalent(Layout(9))

        def test_fails_elsewhere():
            assert Layout(8).size == 9

        def test_raises():
            raise ValueError("no assertion")
        """,
    )
    result.assert_outcomes(passed=1, failed=2)
    assert "- layoutgemm -" not in result.stdout.str()
