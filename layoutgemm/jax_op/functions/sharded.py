"""Factors that a mesh may cut, of products with functions or several parts.

factor     cut, unless
---------  -----------------------------------------------------------------------------------------------
m          a part knows an element's place, or columns or all of C are reduced
n          likewise, of rows; with a gate, whose shard of [gate | up] would have one of them; `each`, Quantize
k          never
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
from jax.experimental.custom_partitioning import custom_partitioning

from ...kernels.epilogue.chain import Epilogue
from ..outputs import Arrays, written_by
from ..primitive import partition_rule, spec_of
from ..shardings import WHOLE, Axes, Labels
from .product import FunctionProduct


def labels_of(product: FunctionProduct) -> Labels:
    """The factors of a product's dimensions. Rows and columns are cut where nothing is reduced along them, and no K.

    >>> from layoutgemm.kernels.epilogue.chain import RowReduce
    >>> types = ("bfloat16",) * 3
    >>> labels_of(FunctionProduct((8, 4), (4, 6), types, (False, False), Epilogue(RowReduce("sum")), None)).rule
    'm g, g q -> m q, m'
    """
    k, k2, wide, narrow, whole_rows, pieces = WHOLE
    along = "" if product.epilogue is None else _reduced(product.epilogue)
    rows = whole_rows if "m" in along else "m"
    of_b, of_c = (wide, narrow) if product.gates else (narrow, narrow) if "n" in along else ("n", "n")
    axes = {"": (), "m": (rows,), "n": (of_c,), "mn": (rows, of_c)}
    found: dict[str, tuple[str, ...]] = {x.name: axes[x.axes] for x in product.operands}  # type: ignore[union-attr]
    for name in product.names:
        if name[0] in "ab" and name not in found:
            depth = k2 if name in product.of_second else k
            pair = (rows, depth) if name[0] == "a" else (depth, of_b)
            found[name] = pair[::-1] if product.turned[name[0] == "b"] else pair
    written = [axes[x.axes] if x.unit == (1, 1) else (rows, pieces) for x in written_by(product.epilogue)]
    stored = [(rows, of_c)] * (product.epilogue is None or product.epilogue.stores_c)
    return Labels(tuple([found[name] for name in product.names]), (*stored, *written))


def _reduced(epilogue: Epilogue) -> str:
    """The axes of C along which something is reduced.

    >>> from layoutgemm.kernels.epilogue.chain import Amax, ColumnReduce
    >>> _reduced(Epilogue(ColumnReduce("sum"))), _reduced(Epilogue(Amax()))
    ('m', 'mn')
    """
    own = "".join({"m": "n", "n": "m", "": "mn"}[step.axes] for step in epilogue.reductions)
    return own + "n" * (epilogue.quantizes is not None)


def partitioned(
    product: FunctionProduct, bound: Callable[..., Arrays], bind: Callable[..., Arrays]
) -> Callable[..., Arrays]:
    """The product as a function that is partitioned over a mesh, where its parts allow.

    bound  its function of arrays; bind: that of any product and its arrays
    """
    if product.known_by_place or product.batch:
        return bound
    labels = labels_of(product)

    def local(axes: Mapping[str, Axes], *parts: jax.Array) -> Arrays:
        return bind(product.of_parts(dict(zip(product.names, [x.shape for x in parts], strict=True))), *parts)

    rule = partition_rule(labels, product.sizes[2], lambda sharding, names: spec_of(sharding, len(names)), local)
    shared = custom_partitioning(bound)
    in_order = dict.fromkeys(name for each in labels for names in each for name in names)  # as Shardy wants them
    whole = tuple([name for name in in_order if name in WHOLE])
    shared.def_partition(rule, sharding_rule=labels.rule, need_replication_factors=whole)
    return shared
