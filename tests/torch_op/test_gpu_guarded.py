"""Products on a GPU whose operands begin or end where their memory does: nothing beside them is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import grouped_matmul, matmul, scaled_matmul
from tests.torch_op.guarded import guarded
from tests.torch_op.test_gpu_scaled_grouped import BF16, eight, normal, scales

pytestmark = [pytest.mark.gpu, pytest.mark.dsl]

Take = Callable[[Any], Any]  # a tensor -> its guarded copy, or itself
M, N, K, GROUPS = 1040, 2128, 528, 5  # no whole tile of any kernel


def _out(take: Take, *shape: int) -> Any:
    return take(torch.full(shape, 7.0, dtype=BF16, device="cuda"))


def _offsets(take: Take, size: int) -> Any:
    return take(torch.tensor([0, 3, 3, 300, 301, size], dtype=torch.int32, device="cuda"))


def dense(take: Take) -> Any:
    return matmul(take(normal(M, K)), take(normal(N, K)).mT, out=_out(take, M, N))


def few_rows(take: Take) -> Any:
    return matmul(take(normal(24, K)), take(normal(N, K)).mT, out=_out(take, 24, N))


def columns(take: Take) -> Any:
    return matmul(take(normal(K, M)).mT, take(normal(K, N)), out=_out(take, M, N))


def batch(take: Take) -> Any:
    return matmul(take(normal(GROUPS, 72, K)), take(normal(GROUPS, N, K)).mT, out=_out(take, GROUPS, 72, N))


def scaled(take: Take, recipes: tuple[str, str] = ("BlockWise1x128", "BlockWise128x128")) -> Any:
    a, b = eight(M, N, K)
    sa, sb = scales(recipes[0], "a", M, K), scales(recipes[1], "b", N, K)
    return scaled_matmul(take(a), take(sa), take(b.mT.contiguous()).mT, take(sb), out=_out(take, M, N))


def scaled_rows(take: Take) -> Any:
    return scaled(take, ("RowWise", "RowWise"))


def groups(take: Take) -> Any:
    return grouped_matmul(take(normal(M, K)), take(normal(GROUPS, N, K)).mT, _offsets(take, M), out=_out(take, M, N))


def groups_scaled(take: Take) -> Any:
    a, b = eight(M, N, K, GROUPS)
    more = {
        "scale_a": take(scales("BlockWise1x128", "a", M, K)),
        "scale_b": take(scales("BlockWise128x128", "b", N, K, GROUPS)),
    }
    return grouped_matmul(
        take(a[0].contiguous()), take(b.mT.contiguous()).mT, _offsets(take, M), out=_out(take, M, N), **more
    )


def masked(take: Take) -> Any:
    counts = take(torch.tensor([3, 0, 200, 1, 64], dtype=torch.int32, device="cuda"))
    out = _out(take, GROUPS, 200, N)
    return grouped_matmul(take(normal(GROUPS, 200, K)), take(normal(GROUPS, N, K)).mT, counts=counts, out=out)


def along_k(take: Take) -> Any:
    left, right = take(normal(M, 520)), take(normal(M, N))
    return grouped_matmul(left.mT, right, _offsets(take, M), out=_out(take, GROUPS, 520, N))


PRODUCTS = (dense, few_rows, columns, batch, scaled, scaled_rows, groups, groups_scaled, masked, along_k)


@pytest.mark.parametrize("side", ["start", "end"])
@pytest.mark.parametrize("product", PRODUCTS, ids=lambda f: f.__name__)
def test_nothing_beside_the_operands_is_touched(product: Callable[[Take], Any], side: str) -> None:
    """The same bits as from tensors in torch's own memory."""
    torch.manual_seed(0)
    want = product(lambda x: x)
    torch.manual_seed(0)
    got = product(lambda x: guarded(x, side))
    torch.cuda.synchronize()
    assert torch.equal(got, want)
