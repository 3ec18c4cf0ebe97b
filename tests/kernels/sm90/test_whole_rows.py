"""Reductions of rows that a cluster has whole: its first CTA combines them, and no second launch follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layoutgemm import plan as plan_of
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Bias, ColumnReduce, Epilogue, Reduction, RowReduce
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from tests import needs


def nibble(x: Any, i: Any, j: Any, ops: Any) -> Any:
    """x rounded to 4 bits, at its place among the eight of a word."""
    odd = [ops.where(j // step % 2 == 1, 16**step, 1) for step in (1, 2, 4)]
    return (ops.whole(ops.round(ops.minimum(ops.maximum(x / 8, -8.0), 7.0))) & 15) * odd[0] * odd[1] * odd[2]


PACKED = Reduction.of(nibble, lambda a, b, ops: a[0] + b[0], [0])
BEST = Epilogue(
    Bias(), RowReduce("argmin", "best"), ColumnReduce("max", "most"), RowReduce("softmax", "row", dtype="bf16"),
    RowReduce(PACKED, "words", each=8),
)  # fmt: skip
TWO = {"consumers": 1, "cluster": (1, 2), "launch": "tiles", "loader": "warp", "stages": 2}
ONE = {"consumers": 1, "loader": "warpgroup", "stages": 2}


def derived(n: int, tile: tuple[int, int], more: dict[str, Any], **parts: Any) -> Sm90Plan:
    """A plan of 100 rows and few stages."""
    config = Sm90Config(tile, **more)
    return Sm90Plan.derive(100, n, 72, b="bf16:col", c="f32", config=config, **{"epilogue": BEST, **parts})


@needs.DSL
@pytest.mark.dsl
@pytest.mark.parametrize(("n", "tile", "more"), [(72, (64, 40), TWO), (40, (64, 48), ONE)])
def test_reductions_of_whole_rows_match_the_reference(n: int, tile: tuple[int, int], more: dict[str, Any]) -> None:
    """Rows and columns end within tiles; a block of the cluster waits for the tuples of all."""
    plan = derived(n, tile, {**more, "finish": "cluster"})
    assert plan.check() and [each.step.name for each in plan.partials] == ["most"]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((100, 72), (72, n)))
    given = {"bias": rng.integers(-3, 4, n).astype(np.float32)}
    found = plan.run(a, b, given=given, device="emulator").written
    want = BEST.reference(a @ b, **given).written
    bits = np.rint(np.clip((a @ b + given["bias"]) / 8, -8, 7)).astype(np.int64).reshape(100, -1, 8) & 15
    assert np.array_equal((bits << (4 * np.arange(8))).sum(-1), want["words"].view(np.uint32))
    for name, values in want.items():
        assert np.allclose(found[name].astype(float), values.astype(float), rtol=2**-7 * name.startswith("row")), name


def test_tuples_of_rows_take_no_workspace() -> None:
    rows = Epilogue(RowReduce("argmax", "best"), stores_c=False)
    made = plan_of(8192, 256, 7168, b="bf16:col", epilogue=rows)
    assert isinstance(made, Sm90Plan) and made.check()
    assert made.workspace == 0 and made.row_exchange is not None and made.row_exchange.columns == 2
    assert plan_of(8192, 1024, 7168, b="bf16:col", epilogue=rows).workspace
    many = Epilogue(*[RowReduce("softmax", f"row{i}") for i in range(3)], stores_c=False)
    tiled = plan_of(8192, 256, 7168, b="bf16:col", epilogue=many)  # their tuples would take a stage
    assert isinstance(tiled, Sm90Plan) and tiled.row_exchange is None and tiled.stages == 7


def test_a_kernel_for_whole_rows_is_of_as_many_columns() -> None:
    """The choice is of a product's own sizes: the kernel's code would take any."""
    torch = needs.module("torch")
    from layoutgemm.kernels.compile.worker import plan_of as plan_of_kernel
    from layoutgemm.torch_op.epilogue import solutions

    rows = Epilogue(RowReduce("argmax", "best"), stores_c=False)

    def kernel(n: int, config: Sm90Config | None = None) -> Any:
        a, b, c = (
            torch.empty(*shape, dtype=torch.bfloat16, device="meta") for shape in ((4096, 512), (n, 512), (4096, n))
        )
        given = {"best_value": torch.empty(4096, device="meta"), "best_index": torch.empty(4096, device="meta").int()}
        choice = None if config is None else Sm90Choice(config)
        return next(iter(solutions(a, b.T, c, given, rows, torch.bfloat16, choice))).kernel

    for n, whole in ((64, True), (256, False)):  # by tiles of 64 columns
        assert (plan_of_kernel(kernel(n)).row_exchange is not None) == whole
    with pytest.raises(OperandError, match=r"1 CTA\(s\) of 128 columns have 128 of 256"):
        kernel(256, Sm90Config((128, 128), finish="cluster"))


@pytest.mark.parametrize(
    ("n", "tile", "more", "parts", "text"),
    [
        (81, (64, 40), TWO, {}, r"2 CTA\(s\) of 40 columns have 80 of 81"),
        (72, (64, 40), {**TWO, "launch": "workers"}, {}, "each has one tile"),
        (32, (64, 64), {"consumers": 1, "split": 2, "one_tile_per_cluster": True}, {}, "no parts of K and no halves"),
        (32, (64, 64), ONE, {"order": "lower"}, "and an order of some tiles"),
    ],
)
def test_other_kernels_refuse_whole_rows(
    n: int, tile: tuple[int, int], more: dict[str, Any], parts: dict[str, Any], text: str
) -> None:
    with pytest.raises(PlanError, match=text):
        derived(n, tile, {**more, "finish": "cluster"}, **parts)
