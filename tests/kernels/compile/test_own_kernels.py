"""Mistakes in a kernel of one's own: the error names the user's line, and what the bridge expected."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from layoutgemm import emulate
from layoutgemm.atoms import instruction_descriptor, tcgen05_mma
from layoutgemm.dtypes import bf16
from layoutgemm.errors import AtomError, EmulatorError, PlanError
from layoutgemm.kernels.compile.compiler import compile_function

pytestmark = pytest.mark.dsl
PROGRAM = Path(__file__).parents[3] / "kernels" / "from_an_empty_file.py"


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(program: ModuleType) -> Any:
    dummies = [program.Int64(0)] * 5 + [program.Int32(1)] * 3 + [program.Int64(8)] * 2
    return compile_function(program.DistanceKernel(), *dummies, program.make_fake_stream(), arch="sm_90a")


@pytest.fixture(scope="module")
def distances() -> Any:
    return compiled(loaded(PROGRAM))


def given(k: int) -> tuple[Any, ...]:
    """The arguments of 8 rows of A and of B, all zeros."""
    norms = np.zeros(8, np.float32)
    a, b = (bf16.encode(np.zeros((8, k))) for _ in range(2))
    return a, b, norms, norms.copy(), np.zeros((8, 8), np.float32), 8, 8, k, k, k


def test_a_stride_of_no_whole_units_is_refused_at_the_users_line(distances: Any) -> None:
    """A tensor map counts strides in 16 bytes: 330 elements would be read as 328."""
    assert not emulate(distances, *given(328)).findings
    with pytest.raises(EmulatorError, match="stride of dimension 1 that is no multiple of 16 bytes") as caught:
        emulate(distances, *given(330))
    number = next(i for i, line in enumerate(PROGRAM.read_text().split("\n"), 1) if "load_tile(maps[0]" in line)
    assert f"from_an_empty_file.py:{number}, in " in str(caught.value)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_an_array_of_another_type_than_its_tensor_map_is_lint(distances: Any, kind: type) -> None:
    found = emulate(distances, np.zeros((16, 64), kind), *given(64)[1:]).findings
    name = {np.float32: "f32", np.float16: "f16"}[kind]
    assert [finding.message for finding in found if finding.kind == "lint"] == [
        f"a tensor map takes a as bf16, and the array is {name}: a kernel gets its bytes as they are. Where values are "
        "meant, pass dtype('bf16').encode(x)"
    ]


def test_a_pitch_below_a_row_is_lint(distances: Any) -> None:
    """As of an array of the other major; a pitch of 0 repeats a row on purpose."""
    arguments = list(given(64))
    arguments[8] = 8  # of A: 8 rows of 64 elements
    notes = [finding.message for finding in emulate(distances, *arguments).findings]
    assert notes == [
        "a tensor map takes a as rows of 128 bytes that begin 16 bytes apart, so they overlap: the array may be of "
        "another major than the map, or the pitch that of another operand"
    ]
    arguments[8] = 0
    assert not emulate(distances, *arguments).findings


@pytest.mark.parametrize(
    ("right", "wrong", "error", "message"),
    [
        ("self.a.tma, origin,", "origin, self.a.tma,", AtomError, "tma of load_tile must be a TmaPlan, as "),
        ('"k": tile[2]', '"kk": tile[2]', AtomError, r"over k, m are {'k': ..., 'm': ...}; got \['kk', 'm', 'n'\]"),
        ('"k": k}', '"m": m}', AtomError, r"extents of a tensor map over k, m are .*, without 'k'"),
        ("sizes, ld)", "sizes)", AtomError, r"0 stride\(s\) for the dimensions k, m"),
        (
            "WgmmaOperand(self.b.descriptor",
            'WgmmaOperand(levels.operand("B", 64, 64, self.mma, major="MN").descriptor',
            PlanError,
            r"operand B of the product: its descriptor is MN-major, and the instruction reads K-major",
        ),
        ("([sums], of_a", "(sums, of_a", PlanError, r"one for each block of M: \[sums\], not sums"),
    ],
)
def test_a_wrong_argument_is_named_while_tracing(
    tmp_path: Path, right: str, wrong: str, error: type[Exception], message: str
) -> None:
    text = PROGRAM.read_text()
    assert text.count(right) == 1
    path = tmp_path / "mistaken.py"
    path.write_text(text.replace(right, wrong))
    with pytest.raises(error, match=message):
        compiled(loaded(path))


def test_an_unknown_architecture_is_named_with_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"no architecture 'sm90b'; do you mean sm_90a\?"):
        compile_function(object(), arch="sm90b")


@pytest.mark.parametrize("other", [("f16", 128, 128, "bf16"), ("f16", 128, 64, "f16")])
def test_an_instruction_descriptor_of_another_atom_is_refused(other: tuple[Any, ...]) -> None:
    from layoutgemm.kernels.dsl.tcgen05 import tensor_multiply

    word = instruction_descriptor(tcgen05_mma(*other)).word
    with pytest.raises(PlanError, match=r"is of M = 128, N = .*, and the atom of M = 128, N = 64, bf16 and bf16"):
        tensor_multiply(tcgen05_mma("f16", 128, 64, "bf16"), word, None, None, None, False)  # type: ignore[arg-type]
