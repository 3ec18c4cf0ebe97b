"""Random products of JAX arrays by every door, beside float64 formulas of torch.

python -m tests.jax_op.door_fuzz --door matmul --seed 0 --count 100
"""

from __future__ import annotations

import argparse
import collections
import math
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from layoutgemm.arch import arch
from layoutgemm.errors import LayoutError
from layoutgemm.jax import grouped_matmul, matmul, scaled_matmul
from layoutgemm.jax_op import gpu
from layoutgemm.jax_op import matmul as plain
from layoutgemm.jax_op.composed import api as composed_api
from layoutgemm.jax_op.composed import gpu as composed_gpu
from layoutgemm.jax_op.functions import api as functions_api
from layoutgemm.jax_op.functions import gpu as functions_gpu
from layoutgemm.jax_op.scaled_grouped import api as scaled_api
from layoutgemm.jax_op.scaled_grouped import gpu as scaled_gpu
from layoutgemm.kernels.epilogue.chain import Epilogue
from tests.jax_op.emulated import emulate_calls
from tests.torch_op.door_fuzz import (
    ACTS,
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    GATES,
    I8,
    I32,
    KINDS,
    PROLOGUES,
    U8,
    Chain,
    Draw,
    Piece,
    alike,
    combined,
    lies,
    operands_of,
    pieces_of,
    powers,
    spread,
    steps_on,
    wide,
)

NAMES = {
    BF16: "bfloat16",
    F16: "float16",
    F32: "float32",
    E4M3: "float8_e4m3fn",
    E5M2: "float8_e5m2",
    I8: "int8",
    U8: "uint8",
    I32: "int32",
}
FIRST = {"max": -math.inf, "min": math.inf}


def array(x: Any) -> Any:
    """A tensor as an array of JAX's."""
    if not isinstance(x, torch.Tensor):
        return tuple(array(y) for y in x) if isinstance(x, tuple) else x
    x = x.resolve_neg().contiguous()
    if x.dtype in (BF16, F16, F32, I8, U8, I32):
        kept = x.view(torch.int16).numpy() if x.dtype == BF16 else x.numpy()
        return jnp.asarray(kept.view(jnp.bfloat16) if x.dtype == BF16 else kept)
    if x.dtype == torch.int64:
        return jnp.asarray(x.int().numpy())
    return jnp.asarray(x.view(torch.uint8).numpy().view(jnp.dtype(NAMES[x.dtype])))


def tensor(x: Any, kind: Any) -> Any:
    """An array as a tensor of its own type."""
    assert str(x.dtype) == NAMES[kind], (x.dtype, kind)
    return torch.tensor(np.asarray(x, np.float64)).to(kind)


def fresh(chain: Chain, epilogue: Epilogue, shape: Any, given: dict[str, Any], experts: int) -> dict[str, Any]:
    """The written arrays before the launch."""
    want = {}
    for operand, step in [(o, s) for s in epilogue.steps for o in s.given if o.written]:
        m, n = shape[-2:]
        own = (experts,) if experts and operand.axes == "n" else shape[:-2]
        op = getattr(step, "operation", None)
        first = 0.0 if getattr(step, "ordered", True) else FIRST.get(op, 0.0)
        if not operand.axes:
            want[operand.name] = torch.zeros(1, dtype=F64)
        else:
            want[operand.name] = torch.full((*own, *operand.shape(m, n)), first, dtype=F64)
    return want


def finish(
    draw: Draw,
    chain: Chain,
    shape: Any,
    x: Any,
    kind: Any,
    call: Any,
    said: str,
    gate: Any = None,
    pieces: Any = None,
    experts: int = 0,
    ragged: bool = False,
    own: Any = None,
) -> Any:
    stores = draw.chance(0.75) or chain.kind != kind or not any(g.written for s in chain.steps for g in s.given)
    epilogue = Epilogue(*chain.steps, stores_c=stores, sums=chain.sums)
    given = {name: v for name, v in operands_of(draw, epilogue, shape, experts).items() if name not in epilogue.writes}
    want = fresh(chain, epilogue, shape, given, experts)
    if stores:
        want["C"] = torch.zeros(shape, dtype=F64)
    pieces = pieces_of(x, shape) if pieces is None else pieces
    steps_on(chain, pieces, given, want, ragged, gate)
    kinds = {g.name: KINDS[g.dtype.name] for g in epilogue.given if g.written}
    arrays = {name: array(v) for name, v in {**given, **(own or {})}.items()}
    text = f"{said} {[str(s)[:60] for s in chain.steps]} stores {stores}"
    more = {"epilogue": epilogue, "given": arrays} if chain.steps else {}
    return lambda: call(more, NAMES[chain.kind]), want, {**kinds, "C": chain.kind}, text, bool(epilogue.writes)


