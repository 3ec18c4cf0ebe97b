"""Plans of products with several parts, and the products as kernels read their arrays.

A plan is kept for the sizes and parts of a call. It says which tiles an order visits, so it is derived on a CPU too,
for an H200: what no kernel computes is refused there as on a GPU.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from ...kernels import plan as derived
from ...kernels.indexed.rows import IndexedRows, RowIndices
from ...kernels.orders import check_order
from ...kernels.sm90.indexed.choose import copies_first
from ...kernels.sm90.plan import Sm90Plan
from ..functions.product import in_rows
from ..product import C_NAMES, NAMES, bytes_of
from .product import ComposedProduct


def as_read(product: ComposedProduct) -> ComposedProduct:
    """The product of the arrays as the kernel reads them. Turned by XLA, of rows that XLA has gathered."""
    if bytes_of(product.types[0]) != 2:
        product = product.k_contiguous  # wgmma reads 16 bits along M and N, too
    elif product.gates:
        product = product.lying((product.turned[0], True))
    if product.rows is None or not copies(product):
        return product
    m, _, k = product.sizes
    return replace(product, a=(m, k), turned=(False, product.turned[1]), rows=None, copy_rows=None)


def copies(product: ComposedProduct) -> bool:
    """True if XLA gathers the rows. As the caller says, the only way, or the one estimated faster."""
    if product.copy_rows is not None:
        return product.copy_rows
    size = bytes_of(product.types[0])
    alone = product.second or product.how is not None or product.prologue is not None
    if alone or product.turned[0] or size == 4:
        return True
    return copies_first((*product.sizes, 1), size, False)[0]


@functools.lru_cache(1024)
def plan_of(product: ComposedProduct) -> Sm90Plan:
    """The plan of a product as its kernel reads it. Raises OperandError or PlanError where no kernel exists."""
    m, n, k = product.sizes
    a, b, c = product.types
    orders = "col" if product.turned[0] else "row", "col" if product.turned[1] else "row"
    gather = None if product.rows is None else RowIndices(product.a[-2], product.rows[1])
    scatter = None if product.out_rows is None else RowIndices(*product.out_rows)
    second = product.second[0][-2 if product.turned[0] else -1] if product.second else None
    indexed = None if gather is None and scatter is None else IndexedRows(gather, scatter)
    epilogue = None if product.epilogue is None else in_rows(product.epilogue, n)
    found = derived(
        m, n, k, batch=(product.batch or (1,))[0], arch="sm_90a", a=f"{NAMES[a]}:{orders[0]}",
        b=f"{NAMES[b]}:{orders[1]}", c=C_NAMES[c], epilogue=epilogue, gated=product.how, order=product.order,
        prologue=product.prologue, pair=second, indexed=indexed,
    )  # fmt: skip
    assert isinstance(found, Sm90Plan)
    if product.order is not None:
        check_order(found)
    return found


def checked_plan(product: ComposedProduct) -> Sm90Plan:
    """The plan of a product, whose arrays may lie otherwise."""
    return plan_of(as_read(product))
