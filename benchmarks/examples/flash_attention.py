"""Call flash-attention's kernels of the CuTe DSL, forward and backward, and compare them with torch.

    python flash_attention.py --queries 100 --keys 130 --causal --backward

Needs checkouts of Dao-AILab/flash-attention and of Dao-AILab/quack on the path.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import types
from pathlib import Path

import torch

TOLERANCE = 3e-2


def package() -> None:
    """Make flash_attn.cute importable without the compiled extension that flash_attn itself imports."""
    found = importlib.util.find_spec("flash_attn")
    assert found is not None and found.submodule_search_locations is not None
    bare = types.ModuleType("flash_attn")
    bare.__path__ = [str(Path(place)) for place in found.submodule_search_locations]
    sys.modules["flash_attn"] = bare


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Attention in float32; q, k, v: [batch, sequence, heads, elements]. A causal mask ends at the last key."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[3] ** -0.5
    if causal:
        rows, columns = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
        scores = scores.masked_fill((columns > rows + k.shape[1] - q.shape[1]).to(scores.device), float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), v)


def main() -> None:
    """Run one case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in (("queries", 100), ("keys", 100), ("heads", 2), ("key-heads", 2), ("width", 64)):
        parser.add_argument(f"--{name}", type=int, default=size, help="(%(default)s)")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--backward", action="store_true")
    args = parser.parse_args()
    package()
    from flash_attn.cute.interface import flash_attn_func

    torch.manual_seed(0)
    shapes = (args.queries, args.heads), (args.keys, args.key_heads), (args.keys, args.key_heads)
    given = [torch.randn(1, n, h, args.width, device="cuda", dtype=torch.bfloat16) for n, h in shapes]
    ours = [x.clone().requires_grad_(args.backward) for x in given]
    theirs = [x.float().requires_grad_(args.backward) for x in given]
    out = flash_attn_func(*ours, causal=args.causal)
    out = out[0] if isinstance(out, tuple) else out
    wanted = reference(theirs[0], theirs[1], theirs[2], args.causal)
    pairs = [("out", out, wanted)]
    if args.backward:
        dout = torch.randn(out.shape, device="cuda", dtype=torch.bfloat16)
        out.backward(dout)
        wanted.backward(dout.float())
        pairs += [(f"d{name}", x.grad, y.grad) for name, x, y in zip("qkv", ours, theirs, strict=True)]
    for name, found, right in pairs:
        torch.testing.assert_close(
            found.float(), right.float(), atol=TOLERANCE, rtol=TOLERANCE, msg=lambda m, name=name: f"{name}: {m}"
        )
    print("right")


if __name__ == "__main__":
    main()