def dense(draw: Draw) -> Any:
    way = draw.choice(("16", "16", "16", "8", "i", "f"))
    options: dict[str, Any] = {}
    if way == "16":
        ka = kb = draw.choice((BF16, F16))
    elif way == "8":
        ka, kb = draw.choice((E4M3, E5M2)), draw.choice((E4M3, E5M2))
    elif way == "i":
        ka, kb = draw.choice((I8, U8)), draw.choice((I8, U8))
    else:
        ka = kb = F32
        options["allow_tf32"] = True
    whole = way == "i"
    m, n, k = (
        draw.choice((1, 2, 7, 24, 65, 72, 130)),
        draw.choice((1, 2, 8, 24, 33, 48, 64, 72, 130)),
        draw.choice((1, 8, 33, 64, 72, 130)),
    )
    fa, fb = draw.choice((((), ()),) * 3 + (((2,), (2,)), ((2, 2), (2, 2)), ((3,), ()), ((), (2,)), ((2, 1), (3,))))
    gate = draw.choice(("swiglu", "geglu")) if draw.chance(0.15) and not whole else None
    columns = n * (2 if gate else 1)
    a, b = draw.whole(*fa, m, k, kind=ka), draw.whole(*fb, k, columns, kind=kb)
    ta, tb = draw.chance(0.3), draw.chance(0.6)
    prologue, own, first = None, {}, wide(a)
    if draw.chance(0.15) and ka in (BF16, F16) and fa == fb:
        prologue, formula, vectors = draw.choice(PROLOGUES)
        for name, axis in vectors.items():
            wanted = KINDS[next(o.dtype.name for o in prologue.operands if o.name == name)]
            own[name] = draw.whole(*fa, m if axis == "m" else k, kind=wanted)
        first = formula(first, {name: wide(v) for name, v in own.items()})
        options["prologue"] = prologue
    x = first @ wide(b)
    kind = draw.choice((F32, BF16, F16)) if not whole else draw.choice((I32, F32, BF16))
    shape = tuple(x.shape[:-2]) + (m, n)
    left, right = array(a.mT if ta else a), array(b.mT if tb else b)
    if gate:
        options["activation"] = gate
    said = f"{ka} {kb} -> {kind} {tuple(a.shape)} {tuple(b.shape)} turned {ta} {tb} gate {gate} {list(options)}"
    given = {name: array(v) for name, v in own.items()}
    if draw.chance(0.65) and kind != I32 and fa == fb:
        chain = Chain(draw, n, kind, sums=gate is not None)
        return finish(
            draw,
            chain,
            shape,
            x,
            kind,
            lambda more, kd: matmul(left, right, transpose_a=ta, transpose_b=tb, out_dtype=kd, **options, **more),
            said,
            gate,
            own=own,
        )
    if draw.chance(0.5):
        bias = draw.whole(columns, kind=draw.choice((F32, BF16, F16)) if kind != I32 else I32)
        options["bias"] = array(bias)
        x = x + wide(bias)
    if gate:
        x = ACTS[GATES[gate]](x[..., :n]) * x[..., n:]
    elif draw.chance(0.4) and kind != I32:
        options["activation"] = draw.choice(tuple(ACTS))
        x = ACTS[options["activation"]](x)
    more = {"given": given} if own else {}
    return (
        lambda: matmul(left, right, transpose_a=ta, transpose_b=tb, out_dtype=NAMES[kind], **options, **more),
        {"C": x},
        {"C": kind},
        said + f" {list(options)}",
        False,
    )


