"""Matrices that an epilogue reads line by line, through a warp's buffer of the store."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.dtypes import f16
from layoutgemm.errors import EmulatorError
from layoutgemm.kernels import Sm90Config, Sm90Plan, plan
from layoutgemm.kernels.epilogue.arrays import PADDING
from layoutgemm.kernels.epilogue.chain import Aux, Bias, Custom, Epilogue, EpilogueOperand, Residual, RowReduce
from layoutgemm.kernels.sm90.choose.rules import choose
from layoutgemm.kernels.store import RowVectors

TWO = Epilogue(
    Residual("bf16", beta=None),
    RowReduce("sum_of_squares", "squares"),
    Custom.of(lambda x, i, j, ops, g: x * g, EpilogueOperand("g", "mn", f16)),
).in_pairs(lines=True)
# M, N, K, matrices, configuration. Chunks of 64, 32, 16 and 8 columns; rows and columns that end within a tile.
FORMS = {
    "cluster, batch": (72, 64, 64, 2, Sm90Config((64, 64), consumers=1, cluster=(2, 1), chunks=1, buffers=2)),
    "early": (72, 48, 128, 1, Sm90Config((128, 56), consumers=1, chunks=2, buffers=1, staged_epilogue_k_tiles=1)),
    "pingpong": (130, 40, 64, 1, Sm90Config((64, 40), schedule="pingpong", loader="warpgroup")),
}


@pytest.mark.dsl
@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_with_two_matrices_equals_numpy(form: str) -> None:
    m, n, k, batch, config = FORMS[form]
    plan = Sm90Plan.derive(m, n, k, b="bf16:col", config=config, epilogue=TWO, batch=batch)
    assert [matrix.name for matrix in plan.buffered_matrices] == ["d", "g"]
    rng, front = np.random.default_rng(0), (batch,) * (batch > 1)
    a, b, d = (rng.integers(-3, 4, (*front, *shape)).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    g = rng.integers(0, 2, (*front, m, n)).astype(np.float32)
    result, c = plan.run(a, b, given={"d": d, "g": g}, device="emulator"), a.astype(np.float64) @ b + d
    assert np.array_equal(result.c, c * g)
    assert np.array_equal(result.written["squares"], (c**2).sum(-1))


@pytest.mark.dsl
def test_an_address_that_is_no_multiple_of_16_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PADDING, True, 6)
    m, n, k, _, config = FORMS["early"]
    plan = Sm90Plan.derive(m, n, k, b="bf16:col", config=config, epilogue=TWO)
    with pytest.raises(EmulatorError, match="not a multiple of the access's 16 bytes"):
        a, b, c = (np.ones(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
        plan.run(a, b, given={"d": c, "g": c}, device="emulator")


def test_matrices_are_buffered_where_lines_and_registers_allow_it() -> None:
    def names(epilogue: Epilogue, tile: tuple[int, int] = (128, 128), c: str = "bf16", **config: object) -> list[str]:
        plan = Sm90Plan.derive(512, 512, 128, c=c, config=Sm90Config(tile, **config), epilogue=epilogue)  # type: ignore[arg-type]
        return [matrix.name for matrix in plan.buffered_matrices]

    assert names(TWO) == ["d", "g"]
    assert names(Epilogue(*TWO.steps).in_pairs()) == [], "lines that are not aligned to 16 bytes"
    assert names(TWO.transposed(), c="bf16:col") == [], "across the rows"
    assert names(TWO, c="f32") == [], "buffers of 32 bits"
    assert names(TWO, (256, 224)) == [] and names(TWO, (256, 192)) == ["d", "g"], "registers"
    assert names(TWO, store="direct") == [] and names(TWO, box_rows=64) == []
    mixed = Epilogue(
        Residual("f32", name="wide", beta=None),
        Bias(),
        Aux("bf16"),
        Residual("bf16", "col", "turned", None),
        Residual(),
    )
    assert names(mixed.in_pairs(lines=True)) == ["d"], "32 bits, no matrix, written, across"


def test_the_check_sees_vectors_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Sm90Plan.derive(128, 128, 64, config=Sm90Config((128, 128)), epilogue=TWO)
    (check,) = [check for check in plan.check().require().checks if check.name == "matrices"]
    assert "d, g: a lane loads 4 vector(s) of 16 bytes of 16 rows of 64 columns" in check.statement
    place = RowVectors.place

    def shifted(self: RowVectors, number: int, lane: int) -> tuple[int, int]:
        row, column = place(self, number, lane)
        return row, (column + 8 * number) % 32

    monkeypatch.setattr(RowVectors, "place", shifted)
    (check,) = [check for check in plan.check().checks if check.name == "matrices"]
    assert not check and check.witness == "row 0, column 0 is moved 2 times"
    by_columns = lambda self, number, lane: (lane % 2 * 8 + lane // 2 % 8, (lane // 16 + 2 * number) * 8)  # noqa: E731
    monkeypatch.setattr(RowVectors, "place", by_columns)
    (check,) = [check for check in plan.check().checks if check.name == "banks of matrices"]
    assert not check and "2-way" in str(check), "rows 0 and 8 of a column of vectors"


def test_the_choice_knows_what_matrices_cost() -> None:
    sizes, read = (12288, 12288, 4096), Epilogue(Residual("bf16")).in_pairs(lines=True)
    assert choose(*sizes)[0].config.tile == (256, 224)
    choice, _ = choose(*sizes, epilogue=read)
    assert choice.config.tile == (128, 192) and choice.config.schedule == "pingpong" and not choice.swapped
    assert choose(4096, 4096, 4096, epilogue=read)[0].config.tile == (128, 256)
    assert choose(16384, 4096, 4096)[0].swapped, "the transposed product, which would read matrices across their lines"
    assert not choose(16384, 4096, 4096, epilogue=read)[0].swapped


def test_a_plan_has_the_tiles_of_its_epilogues_matrices() -> None:
    sizes, read = (12288, 12288, 4096), Epilogue(Residual("bf16")).in_pairs(lines=True)
    assert plan(*sizes, b="bf16:col").tile[:2] == (256, 224)
    made = plan(*sizes, b="bf16:col", epilogue=read)
    assert isinstance(made, Sm90Plan) and made.config == choose(*sizes, epilogue=read)[0].config


def test_a_plan_with_an_epilogue_is_not_finished_by_halves() -> None:
    """ptxas serialises the products of both halves beside an epilogue (C7511)."""
    sizes = 2048, 2048, 2048
    plain, finished = (plan(*sizes, b="bf16:col", epilogue=steps) for steps in (None, Epilogue(Residual("bf16"))))
    assert isinstance(plain, Sm90Plan) and isinstance(finished, Sm90Plan) and plain.tile == finished.tile
    assert [made.config.staged_epilogue_k_tiles for made in (plain, finished)] == [2, 0]
