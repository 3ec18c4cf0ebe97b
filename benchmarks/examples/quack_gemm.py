"""Call quack's matrix products with epilogues, and compare them with torch.

    python quack_gemm.py gemm_act --m 200 --n 264 --k 136

Needs a checkout of Dao-AILab/quack on the path.
"""

from __future__ import annotations

import argparse

import torch

Pair = tuple[list[torch.Tensor], list[torch.Tensor]]  # what quack gives, and torch in float32

TOLERANCE = 3e-2


def gemm(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """The plain product."""
    from quack.gemm_interface import gemm as ours

    return [ours(a, b, tuned=False)], [a.float() @ b.float()]


def gemm_bias(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """A bias for each column, and a factor."""
    from quack.gemm_interface import gemm as ours

    bias = torch.randn(b.shape[1], device="cuda", dtype=a.dtype)
    return [ours(a, b, bias=bias, alpha=0.5, tuned=False)], [0.5 * (a.float() @ b.float()) + bias.float()]


def gemm_add(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """A matrix added to the product."""
    from quack.gemm_interface import gemm_add as ours

    c = torch.randn(a.shape[0], b.shape[1], device="cuda", dtype=a.dtype)
    return [ours(a, b, c, beta=2.0, tuned=False)], [a.float() @ b.float() + 2 * c.float()]


def gemm_act(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """An activation, with and without which the product is stored."""
    from quack.gemm_interface import gemm_act as ours

    before = a.float() @ b.float()
    pre, post = ours(a, b, activation="relu", tuned=False)
    assert pre is not None
    return [pre, post], [before, torch.relu(before)]


def gemm_dact(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """The gradient of an activation."""
    from quack.gemm_interface import gemm_dact as ours

    pre = torch.randn(a.shape[0], b.shape[1], device="cuda", dtype=a.dtype)
    dx, post = ours(a, b, pre, activation="relu", tuned=False)[:2]
    return [dx, post], [(a.float() @ b.float()) * (pre > 0), torch.relu(pre).float()]


def gemm_gated(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """SwiGLU of column pairs."""
    from quack.gemm_interface import gemm_act as ours

    before = a.float() @ b.float()
    _, post = ours(a, b, activation="swiglu", store_preact=False, tuned=False)
    return [post], [torch.nn.functional.silu(before[:, ::2]) * before[:, 1::2]]


def gemm_symmetric(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """A matrix times its transpose."""
    from quack.gemm_interface import gemm_symmetric as ours

    found = ours(a, a.mT)
    return [found if isinstance(found, torch.Tensor) else found[-1]], [a.float() @ a.float().mT]


def gemm_rms(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """The product and the inverse root mean square of its rows."""
    from quack.gemm_interface import gemm_rms as ours

    before = a.float() @ b.float()
    out, rstd = ours(a, b, tuned=False)
    return [out, rstd], [before, torch.rsqrt((before * before).mean(-1) + 1e-6)]


def gemm_batched(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """A batch of two."""
    from quack.gemm_interface import gemm as ours

    left, right = torch.stack([a, -a]), torch.stack([b, b])
    return [ours(left, right, tuned=False)], [left.float() @ right.float()]


def gemm_grouped(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """Two groups of rows, each with its own second operand."""
    from quack.gemm_interface import gemm as ours

    middle = a.shape[0] // 2 - 3
    offsets = torch.tensor([0, middle, a.shape[0]], device="cuda", dtype=torch.int32)
    right = torch.stack([b, -b])
    parts = [a[:middle].float() @ right[0].float(), a[middle:].float() @ right[1].float()]
    return [ours(a, right, cu_seqlens_m=offsets, tuned=False)], [torch.cat(parts)]


KERNELS = {
    f.__name__: f
    for f in (
        gemm, gemm_bias, gemm_add, gemm_act, gemm_dact, gemm_gated, gemm_symmetric, gemm_rms, gemm_batched,
        gemm_grouped,
    )
}  # fmt: skip


def main() -> None:
    """Run one product."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", choices=KERNELS)
    for name, size in (("m", 200), ("n", 264), ("k", 136)):
        parser.add_argument(f"--{name}", type=int, default=size, help="(%(default)s)")
    args = parser.parse_args()
    torch.manual_seed(0)
    a = torch.randn(args.m, args.k, device="cuda", dtype=torch.bfloat16)
    b = (torch.randn(args.n, args.k, device="cuda", dtype=torch.bfloat16) / args.k**0.5).mT
    found, wanted = KERNELS[args.kernel](a, b)
    for number, (one, reference) in enumerate(zip(found, wanted, strict=True)):
        said = f"result {number} of {args.kernel}"
        torch.testing.assert_close(
            one.float(), reference.float(), atol=TOLERANCE, rtol=TOLERANCE, msg=lambda m, said=said: f"{said}: {m}"
        )
    print("right")


if __name__ == "__main__":
    main()