def composed(draw: Draw) -> Any:
    ka = draw.choice((BF16, F16))
    m, n, k = draw.choice((2, 7, 24, 65, 130)), draw.choice((8, 24, 33, 64, 72, 130)), draw.choice((8, 33, 64, 72))
    batch = draw.choice(((), (), (2,)))
    pairs, count = draw.choice(((1, 2), (1, 3), (2, 1), (2, 2), (1, 1), (1, 1)))
    gate = draw.choice(("swiglu", "geglu")) if count == 1 and draw.chance(0.2) else None
    columns, options, own = n * (2 if gate else 1), {}, {}
    picks = not batch and draw.chance(0.5)
    rows_in = draw.choice((1, 9, 50)) if picks else m
    ks = [k] if pairs == 1 else [k, draw.choice((8, 16, 40))]
    lefts = [draw.whole(*batch, rows_in if p == 0 else m, kk, kind=ka) for p, kk in enumerate(ks)]
    rights = [[draw.whole(*batch, kk, columns, kind=ka) for _ in range(count)] for kk in ks]
    ta, tb = draw.chance(0.25), draw.chance(0.6)
    first = wide(lefts[0])
    if draw.chance(0.3):
        prologue, formula, vectors = draw.choice(PROLOGUES[:4] if picks else PROLOGUES)
        for name, axis in vectors.items():
            wanted = KINDS[next(o.dtype.name for o in prologue.operands if o.name == name)]
            own[name] = draw.whole(*batch, rows_in if axis == "m" else k, kind=wanted)
        first = formula(first, {name: wide(v) for name, v in own.items()})
        options["prologue"] = prologue
    if picks:
        rows = torch.randint(0, rows_in, (m,), dtype=I32)
        options["rows"], first = array(rows), first[rows.long()]
    sums = [first @ wide(rights[0][q]) for q in range(count)]
    if pairs == 2:
        sums = [s + wide(lefts[1]) @ wide(rights[1][q]) for q, s in enumerate(sums)]
    x = sums[0]
    if count > 1:
        options["combine"], formula, numbers = combined(draw, count)
        x, own = formula(*sums), {**own, **numbers}

    def turn(v: Any, yes: bool) -> Any:
        return array(v.mT if yes else v)

    a = turn(lefts[0], ta) if pairs == 1 else tuple(turn(v, ta) for v in lefts)
    b = tuple(turn(v, tb) for v in rights[0]) if count > 1 else turn(rights[0][0], tb)
    if pairs == 2:
        b = tuple(tuple(turn(v, tb) for v in r) if count > 1 else turn(r[0], tb) for r in rights)
    kind, shape = draw.choice((F32, BF16, F16)), (*batch, m, n)
    if gate:
        options["activation"] = gate
    turned = f"turned {ta} {tb} gate {gate} {list(options)} {options.get('combine')}"
    said = f"{lies(lefts)} {lies(rights)} -> {kind} {turned}"
    exact = not isinstance(options.get("combine"), str)
    if draw.chance(0.5):
        chain = Chain(draw, n, kind, 2, sums=gate is not None, exact=exact)
        return finish(
            draw,
            chain,
            shape,
            x,
            kind,
            lambda more, kd: matmul(a, b, transpose_a=ta, transpose_b=tb, out_dtype=kd, **options, **more),
            said,
            gate,
            own=own,
        )
    if gate:
        x = ACTS[GATES[gate]](x[..., :n]) * x[..., n:]
    elif draw.chance(0.4):
        bias = draw.whole(n, kind=draw.choice((F32, BF16)))
        options["bias"], x = array(bias), x + wide(bias)
    if not gate and draw.chance(0.3):
        options["activation"] = draw.choice(tuple(ACTS))
        x = ACTS[options["activation"]](x)
    if not batch and draw.chance(0.4):
        if draw.chance(0.5):
            weights = draw.whole(m, kind=F32)
            options["row_weights"], x = array(weights), x * wide(weights)[:, None]
        results = m + draw.choice((0, 5))
        base = draw.whole(results, n, kind=kind)
        to = torch.randperm(results)[:m]
        options |= {"out": array(base), "out_rows": array(to)}
        x = wide(base).index_copy(0, to, x)
    more = {"given": {name: array(v) for name, v in own.items()}} if own else {}
    return (
        lambda: matmul(a, b, transpose_a=ta, transpose_b=tb, out_dtype=NAMES[kind], **options, **more),
        {"C": x},
        {"C": kind},
        said + f" {list(options)}",
        False,
    )


