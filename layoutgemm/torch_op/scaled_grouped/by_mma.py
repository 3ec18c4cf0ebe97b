"""Grouped products and products with scales by mma.sync or tcgen05.mma. Their plan.

A GPU without wgmma has mma.sync, as a caller has who gives an Sm80Config. An Sm100Config asks for tcgen05.mma.

The launch is that of other plans: operands whose lines are no multiples of 16 bytes are copied.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, cast

from ...arch import arch
from ...errors import LayoutError, OperandError
from ...kernels.epilogue.chain import Epilogue
from ...kernels.indexed.rows import IndexedRows
from ...kernels.operands.block_scales import FORMATS
from ...kernels.operands.combined import Combined
from ...kernels.operands.gated import combination
from ...kernels.operands.prologue import Prologue
from ...kernels.operands.promoted import mainloop_of
from ...kernels.planner import PlanParts, mma_configs, plan, without_block_scales
from ...kernels.ragged import AlongK, Ragged
from ...kernels.sm80.plan import Sm80Config, Sm80Plan
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm100.plan import Sm100Config, Sm100Plan
from ..prepared import target
from ..types import GroupsConfig

HOPPER = "sm_90a"


def by_mma(index: int, config: object) -> bool:
    """True if a GPU takes mma.sync or tcgen05.mma. It has no wgmma, or the caller gave a configuration of either."""
    return isinstance(config, Sm80Config) or target(index, config)[0] != HOPPER


def batch_config(config: GroupsConfig | None) -> Sm90Config | None:
    """The configuration of a product without groups. Raises OperandError for an Sm80Config."""
    if isinstance(config, Sm80Config):
        raise OperandError("config is an Sm80Config: a batch without groups is a product of matmul, which chooses it")
    return cast("Sm90Config | None", config)  # or an Sm100Config, which `prepared.target` knows


def no_block_scales(index: int, config: object, form: str = "mxfp8") -> str:
    """Why no kernel of a GPU takes block scales, or "". `config`: an Sm100Config asks for tcgen05's kernel."""
    if isinstance(config, Sm100Config):
        return ""
    code = target(index)[0]
    return without_block_scales(arch(code), Sm90Config if code == HOPPER else Sm80Config, FORMATS[form])


def scaled_by_mma(index: int, config: object) -> bool:
    """True if a GPU's mma.sync applies block scales to a product."""
    return not isinstance(config, Sm100Config) and not no_block_scales(index, config)


class MmaProduct(NamedTuple):
    """All that decides on a plan.

    sizes   M, N, K, and groups or matrices of a batch
    types   of A, B and C, with orders
    groups  of rows, masked ones, or along K; None for a batch
    scales  rows of A, and columns of B, that share one of a K block; () for sums that are added in float32; else None
    rows    of a group, for which tiles are chosen; 0 for the average
    form    of block scales, "mxfp8" or its like; or None
    """

    sizes: tuple[int, int, int, int]
    types: tuple[str, str, str]
    groups: Ragged | AlongK | None = None
    scales: tuple[int, ...] | None = None
    epilogue: Epilogue | None = None
    gate: Combined | str | None = None
    indexed: IndexedRows | None = None
    prologue: Prologue | None = None
    rows: int = 0
    form: str | None = None


def mma_plan(of: MmaProduct, index: int, config: GroupsConfig | None = None) -> tuple[Sm80Plan | Sm100Plan, str]:
    """The plan on a GPU, and why this configuration.

    Raises OperandError for an Sm90Config, for block scales that the GPU's kernel does not take, and the first refusal.
    """
    if of.form is not None and (why := no_block_scales(index, config, of.form)):
        raise OperandError(f"{why}; config=Sm100Config() explains and launches tcgen05's")
    on = target(index, config)
    if isinstance(config, Sm90Config):
        raise OperandError(f"config is one of sm_90a's kernel, and cuda:{index} runs {on[0]}; an Sm80Config is for it")
    return _plan(of, on, config)


@lru_cache(maxsize=1024)
def _plan(
    of: MmaProduct, on: tuple[str, int], config: Sm80Config | Sm100Config | None
) -> tuple[Sm80Plan | Sm100Plan, str]:
    """The first plan that fits the GPU: `on` is its code, and the bytes of shared memory that a block may have."""
    (m, n, k, batch), (a, b, c), (code, most) = of.sizes, of.types, on
    gated = combination(of.gate)
    ragged, along_k = (None, of.groups) if isinstance(of.groups, AlongK) else (of.groups, None)
    loop = None if of.scales is None else mainloop_of(of.scales)
    if isinstance(config, Sm100Config):
        made = plan(
            m, n, k, arch=code, a=a, b=b, c=c, batch=batch, config=config, epilogue=of.epilogue, gated=gated,
            indexed=of.indexed, prologue=of.prologue, ragged=ragged, along_k=along_k, mainloop=loop, scales=of.form,
        )  # fmt: skip
        assert isinstance(made, Sm100Plan)
        tile = "x".join(map(str, made.tile[:2]))
        rule = f"tiles of {tile} by the rule, not measured; tcgen05 was asked for"
        return made, "given by the caller" if config.tile else rule
    parts = PlanParts(of.epilogue, gated, None, of.prologue, None, of.indexed, None, ragged, along_k, loop)
    rows = m if ragged is None or not of.rows else of.rows if ragged.masked else of.rows * batch
    refused: LayoutError | None = None
    by_rule = mma_configs((rows, n, k, batch), arch(code), (a, c), parts, of.form is not None)
    for each in by_rule if config is None else [config]:
        try:
            found = Sm80Plan.derive(
                m, n, k, arch=code, a=a, b=b, c=c, batch=batch, config=each, epilogue=of.epilogue, gated=gated,
                indexed=of.indexed, prologue=of.prologue, ragged=ragged, along_k=along_k, mainloop=loop,
                scales=of.form,
            )  # fmt: skip
        except LayoutError as error:
            refused = refused or error
            continue
        if found.smem.total <= most:
            return found, why_tile(of, found) if config is None else "given by the caller"
        said = f"{found.smem.total} bytes of shared memory, and a block of {code} has up to {most}"
        refused = refused or OperandError(said)
    assert refused is not None
    raise refused


def why_tile(of: MmaProduct, plan: Sm80Plan) -> str:
    """The reason for a configuration that was not given."""
    tile = "x".join(map(str, plan.config.tile))
    if of.groups is None:
        return f"tiles of {tile} by mma.sync" + " (not measured)" * (of.form is not None)
    if isinstance(of.groups, AlongK):
        return f"{-(-plan.k // plan.batch)} of K a group on average: tiles of {tile} by mma.sync (not measured)"
    if of.rows:
        return f"expected_rows = {of.rows}: tiles of {tile} by mma.sync"
    rows = f"up to {plan.m} rows a group" if of.groups.masked else f"{-(-plan.m // plan.batch)} rows a group on average"
    return f"{rows}: tiles of {tile} by mma.sync (not measured)"
