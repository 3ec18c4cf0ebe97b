"""Factors of the dimensions of these products, and which of them a mesh may cut.

    factor       plain                         rows                    K
    -----------  ----------------------------  ----------------------  ----------------------
    batch        cut
    m            cut, with a scale of each     whole: groups end       cut
                 row; whole with 128x128       anywhere
    n            cut, with a scale of each     as plain                cut
                 column; whole with 128x128,
                 and with a gate
    k            whole: scales are of its      cut without scales:     whole: groups end
                 blocks                        psum of float32 sums    anywhere
    groups       -                             whole                   whole

Of groups of K with scales m and n are cut as in a plain product.

Nothing here imports jax.
"""

from __future__ import annotations

from ...torch_op.scaled_grouped.recipes import BLOCK, ROW, TENSOR
from ..shardings import COLUMNS, Labels
from .product import ALONG_K, PLAIN, ROWS, ScaledProduct


def labels_of(product: ScaledProduct) -> Labels:
    """The factors of a product's dimensions.

    >>> labels_of(ScaledProduct("rows", (8, 4), (3, 4, 5), ("bfloat16",) * 3, offsets="int32", groups=3)).rule
    'm k, e k n, o -> m n'
    """
    if product.form == ALONG_K:
        lines = [("m", "k"), ("n", "k")] if product.turned else [("k", "m"), ("k", "n")]
        others = [_of_scales(product, i, shape, ()) for i, shape in enumerate(product.scales) if shape is not None]
        return Labels((*lines, ("o",), *others), (("e", "m", "n"),))
    front = ("l",) * (len(product.a) - 2)
    columns, of_c = ("n", "n") if product.gate is None else COLUMNS
    of_b = (*(("e",) if product.form == ROWS else front), *((columns, "k") if product.turned else ("k", columns)))
    found = [(*front, "m", "k"), of_b]
    if product.offsets is not None:
        found.append(("o",))
    for side, shape in enumerate(product.scales):
        if shape is not None:
            found.append(_of_scales(product, side, shape, front))
    if product.bias is not None:
        found.append((*(("e",) * (len(product.bias[1]) - 1)), columns))
    return Labels(tuple(found), ((*front, "m", of_c),))


def _of_scales(product: ScaledProduct, side: int, shape: tuple[int, ...], front: tuple[str, ...]) -> tuple[str, ...]:
    """Factors of one operand's scales; dimensions that nothing cuts have names of their own."""
    assert product.recipes is not None
    own = tuple([f"{'st'[side]}{i}" for i in range(len(shape))])
    recipe, line = product.recipes[side], ("m", "n" if product.gate is None else COLUMNS[0])[side]
    if (side and product.form == ROWS) or (recipe == ROW and product.form == ALONG_K):
        front = ("e",)
    if recipe == TENSOR or recipe not in (BLOCK, ROW):
        return own if recipe == TENSOR else (*front, *own[len(front) :])
    if recipe == BLOCK or len(shape) == len(front) + 1:
        return (*front, line, *own[len(front) + 1 :])
    at = len(front) + (0 if shape[-1] == 1 and (side == 0 or shape[-2] != 1) else 1)
    return (*front, *[line if place == at else own[place] for place in range(len(front), len(shape))])


def cut(product: ScaledProduct) -> tuple[str, ...]:
    """The factors that a mesh may cut.

    >>> cut(ScaledProduct("K", (8, 4), (8, 5), ("bfloat16",) * 3, offsets="int32", groups=3))
    ('m', 'n')
    """
    by_row = (BLOCK, ROW, TENSOR, "")
    recipes = product.recipes or ("", "")
    found = [line for line, recipe in zip("mn", recipes, strict=True) if recipe in by_row]
    if product.form == ALONG_K:
        return tuple(found)
    if product.form == ROWS:
        found = [line for line in found if line == "n"] + ["k"] * (product.recipes is None)
    if product.gate is not None:
        found = [line for line in found if line != "n"]
    return (*(("l",) if product.form == PLAIN else ()), *found)