def scaled(draw: Draw) -> Any:
    grouped = draw.chance(0.7)
    if not grouped:
        m, n, k = draw.choice((1, 7, 65, 130)), draw.choice((8, 41, 72, 130)), draw.choice((16, 130, 272))
        front = () if draw.chance(0.8) else (2,)
        gate = draw.choice(("swiglu", "geglu")) if draw.chance(0.2) else None
        columns = n * (2 if gate else 1)
        ka, kb = draw.choice((E4M3, E5M2)), draw.choice((E4M3, E5M2))
        a, b, tb = draw.whole(*front, m, k, kind=ka), draw.whole(*front, columns, k, kind=kb), draw.chance(0.7)
        blocks = -(-k // 128)
        left, right = wide(a), wide(b).mT
        if draw.chance(0.5):
            sa, sb = (
                powers(*front, draw.choice((m, -(-m // 128))), blocks),
                powers(*front, draw.choice((columns, -(-columns // 128))), blocks),
            )
            left, right = left * spread(sa, m, k), right * spread(sb, columns, k).mT
            if blocks == 1 and (sa.shape[-2:] == (m, 1)) != (sb.shape[-2:] == (columns, 1)):
                sa, sb = powers(*front, m, 1), powers(*front, 1, columns)
                left, right = wide(a) * sa.double(), wide(b).mT * sb.double()
        else:
            sa, sb = powers(*front, m, 1), powers(*front, 1, columns)
            left, right = left * sa.double(), right * sb.double()
        x, kind = left @ right, draw.choice((F32, BF16, F16))
        options: dict[str, Any] = {"use_fast_accum": draw.chance(0.7)}
        if gate:
            options["activation"] = gate
        aa, bb, ss, tt = array(a), array(b if tb else b.mT), array(sa), array(sb)
        said = f"scaled {lies([a, b, sa, sb])} -> {kind} {tb} {options}"
        if draw.chance(0.6):
            chain = Chain(draw, n, kind, sums=gate is not None)
            return finish(
                draw,
                chain,
                (*front, m, n),
                x,
                kind,
                lambda more, kd: scaled_matmul(aa, ss, bb, tt, transpose_b=tb, out_dtype=kd, **options, **more),
                said,
                gate,
            )
        if draw.chance(0.4):
            bias = draw.whole(columns, kind=draw.choice((F32, BF16, F16)))
            options["bias"], x = array(bias), x + wide(bias)
        if gate:
            x = ACTS[GATES[gate]](x[..., :n]) * x[..., n:]
        return (
            lambda: scaled_matmul(aa, ss, bb, tt, transpose_b=tb, out_dtype=NAMES[kind], **options),
            {"C": x},
            {"C": kind},
            said,
            False,
        )
    experts = draw.choice((1, 2, 3, 5))
    n, k = draw.choice((7, 16, 41, 64, 88, 130)), draw.choice((16, 72, 130))
    sizes = torch.tensor([draw.choice((0, 0, 1, 3, 15, 16, 17, 33, 64, 70)) for _ in range(experts)])
    ka = draw.choice((BF16, F16, E4M3))
    kind, total = draw.choice((F32, BF16, F16)), int(sizes.sum())
    ends = torch.cat([torch.zeros(1).long(), sizes.cumsum(0)])
    options = {}
    if draw.chance(0.3) and ka != E4M3 and total:
        m, ta, tb = draw.choice((5, 64, 70)), draw.chance(0.5), draw.chance(0.5)
        a, b = draw.whole(m, total, kind=ka), draw.whole(total, n, kind=ka)
        xs = [wide(a)[:, s:e] @ wide(b)[s:e] for s, e in zip(ends.tolist(), ends.tolist()[1:])]
        pieces = [Piece((e,), slice(0, m), (e,), x) for e, x in enumerate(xs)]
        aa, bb, oo = array(a.mT if ta else a), array(b.mT if tb else b), array(ends)
        said = f"K {ka} -> {kind} {tuple(a.shape)} {tuple(b.shape)} {ta} {tb} {sizes.tolist()}"
        chain = Chain(draw, n, kind)
        if draw.chance(0.4):
            return (
                lambda: grouped_matmul(aa, bb, oo, transpose_a=ta, transpose_b=tb, out_dtype=NAMES[kind]),
                {"C": torch.stack(xs)},
                {"C": kind},
                said,
                False,
            )
        return finish(
            draw,
            chain,
            (experts, m, n),
            None,
            kind,
            lambda more, kd: grouped_matmul(aa, bb, oo, transpose_a=ta, transpose_b=tb, out_dtype=kd, **more),
            said,
            None,
            pieces,
            experts,
        )
    gate = draw.choice(("swiglu", "geglu")) if draw.chance(0.2) else None
    columns, tb = n * (2 if gate else 1), draw.chance(0.7)
    a, b = draw.whole(total, k, kind=ka), draw.whole(experts, columns, k, kind=ka)
    left, right = wide(a), wide(b).mT
    if ka == E4M3 and draw.chance(0.7):
        sa, sb = powers(total, 1), powers(experts, 1, columns)
        left, right = left * sa.double(), right * sb.double()
        options |= {"scale_a": array(sa), "scale_b": array(sb)}
    pieces = [
        Piece((), slice(s, e), (i,), left[s:e] @ right[i])
        for i, (s, e) in enumerate(zip(ends.tolist(), ends.tolist()[1:]))
    ]
    if gate:
        options["activation"] = gate
    aa, bb, oo = array(a), array(b if tb else b.mT), array(ends)
    said = f"rows {ka} -> {kind} {tuple(a.shape)} {tuple(b.shape)} {tb} {sizes.tolist()} {list(options)}"
    if draw.chance(0.6):
        chain = Chain(draw, n, kind, sums=gate is not None)
        return finish(
            draw,
            chain,
            (total, n),
            None,
            kind,
            lambda more, kd: grouped_matmul(aa, bb, oo, transpose_b=tb, out_dtype=kd, **options, **more),
            said,
            gate,
            pieces,
            experts,
            True,
        )
    bias = (
        draw.whole(*draw.choice(((columns,), (experts, columns))), kind=draw.choice((F32, BF16, F16)))
        if draw.chance(0.5)
        else None
    )
    if bias is not None:
        options["bias"] = array(bias)
    x = torch.zeros(total, n, dtype=F64)
    for piece in pieces:
        part = piece.x if bias is None else piece.x + (wide(bias)[piece.e[0]] if bias.ndim == 2 else wide(bias))
        x[piece.rows] = ACTS[GATES[gate]](part[..., :n]) * part[..., n:] if gate else part
    return (
        lambda: grouped_matmul(aa, bb, oo, transpose_b=tb, out_dtype=NAMES[kind], **options),
        {"C": x},
        {"C": kind},
        said,
        False,
    )


DOORS = {"dense": dense, "composed": composed, "scaled": scaled}


def faults(
    door: str, seed: int, count: int, tally: Any = None, seconds: float = 1e9, on: Any = ("kernel", "cpu")
) -> Iterator[str]:
    """The faults of so many draws."""
    tally = collections.Counter() if tally is None else tally
    start = time.monotonic()
    for number in range(seed, seed + count):
        if time.monotonic() - start > seconds:
            return
        tally["draws"] += 1
        draw = Draw(f"jax {door}{number}")
        torch.manual_seed(number)
        code = draw.choice(("sm_90a", "sm_90a", "sm_80")) if door != "scaled" else "sm_90a"
        try:
            call, want, kinds, said, named = DOORS[door](draw)
        except LayoutError as error:
            tally["made: " + str(error)[:90]] += 1
            continue
        found_target = gpu.Target(code, arch(code).smem_per_block)
        for where in on:
            try:
                with pytest.MonkeyPatch.context() as patch:
                    if where == "kernel":
                        for api, module in (
                            (composed_api, composed_gpu),
                            (functions_api, functions_gpu),
                            (scaled_api, scaled_gpu),
                            (plain, gpu),
                        ):
                            emulate_calls(patch, module)
                            patch.setattr(module, "target", lambda found=found_target: found)
                            patch.setattr(api, "compiled" if api is plain else "_compiled", module.multiply)
                    found = call()
            except LayoutError as error:
                tally[f"refused {where}"] += 1
                tally[f"{where}: " + str(error)[:100]] += 1
                continue
            except Exception as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                where_at = f"{type(error).__name__} at {last.filename}:{last.lineno}"
                yield f"jax {door} {number} {where} {code}: {where_at}: {str(error)[:600]}\n    {said}"
                continue
            tally[f"answered {where}"] += 1
            c, written = found if named else (found, {})
            for name, value in want.items():
                x = c if name == "C" else written[name]
                if str(x.dtype) != NAMES[kinds[name]]:
                    yield f"jax {door} {number} {where} {code}: {name} is {x.dtype}, not {kinds[name]}\n    {said}"
                    continue
                have = tensor(x, kinds[name])
                value = value.reshape(have.shape) if not have.shape and value.numel() == 1 else value
                if why := alike(have, value, kinds[name], 2.0):
                    yield f"jax {door} {number} {where} {code}: {name}: {why}\n    {said}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--door", default="dense")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--cpu", action="store_true")
    asked = parser.parse_args()
    tally: Any = collections.Counter()
    with warnings.catch_warnings(), jax.default_device(jax.devices("cpu")[0]):
        warnings.simplefilter("ignore")
        for fault in faults(
            asked.door, asked.seed, asked.count, tally, asked.seconds, ("cpu",) if asked.cpu else ("kernel", "cpu")
        ):
            print("FAULT", fault, flush=True)
    for name, count in tally.most_common():
        print(count, name)


if __name__ == "__main__":
    main()
