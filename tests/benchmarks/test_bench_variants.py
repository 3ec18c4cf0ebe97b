"""The benchmark of the variants: every kernel that its products choose is sound."""

from __future__ import annotations

import pytest

from benchmarks.bench_variants import ALONG_K, DEPTH, GROUPED, MASKED, MASKED_ROWS, SCALED, group_tiles
from layoutgemm.dtypes import dtype
from layoutgemm.kernels.ragged import AlongK, Ragged, masked_rows
from layoutgemm.kernels.sm90.budget_checks import budget_checks
from layoutgemm.kernels.sm90.choose.scaled_grouped import (
    along_k_candidates,
    grouped_config,
    grouped_scaled_config,
    k_blocks_config,
    scaled_config,
)
from layoutgemm.kernels.sm90.mainloop import Promoted, Table, mainloop_of
from layoutgemm.kernels.sm90.plan import Sm90Plan

TABLES = Table("scale_a", "m"), Table("scale_b", "n", DEPTH)
LOOP = Promoted.of(lambda total, product, a, b: total + a * b * product, *TABLES)
EACH_COLUMN = Promoted.of(lambda total, product, a, b: total + a * b * product, TABLES[0], Table("scale_b", "n"))
FP8 = {"a": "e4m3", "b": "e4m3:col"}


def chosen(c: str = "bf16") -> dict[object, Sm90Plan]:
    """A plan for each configuration that a product of the benchmark gets."""
    found: dict[object, Sm90Plan] = {}
    for m, n, k in (*SCALED, (1, 8, 128), (64, 8, 1 << 16), (200, 3000, 64), (1 << 16, 64, 256)):
        for loop in (LOOP, EACH_COLUMN):
            config = scaled_config(m, n, k, each_column=loop is EACH_COLUMN)
            found[config, loop is LOOP] = Sm90Plan.derive(m, n, k, c=c, config=config, mainloop=loop, **FP8)
    for experts, rows, n, k in (*GROUPED, (4, 400, 4096, 2048), (2, 1000, 4096, 2048)):
        more = {"batch": experts, "ragged": Ragged.of(experts), "c": c}
        for depth, a, b in ((k, "bf16", "bf16"), (64, "bf16", "bf16:col"), (k, "e4m3", "e4m3:col"), (8, "f16", "f16")):
            for_tiles = {"columns": n, "groups": experts}
            config = grouped_config(rows // experts, depth * dtype(a).bytes, wide=c == "f32", **for_tiles)
            found[config, a, b] = Sm90Plan.derive(rows, n, depth, a=a, b=b, config=config, **more)
        for loop in (LOOP, EACH_COLUMN):
            config = grouped_scaled_config(rows // experts, loop is EACH_COLUMN, columns=n, groups=experts)
            found[config, loop is LOOP] = Sm90Plan.derive(rows, n, k, config=config, mainloop=loop, **FP8, **more)
        for config in group_tiles(rows // experts, False).values():
            found[config, "tried"] = Sm90Plan.derive(rows, n, k, b="bf16:col", config=config, **{**more, "c": "bf16"})
        for config in group_tiles(rows // experts, True).values():
            found[config, "tried, scaled"] = Sm90Plan.derive(
                rows, n, k, config=config, mainloop=LOOP, **FP8, **{**more, "c": "bf16"}
            )
    rows = masked_rows(MASKED_ROWS)
    for experts, _, n, k in MASKED[:2]:
        more = {"batch": experts, "ragged": Ragged.of(experts, masked=True), "c": c}
        config = grouped_config(rows, 2 * k, wide=c == "f32")
        found[config, "masked", n] = Sm90Plan.derive(MASKED_ROWS, n, k, b="bf16:col", config=config, **more)
        config = grouped_scaled_config(rows)
        found[config, "masked", n, "scaled"] = Sm90Plan.derive(
            MASKED_ROWS, n, k, config=config, mainloop=LOOP, **FP8, **more
        )
    for sizes in (*ALONG_K, (64, 1024, 512, 2048)):
        experts, m, n, k = sizes
        configs = along_k_candidates((m, n, k, experts), wide=c == "f32")
        shallow = [config for config in configs if config.cluster == (1, 1)]
        for config in shallow if m == 1024 else configs[:1]:
            more = {"batch": experts, "along_k": AlongK.of(experts), "c": c}
            found[config, "along K"] = Sm90Plan.derive(m, n, k, a="bf16:col", b="bf16:row", config=config, **more)
        for scales in ((1, 1), (1, 128), None):
            config = k_blocks_config(m, n, k, experts, scales, c)
            loop = None if scales is None else mainloop_of(scales)
            more = {"batch": experts, "along_k": AlongK.of(experts, multiple=128), "mainloop": loop, "c": c, **FP8}
            found[config, "along K, scaled", scales] = Sm90Plan.derive(m, n, k, config=config, **more)
    return found


@pytest.mark.parametrize("c", ["bf16", "f32"])
def test_every_choice_has_a_kernel(c: str) -> None:
    found = chosen(c)
    assert len(found) > 40
    for plan in found.values():
        assert not [str(check) for check in budget_checks(plan) if not check], plan


@pytest.mark.slow
def test_every_kernel_holds_its_checks() -> None:
    for plan in chosen().values():
        plan.check().require()
