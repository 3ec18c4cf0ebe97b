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
