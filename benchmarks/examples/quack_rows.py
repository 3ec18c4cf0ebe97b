"""Call quack's kernels on rows, forward and backward, and compare them with torch.

    python quack_rows.py softmax --m 5 --n 1000

Needs a checkout of Dao-AILab/quack on the path.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

Pair = tuple[list[torch.Tensor], list[torch.Tensor]]  # what quack gives, and torch

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def softmax(x: torch.Tensor, dy: torch.Tensor) -> Pair:
    """Softmax along rows, and its gradient."""
    from quack.softmax import softmax as ours

    return with_gradient(ours, lambda x: torch.softmax(x, -1), x, dy)


def rmsnorm(x: torch.Tensor, dy: torch.Tensor) -> Pair:
    """RMS norm with a weight, and its gradient."""
    from quack.rmsnorm import rmsnorm as ours

    weight = torch.randn(x.shape[1], device="cuda")

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight

    return with_gradient(lambda x: ours(x, weight), theirs, x, dy)


def layernorm(x: torch.Tensor, dy: torch.Tensor) -> Pair:
    """Layer norm with weight and bias, and its gradients."""
    from quack.rmsnorm import layernorm_bwd, layernorm_fwd

    weight, bias = torch.randn(x.shape[1], device="cuda"), torch.randn(x.shape[1], device="cuda")
    y, rstd, mean = layernorm_fwd(x, weight, bias, return_rstd=True, return_mean=True)
    dx, dw, db = layernorm_bwd(x, weight, dy, rstd, mean)
    leaves = [t.float().detach().requires_grad_() for t in (x, weight, bias)]
    out = torch.nn.functional.layer_norm(leaves[0], weight.shape, leaves[1], leaves[2], 1e-6)
    out.backward(dy.float())
    return [y, dx, dw, db], [out, *[leaf.grad for leaf in leaves]]


def cross_entropy(x: torch.Tensor, dy: torch.Tensor) -> Pair:
    """Cross entropy of each row, and its gradient."""
    from quack.cross_entropy import cross_entropy as ours

    target = torch.randint(0, x.shape[1], (x.shape[0],), device="cuda")

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x, target, reduction="none")

    return with_gradient(lambda x: ours(x, target, reduction="none"), theirs, x, dy[:, 0].float())


def topk(x: torch.Tensor, dy: torch.Tensor) -> Pair:
    """The 8 largest of each row, and the gradient."""
    from quack.topk import topk as ours

    codes = torch.stack([torch.randperm(x.shape[1]) for _ in x]) + 0x3C00  # different bf16: gradients of ties are open
    x = codes.to(torch.int16).view(torch.bfloat16).to(x)
    return with_gradient(lambda x: ours(x, 8)[0], lambda x: torch.topk(x, 8).values, x, dy[:, :8].contiguous())


def with_gradient(
    ours: Callable[[torch.Tensor], torch.Tensor],
    theirs: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    dy: torch.Tensor,
) -> Pair:
    """The result of both functions and the gradient of x; torch's are computed in float32."""
    left, right = x.clone().requires_grad_(), x.float().requires_grad_()
    y, reference = ours(left), theirs(right)
    y.backward(dy.to(y.dtype))
    reference.backward(dy.float())
    assert left.grad is not None and right.grad is not None
    return [y, left.grad], [reference, right.grad]


KERNELS = {f.__name__: f for f in (softmax, rmsnorm, layernorm, cross_entropy, topk)}


def main() -> None:
    """Run one kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("--m", type=int, default=5, help="rows (%(default)s)")
    parser.add_argument("--n", type=int, default=1000, help="columns (%(default)s)")
    parser.add_argument("--dtype", default="bfloat16", choices=[str(t).removeprefix("torch.") for t in TOLERANCE])
    args = parser.parse_args()
    torch.manual_seed(0)
    kind = getattr(torch, args.dtype)
    x, dy = (torch.randn(args.m, args.n, device="cuda", dtype=kind) for _ in range(2))
    found, wanted = KERNELS[args.kernel](x, dy)
    bound = TOLERANCE[kind]
    for number, (one, reference) in enumerate(zip(found, wanted, strict=True)):
        said = f"result {number} of {args.kernel}"
        torch.testing.assert_close(
            one.float(), reference.float(), atol=bound, rtol=bound, msg=lambda m, said=said: f"{said}: {m}"
        )
    print("right")


if __name__ == "__main__":
    main()
