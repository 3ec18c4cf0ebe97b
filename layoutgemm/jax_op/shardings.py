"""Shardings of a product. Mesh axes of its factors, and the collective where K is sharded.

    dimension      a       b       bias    result
    -----------    ----    ----    ----    ------
    batch          yes     yes             yes       sharded alike; a dimension of 1 that is stretched stays whole
    m              yes                     yes
    n                      yes     yes     yes       whole with a gate: a shard of [gate | up] would have one of them
    k              yes     yes                       float32 sums of each device, added by psum, then bias, activation

Nothing here imports jax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .product import Product

Axes = tuple[str, ...]
WHOLE = "g", "h", "p", "q", "r", "s"  # factors that no mesh axis cuts
COLUMNS = WHOLE[:2]  # of b and of the result


class Labels(NamedTuple):
    """Factors of each operand's dimensions, and of each result's."""

    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]

    @property
    def rule(self) -> str:
        """Shardy's notation."""
        return " -> ".join(", ".join(map(" ".join, each)) for each in self)


def labels_of(product: Product) -> Labels:
    """The factors of a product's dimensions.

    >>> labels_of(Product((7, 1, 2, 3), (5, 4, 3), ("bfloat16",) * 3, (False, True), "float32")).rule
    'b0 a1 m k, b1 n k, n -> b0 b1 m n'
    >>> labels_of(Product((2, 3), (3, 8), ("bfloat16",) * 3, activation="swiglu")).rule
    'm k, k g -> m h'
    """
    columns, of_c = ("n", "n") if product.gate is None else COLUMNS
    batch = product.batch

    def outer(name: str, own: Sequence[int]) -> tuple[str, ...]:
        front = len(batch) - len(own)
        return tuple(
            [f"b{i}" if n == batch[i] else f"{name}{i}" for i, n in enumerate(own, front)]  # else stretched
        )

    of_a, of_b = (
        (("k", "m") if product.turned[0] else ("m", "k")),
        ((columns, "k") if product.turned[1] else ("k", columns)),
    )
    a, b = (*outer("a", product.a[:-2]), *of_a), (*outer("c", product.b[:-2]), *of_b)
    bias = () if product.bias is None else ((columns,),)
    return Labels((a, b, *bias), ((*[f"b{i}" for i in range(len(batch))], "m", of_c),))


def axes_of(labels: Labels, operands: Sequence[Sequence[object]], results: Sequence[Sequence[object]], k: int,
            mesh: Mapping[str, int]) -> dict[str, Axes]:  # fmt: skip
    """The mesh axes of each factor. The results' come first, then a's, b's and the bias'; each axis serves one.

    operands, results  entries of partition specs, as many as dimensions: an axis, axes, or None
    k                  the size of K, which is sharded evenly or not at all: padding would be added to the sums
    mesh               the sizes of its axes

    >>> labels = labels_of(Product((8, 6), (6, 4), ("bfloat16",) * 3))
    >>> axes_of(labels, [("x", "y"), ("y", None)], [(None, None)], 6, {"x": 2, "y": 2})
    {'m': ('x',), 'k': ('y',)}
    """
    found: dict[str, Axes] = {}
    taken: set[str] = set()
    for names, entries in zip((*labels.results, *labels.operands), (*results, *operands), strict=True):
        for name, entry in zip(names, entries, strict=True):
            if name in WHOLE:
                continue
            axes: Axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)  # type: ignore[arg-type]
            if name in found or not axes or taken & {*axes}:
                continue
            parts = 1
            for axis in axes:
                parts *= mesh[axis]
            if name == "k" and k % parts:
                continue
            found[name] = axes
            taken |= {*axes}
    return found


def entries_of(labels: Sequence[str], axes: Mapping[str, Axes]) -> tuple[Axes | None, ...]:
    """The entries of a partition spec for dimensions of these factors."""
    return tuple([axes.get(label) for label in labels])
