"""One block of a Llama on several GPUs, tensor and sequence parallel, for `bench_overlap.py`.

Each rank has TOKENS / ranks rows of the residual stream, and its share of heads and of the MLP's columns:

    rows of all ranks @ columns of wq, wk, wv  attention of the rank's heads   @ rows of wo, summed: the rank's rows
    rows of all ranks @ columns of w1, w3      silu(gate) * up                 @ rows of w2, summed: the rank's rows

With overlap they are layoutgemm's products, which have gradients. `Gathered` and `Scattered` are the same sums by NCCL
and torch.mm. The gradient of one is the product of the other; those of weights need the rows of all ranks once more.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from layoutgemm.distributed import all_gather_matmul, matmul_reduce_scatter

TOKENS, WIDTH, HIDDEN, HEADS, GROUPS, HEAD = 4096, 4096, 14336, 32, 8, 128


def gather(x: torch.Tensor) -> torch.Tensor:
    """The rows of all ranks, by NCCL."""
    whole = torch.empty(x.shape[0] * dist.get_world_size(), *x.shape[1:], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def sum_of_all(x: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the sum over ranks, by NCCL."""
    mine = torch.empty(x.shape[0] // dist.get_world_size(), x.shape[1], dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(mine, x)
    return mine


class Gathered(torch.autograd.Function):
    """All ranks' rows of x @ w.t(), w (columns of this rank, K)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """The product."""
        ctx.save_for_backward(x, w)
        return gather(x) @ w.t()

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of x, and of w."""
        x, w = ctx.saved_tensors
        return sum_of_all(dy @ w), dy.t() @ gather(x)


class Scattered(torch.autograd.Function):
    """This rank's rows of all ranks' sum of h @ w.t(), w (N, K)."""

    @staticmethod
    def forward(ctx: Any, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """The product."""
        ctx.save_for_backward(h, w)
        return sum_of_all(h @ w.t())

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of h, and of w."""
        h, w = ctx.saved_tensors
        whole = gather(dy)
        return whole @ w, whole.t() @ h


def gathered_product(x: torch.Tensor, w: torch.Tensor, overlaps: bool) -> torch.Tensor:
    """All ranks' rows of x @ w.t()."""
    return all_gather_matmul(x, w.t()) if overlaps else Gathered.apply(x, w)


def scattered_product(h: torch.Tensor, w: torch.Tensor, overlaps: bool) -> torch.Tensor:
    """This rank's rows of all ranks' sum of h @ w.t()."""
    return matmul_reduce_scatter(h, w.t()) if overlaps else Scattered.apply(h, w)


class Block:
    """A rank's share of a block; the same weights for the same rank."""

    def __init__(self, rank: int, ranks: int, overlaps: bool):
        self.ranks, self.overlaps = ranks, overlaps
        device = "cuda" if torch.cuda.is_available() else "cpu"
        generator = torch.Generator(device).manual_seed(rank)

        def normal(*shape: int) -> torch.Tensor:
            x = torch.randn(shape, generator=generator, device=device) * 0.02
            return x.to(torch.bfloat16).requires_grad_()

        wide = (HEADS + 2 * GROUPS) * HEAD // ranks
        self.qkv, self.out = normal(wide, WIDTH), normal(WIDTH, HEADS * HEAD // ranks)
        self.up, self.down = normal(2 * HIDDEN // ranks, WIDTH), normal(WIDTH, HIDDEN // ranks)
        self.x = (normal(TOKENS // ranks, WIDTH).detach() * 50).requires_grad_()
        self.dy = normal(TOKENS // ranks, WIDTH).detach()

    @property
    def parameters(self) -> tuple[torch.Tensor, ...]:
        """The tensors that have gradients."""
        return self.x, self.qkv, self.out, self.up, self.down

    def value(self) -> torch.Tensor:
        """The block's value, recorded for a gradient."""
        x, heads, groups = self.x, HEADS // self.ranks, GROUPS // self.ranks
        qkv = gathered_product(F.rms_norm(x, (WIDTH,)), self.qkv, self.overlaps)
        q, k, v = qkv.view(1, TOKENS, heads + 2 * groups, HEAD).transpose(1, 2).split([heads, groups, groups], 1)
        values = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        heads_joined = values.transpose(1, 2).reshape(TOKENS, heads * HEAD)
        x = x + scattered_product(heads_joined, self.out, self.overlaps)
        gate, up = gathered_product(F.rms_norm(x, (WIDTH,)), self.up, self.overlaps).chunk(2, 1)
        return x + scattered_product(F.silu(gate) * up, self.down, self.overlaps)

    def forward(self) -> torch.Tensor:
        """The value alone."""
        with torch.no_grad():
            return self.value()

    def step(self) -> None:
        """Forward and backward."""
        for parameter in self.parameters:
            parameter.grad = None
        self.value().backward(self.dy)


def difference(one: Block, two: Block) -> float:
    """The largest difference of values and gradients, over the largest value of each."""
    values = []
    for block in (one, two):
        block.step()
        values.append([block.forward(), *[x.grad for x in block.parameters]])
    return max(float((x.float() - y.float()).abs().max() / y.float().abs().max()) for x, y in zip(*values, strict=True))
