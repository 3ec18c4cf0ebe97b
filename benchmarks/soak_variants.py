"""Random calls of every operator on a GPU, compared with the CPU.

    python benchmarks/soak_variants.py --seconds 120 --processes 12 --json FILE      # on a Hopper GPU
    python benchmarks/soak_variants.py --calls 40 --device cpu                       # the draws alone, without a GPU

The operators are scaled_matmul, grouped_matmul in its four forms, quantized_matmul, and matmul with reductions, orders
of tiles, several matrices B, second pairs and quantised output. Sizes are ragged, and operands lie in any order. On the
CPU a call is computed in float64. Each call runs twice: the second one has to give the same bits, and no operand may
change.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch

from benchmarks import needs
from layoutgemm import grouped_matmul, matmul, quantized_matmul, scaled_matmul
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.epilogue.chain import Activation, Bias, ColumnReduce, Epilogue, Quantize, RowReduce
from layoutgemm.kernels.quantized.float8 import refusal
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.torch_op.quantized.dense import packed_for
from layoutgemm.torch_op.quantized.weights import QuantizedWeight

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROUNDOFF = {BF16: 2.0**-8, F16: 2.0**-10, F32: 2.0**-22, E4M3: 2.0**-3}
FAST_SUMS, SUMS = (
    2.0**-12,
    2.0**-19,
)  # of 8-bit floats that stay in the tensor core, of all others: relative to sum |a b|
FAST_TANH = 2.0**-11  # relative error of the hardware's tanh, which products of 16 bits take
SLOPE = 1.2  # of the activations below
ACTIVATIONS = (None, None, "relu", "gelu", "silu", "tanh")
LAYOUTS = ("row", "row", "turned", "pitch", "odd")
FAULTS = 20  # that a process reports before it ends

Tensors = dict[str, torch.Tensor]
Call = Callable[[Tensors], Tensors]


class Drawn(NamedTuple):
    """A drawn call.

    kind     the operator's form; `text` says the rest of it
    values   operands on the CPU, and `layouts` how each is stored
    call     results by name, from operands by name
    size     the CPU's results of operands without signs: what errors are relative to; of matrices by name
    sums     relative error of sums
    """

    kind: str
    text: str
    values: Tensors
    layouts: dict[str, str]
    call: Call
    size: Callable[[Tensors], Tensors]
    sums: float = SUMS


def placed(x: torch.Tensor, layout: str, device: str) -> torch.Tensor:
    """The values on a device, stored as the layout says. A layout may have a pitch, or an odd address.

    >>> [placed(torch.ones(4, 8), layout, "cpu").stride() for layout in ("row", "turned", "pitch", "odd")]
    [(8, 1), (1, 4), (24, 1), (8, 1)]
    """
    if x.ndim < 2 or layout == "row":
        return x.to(device, copy=True)
    if layout == "turned":
        return x.mT.contiguous().to(device).mT
    if layout == "pitch":
        wide = torch.zeros(*x.shape[:-1], x.shape[-1] + 16, dtype=x.dtype, device=device)
        found = wide[..., : x.shape[-1]]
    else:
        found = torch.zeros(x.numel() + 1, dtype=x.dtype, device=device)[1:].view(x.shape)
    return found.copy_(x)


def unsigned(values: Tensors) -> Tensors:
    """Operands without signs; integers as they are.

    >>> unsigned({"a": torch.tensor([-1.0]), "offsets": torch.tensor([0])})["a"]
    tensor([1.])
    """
    return {name: x.float().abs().to(x.dtype) if x.is_floating_point() else x for name, x in values.items()}


# ---------------------------------------------------------------------------------------------------------------- draws


def _rows(rng: random.Random) -> int:
    return rng.choice([1, 2, 7, 16, 33, 64, 100, 128, 129, 200, 256, 300, 513, rng.randint(1, 1000)])


def _wide(rng: random.Random, unit: int = 1) -> int:
    return unit * -(-rng.choice([1, 8, 24, 64, 72, 128, 136, 256, 264, 520, 1024, rng.randint(1, 1500)]) // unit)


def _normal(rng: random.Random, *shape: int, kind: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    return torch.randn(shape, generator=generator).to(kind)


def _scale(rng: random.Random, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    return torch.exp2(torch.randint(-3, 4, shape, generator=generator).float() + torch.rand(shape, generator=generator))


def _layouts(rng: random.Random, values: Tensors) -> dict[str, str]:
    return {name: rng.choice(LAYOUTS) for name in values}


def _finish(rng: random.Random, values: Tensors, n: int, experts: int = 0) -> dict[str, Any]:
    """A bias among the operands, and an activation."""
    if rng.random() < 0.3:
        shape = (experts, n) if experts and rng.random() < 0.5 else (n,)
        values["bias"] = _normal(rng, *shape, kind=rng.choice([BF16, F16, F32]))
    return {"activation": rng.choice(ACTIVATIONS)}


def draw_scaled(rng: random.Random) -> Drawn:
    """fp8 with scales of blocks, of rows or of all."""
    m, n, k = _rows(rng), _wide(rng), _wide(rng, rng.choice([1, 16, 128]))
    values = {"a": _normal(rng, m, k, kind=rng.choice([E4M3, E4M3, E5M2]))}
    values["b"] = _normal(rng, n, k, kind=rng.choice([E4M3, E4M3, E5M2])).mT
    blocks = -(-k // 128)
    recipe = rng.choice(["BlockWise128x128", "BlockWise1x128", "RowWise", "TensorWise"])
    lines = {"BlockWise128x128": (-(-n // 128), blocks), "BlockWise1x128": (n, blocks), "RowWise": (1, n)}
    values["scale_b"] = _scale(rng, *lines.get(recipe, (1,)))
    left = {"RowWise": (m, 1), "TensorWise": (1,)}.get(recipe, (m, blocks))
    values["scale_a"] = _scale(rng, *left)
    options = {
        **_finish(rng, values, n), "out_dtype": rng.choice([BF16, BF16, F16, F32]),
        "use_fast_accum": rng.random() < 0.5, "recipe_a": "BlockWise1x128" if recipe[0] == "B" else recipe,
        "recipe_b": recipe,
    }  # fmt: skip

    def call(t: Tensors) -> Tensors:
        return {"c": scaled_matmul(t["a"], t["scale_a"], t["b"], t["scale_b"], bias=t.get("bias"), **options)}

    def size(t: Tensors) -> Tensors:
        plain = {**options, "activation": None, "out_dtype": F32}
        return {"c": scaled_matmul(t["a"], t["scale_a"], t["b"], t["scale_b"], bias=t.get("bias"), **plain)}

    layouts = {**_layouts(rng, values), "b": rng.choice(["turned", "turned", "row", "odd"])}
    return Drawn("scaled", f"{m}x{n}x{k} {options}", values, layouts, call, size, FAST_SUMS)


def draw_grouped(rng: random.Random) -> Drawn:
    """Groups of rows, of columns, of K, or masked ones. Among them are fp8 groups with scales of blocks."""
    form = rng.choice(["rows", "rows", "columns", "K", "masked"])
    experts, n, k = rng.randint(1, 9), _wide(rng), _wide(rng)
    sizes = [rng.choice([0, 0, 1, 5, 64, 130, rng.randint(0, 300)]) for _ in range(experts)]
    total, most = sum(sizes), max(max(sizes), 1)
    scaled = form in ("rows", "masked") and rng.random() < 0.4
    kind = E4M3 if scaled else rng.choice([BF16, BF16, F16])
    shapes = {
        "rows": ((total, k), (experts, k, n)), "columns": ((experts, n, k), (k, total)),
        "K": ((n, total), (total, k)), "masked": ((experts, most, k), (experts, k, n)),
    }[form]  # fmt: skip
    values = {name: _normal(rng, *shape, kind=kind) for name, shape in zip("ab", shapes)}
    if scaled:
        blocks = -(-k // 128)
        values["scale_a"] = _scale(rng, *shapes[0][:-1], blocks)
        values["scale_b"] = _scale(rng, experts, -(-n // 128), blocks)
    said = "counts" if form == "masked" else rng.choice(["offsets", "offs"])
    ends = [sum(sizes[:at]) for at in range(experts + 1)]
    numbers = {"counts": sizes, "offsets": ends, "offs": ends[1:]}[said]
    values[said] = torch.tensor(numbers, dtype=rng.choice([torch.int32, torch.int64]))
    options: dict[str, Any] = {"out_dtype": rng.choice([None, F32])}
    if form in ("rows", "masked"):
        options.update(_finish(rng, values, n, experts))
    gated = form in ("rows", "masked") and not scaled and n % 2 == 0 and "bias" not in values and rng.random() < 0.3
    if gated:
        options["activation"] = rng.choice(["swiglu", "geglu"])

    def made(t: Tensors, **more: Any) -> Tensors:
        named = {name: x for name, x in t.items() if name not in "ab"}
        c = grouped_matmul(t["a"], t["b"], **named, **{**options, **more})
        if form == "masked":  # rows that do not count are unspecified
            rows = torch.arange(most, device=c.device) < t["counts"][:, None]
            c = torch.where(rows[..., None], c, 0)
        return {"c": c}

    def size(t: Tensors) -> Tensors:
        found = made(t, activation=None, out_dtype=F32)
        if gated:  # |d(silu(p) q)| <= |p dq| + 1.1 |q dp|
            gate, up = found["c"].chunk(2, -1)
            return {"c": 2.1 * gate * up}
        return found

    text = f"{form} {sizes} n {n} k {k} {kind} {said} {values[said].dtype} {options}"
    return Drawn(f"grouped, {form}", text, values, _layouts(rng, values), made, size, FAST_SUMS if scaled else SUMS)


def draw_quantized(rng: random.Random) -> Drawn:
    """Packed weights of each format, times 16-bit or float8 activations."""
    code = rng.choice(["int4", "int4", "e2m1", "int8", "e4m3", "e5m2"])
    group = rng.choice([16, 32, 64, 128, None])
    fmt = QuantizedFormat(code, group, zeros=code == "int4" and group is not None and rng.random() < 0.4)
    m, n, k = _rows(rng), _wide(rng), _wide(rng, group or 1)
    kind = rng.choice([BF16, F16, E4M3, E5M2] if not refusal(fmt) else [BF16, F16])
    weights = QuantizedWeight.quantize(_normal(rng, n, k, kind=F32), fmt, activations=packed_for(kind) or kind)
    values = {"x": _normal(rng, m, k, kind=kind)}
    if kind.itemsize == 1:
        values["scale_x"] = _scale(rng, rng.choice([m, 1]), 1)
    options = {**_finish(rng, values, n), "out_dtype": rng.choice([None, F32])}

    def call(t: Tensors) -> Tensors:
        given = {"scale_x": t.get("scale_x"), "bias": t.get("bias"), **options}
        return {"c": quantized_matmul(t["x"], weights.to(t["x"].device), **given)}

    def size(t: Tensors) -> Tensors:
        c = t["x"].float() @ weights.dense().abs().T * t.get("scale_x", torch.ones(()))
        return {"c": c + t.get("bias", torch.zeros(())).float()}

    text = f"{fmt} {m}x{n}x{k} {kind} {options}"
    sums = FAST_SUMS if kind.itemsize == 1 else SUMS
    return Drawn("quantized", text, values, _layouts(rng, values), call, size, sums)


def _operands(rng: random.Random) -> tuple[tuple[int, int, int], Tensors, dict[str, str]]:
    m, n, k = _rows(rng), _wide(rng), _wide(rng)
    kind = rng.choice([BF16, BF16, F16])
    values = {"a": _normal(rng, m, k, kind=kind), "b": _normal(rng, k, n, kind=kind)}
    return (m, n, k), values, _layouts(rng, values)


def _product_size(t: Tensors) -> Tensors:
    return {"c": t["a"].float() @ t["b"].float() + t.get("bias", torch.zeros(())).float()}


def draw_reduced(rng: random.Random) -> Drawn:
    """Reductions of rows and columns behind a bias and an activation, with C or without."""
    (m, n, k), values, layouts = _operands(rng)
    steps: list[Any] = []
    if rng.random() < 0.4:
        values["bias"] = _normal(rng, n, kind=F32)
        steps.append(Bias("n", "f32"))
    if name := rng.choice(ACTIVATIONS):
        steps.append(Activation(name))
    operation, rows = rng.choice(["sum", "max", "min", "amax", "log_sum_exp"]), rng.random() < 0.6
    steps.append((RowReduce if rows else ColumnReduce)(operation, "r"))
    epilogue = Epilogue(*steps, stores_c=rng.random() < 0.5)

    def call(t: Tensors) -> Tensors:
        r = torch.empty(m if rows else n, device=t["a"].device)
        given = {"r": r, **({"bias": t["bias"]} if "bias" in t else {})}
        c = matmul(t["a"], t["b"], epilogue=epilogue, given=given)
        return {"c": c, "r": r} if epilogue.stores_c else {"r": r}

    def size(t: Tensors) -> Tensors:
        c = _product_size(t)["c"]
        along = 1 if rows else 0
        sizes = {"c": c, "r": c.sum(along) if operation == "sum" else c.amax(along) + 1}
        coarse = FAST_TANH / SUMS * (name == "tanh") + 8 * (
            operation == "log_sum_exp"
        )  # of exp2 and log2 of the hardware
        return {key: value * (1 + coarse) for key, value in sizes.items()}

    return Drawn("reduced", f"{m}x{n}x{k} {epilogue}", values, layouts, call, size)


def draw_quantised_output(rng: random.Random) -> Drawn:
    """fp8 values with a scale for each 128 columns, compared as numbers."""
    (m, n, k), values, layouts = _operands(rng)

    def call(t: Tensors) -> Tensors:
        scales = torch.empty(m, -(-n // 128), device=t["a"].device)
        c = matmul(t["a"], t["b"], epilogue=Epilogue(Quantize()), given={"scales": scales}, out_dtype=E4M3)
        wide = scales.repeat_interleave(128, dim=1)[:, :n]
        return {"c": c.float() * wide, "scales": scales}

    def size(t: Tensors) -> Tensors:
        c = _product_size(t)["c"]
        most = torch.stack([part.amax(1) for part in c.split(128, dim=1)], 1)
        return {"c": most.repeat_interleave(128, dim=1)[:, :n] * 2.0**10, "scales": most}  # half a step of e4m3's least

    return Drawn("quantised output", f"{m}x{n}x{k} {values['a'].dtype}", values, layouts, call, size)


def draw_ordered(rng: random.Random) -> Drawn:
    """Orders of tiles; those of some tiles leave the others as they were."""
    (m, n, k), values, layouts = _operands(rng)
    order = rng.choice(["columns", "rows", "grouped", "snake", "hilbert", "lower", "upper", "symmetric"])
    if order == "symmetric":
        n, values["b"] = m, values["a"].mT
    part = {"lower": torch.tril, "upper": torch.triu}.get(order, lambda x: x)

    def call(t: Tensors) -> Tensors:
        right = t["a"].mT if order == "symmetric" else t["b"]
        return {"c": part(matmul(t["a"], right, order=order))}

    return Drawn("ordered", f"{order} {m}x{n}x{k}", values, layouts, call, _product_size)


def draw_combined(rng: random.Random) -> Drawn:
    """A function of the products with several matrices, or the sum of two pairs."""
    (m, n, k), values, layouts = _operands(rng)
    kind = values["a"].dtype
    if rng.random() < 0.5:
        rank = rng.choice([8, 16, 64, 100])
        values |= {"a2": _normal(rng, m, rank, kind=kind), "b2": _normal(rng, rank, n, kind=kind)}

        def call(t: Tensors) -> Tensors:
            return {"c": matmul((t["a"], t["a2"]), (t["b"], t["b2"]))}

        def size(t: Tensors) -> Tensors:
            return {"c": _product_size(t)["c"] + t["a2"].float() @ t["b2"].float()}

        return Drawn("pair", f"{m}x{n}x{k} and {rank}", values, layouts | _layouts(rng, values), call, size)
    values["b2"] = _normal(rng, k, n, kind=kind)

    def gated(t: Tensors) -> Tensors:
        return {"c": matmul(t["a"], (t["b"], t["b2"]), combine=lambda p, q, ops: ops.sigmoid(p) * q)}

    def gated_size(t: Tensors) -> Tensors:
        gate, other = (t["a"].float() @ t[name].float() for name in ("b", "b2"))
        return {"c": other + gate * other / 4}  # |d(sigmoid(p) q)| <= |dq| + |q dp| / 4

    return Drawn("combined", f"{m}x{n}x{k}", values, layouts | {"b2": layouts["b"]}, gated, gated_size)


DRAWS: dict[str, Callable[[random.Random], Drawn]] = {
    "scaled": draw_scaled,
    "grouped": draw_grouped,
    "quantized": draw_quantized,
    "reduced": draw_reduced,
    "quantised output": draw_quantised_output,
    "ordered": draw_ordered,
    "combined": draw_combined,
}

# -------------------------------------------------------------------------------------------------------------- running


def fault(drawn: Drawn, device: str) -> str:
    """The first fault of a drawn call on a device, or ""."""
    want = drawn.call({name: placed(x, "row", "cpu") for name, x in drawn.values.items()})
    size = drawn.size({name: placed(x, "row", "cpu") for name, x in unsigned(drawn.values).items()})
    operands = {name: placed(x, drawn.layouts[name] if name in drawn.layouts else "row", device)
                for name, x in drawn.values.items()}  # fmt: skip
    got = drawn.call(operands)
    again = drawn.call(operands)
    for name, exact in want.items():
        value, reference = got[name].cpu().double(), exact.double()
        if value.shape != reference.shape or got[name].dtype != exact.dtype:
            return f"{name} is {got[name].dtype} {list(value.shape)}, not {exact.dtype} {list(reference.shape)}"
        bound = 2 * ROUNDOFF[exact.dtype] * reference.abs() + SLOPE * drawn.sums * size[name].double() + 1e-6
        if drawn.kind == "quantised output" and name == "c":
            bound = bound + 2 * ROUNDOFF[E4M3] * reference.abs()
        wrong = ~((value - reference).abs() <= bound)
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            here = f"{value[at]:.6g}, not {reference[at]:.6g} +- {bound[at]:.2g}"
            return f"{int(wrong.sum())} of {wrong.numel()} elements of {name} are wrong; at {at}: {here}"
        if not torch.equal(got[name].float().nan_to_num(), again[name].float().nan_to_num()):
            return f"{name}: a second call gave other bits"
    for name, x in drawn.values.items():
        if not torch.equal(operands[name].cpu().float(), x.float()):
            return f"{name} has changed"
    return ""


class Report(NamedTuple):
    """Calls by kind, refusals by their text, and the faults of a process."""

    calls: Counter[str]
    refused: Counter[str]
    faults: list[str]


def soak(seed: int, device: str, seconds: float, calls: int, kinds: Sequence[str]) -> Report:
    """Draw and compare until the time or the calls are spent. The same seed draws the same calls."""
    end = time.monotonic() + seconds
    report = Report(Counter(), Counter(), [])
    for number in range(calls):
        if time.monotonic() > end or len(report.faults) >= FAULTS:
            break
        rng = random.Random(f"{seed} {number}")
        drawn = DRAWS[kinds[number % len(kinds)]](rng)
        try:
            found = fault(drawn, device)
        except LayoutError as error:
            report.refused[f"{drawn.kind}: {str(error)[:160]}"] += 1
            continue
        except Exception as error:  # whatever else a call raises is a fault of it
            found = f"{type(error).__name__}: {str(error)[:300]}"
        report.calls[drawn.kind] += 1
        if found:
            report.faults.append(f"seed {seed} call {number} {drawn.kind} {drawn.text} {drawn.layouts}: {found}")
            if "CUDA error" in found:
                break
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a fault, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--calls", type=int, default=1_000_000, help="at most, of each process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=tuple(DRAWS), default=tuple(DRAWS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if options.device != "cpu" and (status := needs.refused(needs.no_gpu())):
        return status
    started = time.time()
    work = [
        (options.seed * 1000 + at, options.device, options.seconds, options.calls, options.kinds)
        for at in range(options.processes)
    ]
    if options.processes == 1:
        reports = [soak(*work[0])]
    else:
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            reports = pool.starmap(soak, work)
    calls = sum((r.calls for r in reports), Counter[str]())
    refused = sum((r.refused for r in reports), Counter[str]())
    faults = [text for r in reports for text in r.faults]
    for text, count in refused.most_common(30):
        print(f"refused {count:4d}  {text}")
    for text in faults[:40]:
        print(f"FAULT {text}")
    taken = time.time() - started
    print(
        f"{sum(calls.values())} calls in {taken:.0f} s, {len(faults)} faults, {sum(refused.values())} refused: {calls}"
    )
    if options.json:
        from layoutgemm.bench import machine

        facts = {} if options.device == "cpu" else machine.facts()
        found = {"machine": facts, "calls": calls, "refused": refused, "faults": faults, "seconds": round(taken, 1)}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
