"""Random calls of every entry point that takes tensors: operands of any kind, layout, device and type, good and bad.

`faults(seed, count)` draws calls and lists what went wrong. A result may be further from float64 than the types'
rounding. An error may not be the library's. A refused call may have written its output.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

import layoutgemm
import layoutgemm.torch_op.api  # makes the operators
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.epilogue.chain import Activation, Aux, Bias, Epilogue, Residual, Scale

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
E4M3, E5M2, I8, U8, I32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.int32
KINDS = (BF16, F16, F32, E4M3, E5M2, I8, U8)
ANY = (*KINDS, F64, I32, torch.int64, torch.int16, torch.bool, torch.complex64)
STRANGE: tuple[Any, ...] = (5, None, "x", [1.0], 2.5, True, object, {}, (1, 2), b"x", 10**400)
ACTIVATIONS = (None, "relu", "gelu", "silu", "tanh", "swiglu", "geglu", "RELU", ["relu"], 3, {}, "")
TEXTS = ("{{{", "[1]", "null", "3", '{"config": {}}', '{"swapped": 0, "config": {"tile": "x"}}', "[" * 5000, "\x00")


class Draw:
    """Tensors and other operands of one seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def tensor(self, shape: tuple[int, ...], kind: Any) -> Any:
        """Small whole numbers; of any strides, sometimes with a bit of torch's, sparse, nested, or elsewhere."""
        wide = tuple(n * self.random.choice((1, 1, 1, 2)) + self.random.choice((0, 0, 3)) for n in shape)
        order = list(range(len(shape)))
        self.random.shuffle(order)
        low = 0 if kind in (U8, torch.bool) else -3
        base = torch.randint(low, 4, [wide[i] for i in order], generator=self.generator).to(kind)
        x = base.permute([order.index(i) for i in range(len(shape))])
        x = x[tuple([slice(None, None, 2) if w >= 2 * n > 2 and self.chance(0.5) else slice(0, n) for w, n in
                     zip(wide, shape, strict=True)])][tuple([slice(0, n) for n in shape])]  # fmt: skip
        if shape and self.chance(0.08):
            x = x[:1].expand(shape) if shape[0] else x
        if kind not in (torch.bool, torch.complex64) and not kind.itemsize == 1 and self.chance(0.12):
            x = torch._neg_view(x)
        if self.chance(0.05) and kind.is_floating_point:
            x = x.detach().requires_grad_()
        if self.chance(0.02):
            x = x.to("meta")
        if self.chance(0.02) and x.ndim == 2 and kind in (F32, F64) and x.device.type == "cpu":
            x = self.random.choice((x.to_sparse, x.to_sparse_csr))()
        if self.chance(0.02) and x.ndim and _plain(x) and kind in (F32, BF16) and not x.is_neg():
            layout = self.random.choice((torch.strided, torch.jagged)) if x.ndim > 1 else torch.strided
            x = torch.nested.nested_tensor([x, x], layout=layout)
        return x

    def kind(self) -> Any:
        return self.random.choice(KINDS if self.chance(0.95) else ANY)

    def one(self, good: Any, share: float = 0.06) -> Any:
        """The operand, or sometimes something else."""
        return self.random.choice(STRANGE) if self.chance(share) else good

    def sizes(self) -> tuple[int, int, int]:
        m, n, k = (self.random.choice((0, 1, 2, 3, 5, 8, 16)) if self.chance(0.9) else 33 for _ in range(3))
        return m, n, k


def plain(x: Any) -> Any:
    """A tensor's values in float64."""
    return x.detach().resolve_neg().to(F64)


def difference(got: Any, want: Any, kind: Any, size: Any) -> str:
    """Why a result is not `want` rounded to its type, or ""; `size` bounds the magnitudes that were added."""
    if got.dtype != kind or got.shape != want.shape:
        return f"{got.dtype} {list(got.shape)}, not {kind} {list(want.shape)}"
    if got.device.type == "meta":
        return ""
    step = {BF16: 2.0**-8, F16: 2.0**-11, E4M3: 2.0**-4, E5M2: 2.0**-3, F32: 2.0**-24}.get(kind, 0.0)
    if kind.is_floating_point:
        want = want.clamp(-torch.finfo(kind).max, torch.finfo(kind).max) if kind.itemsize == 1 else want
    bound = step * want.abs() + 2.0**-20 * size + (2.0**-10 if step else 0)
    off = (plain(got) - want).abs()
    same = (plain(got) == want) | (plain(got).isnan() & want.isnan())
    bad = ~((off <= bound) | same | (plain(got).isinf() & (want.abs() > 60000)))
    if not bad.any():
        return ""
    return f"off by {float(off[bad][0])} at {bad.nonzero()[0].tolist()}, {float(want[bad][0])} is right"


ACTS = {
    None: lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
}  # fmt: skip
GATES = {"swiglu": "silu", "geglu": "gelu"}


def gated(want: Any, size: Any, activation: str) -> tuple[Any, Any]:
    """The gated product of sums, and a bound of the magnitudes that were multiplied."""
    half = want.shape[-1] // 2
    made = ACTS[GATES[activation]](want[..., :half]) * want[..., half:]
    return made, size.square().amax() if size.numel() else size.sum()


def product(draw: Draw) -> tuple[Callable[[], Any], Callable[[Any], str], list[Any]]:
    """A call of matmul or gemm, the check of its answer, and tensors that stay."""
    m, n, k = draw.sizes()
    kind = draw.kind()
    other = kind if draw.chance(0.93) else draw.kind()
    batch = draw.random.choice(((), (), (), (2,), (2, 3)))
    a = draw.tensor((*batch, m, k) if draw.chance(0.9) else (k,), kind)
    shapes = ((k, n), (k, n), (*batch, k, n), (k,)) if draw.chance(0.96) else ((k + 1, n),)
    b = draw.tensor(draw.random.choice(shapes), other)
    a, b = draw.one(a, 0.02), draw.one(b, 0.02)
    out_dtype = None if draw.chance(0.6) else draw.random.choice((*ANY, 5, "f32"))
    options: dict[str, Any] = {"allow_tf32": True if draw.chance(0.95) else None}
    default = {E4M3: BF16, E5M2: BF16, I8: I32, U8: I32}
    stored = out_dtype if isinstance(out_dtype, torch.dtype) else default.get(kind, kind)
    rows = () if isinstance(a, torch.Tensor) and not a.is_nested and a.ndim == 1 else (*batch, m)
    written: list[Any] = []
    if draw.chance(0.35):
        usable = stored if draw.chance(0.95) else draw.kind()
        out = draw.tensor((*rows, n), usable) if draw.chance(0.8) else a
        options["out"] = draw.one(out)
    if draw.chance(0.4):
        return _gemm(draw, a, b, options, (*rows, n), default.get(kind, kind))
    options["out_dtype"] = out_dtype
    if draw.chance(0.4):
        options["bias"] = draw.one(draw.tensor((n,), F32 if draw.chance(0.6) else draw.random.choice(ANY)))
        if draw.chance(0.1) and isinstance(options.get("out"), torch.Tensor) and options["out"].layout == torch.strided:
            options["bias"] = options["out"] if options["out"].is_nested else options["out"][..., :]
    if draw.chance(0.4):
        options["activation"] = draw.random.choice(ACTIVATIONS)
    if draw.chance(0.05):
        options["config"] = draw.random.choice(STRANGE)
    written += [options.get("out")]

    def right(got: Any) -> str:
        activation, bias = options.get("activation"), options.get("bias")
        want, size = plain(a) @ plain(b), plain(a).abs() @ plain(b).abs()
        if bias is not None:
            want, size = want + plain(bias), size + plain(bias).abs()
        want, size = gated(want, size, activation) if activation in GATES else (ACTS[activation](want), size)
        return difference(got, want, stored, size)

    return lambda: layoutgemm.matmul(a, b, **options), right, written


def _gemm(draw: Draw, a: Any, b: Any, options: dict[str, Any], shape: Any, usual: Any) -> Any:
    scalars = (1, 2.0, -0.5, 0, 3, torch.tensor(2.0), torch.tensor(2), 1e39, 2**40, float("nan"), *STRANGE)
    alpha = draw.random.choice(scalars[:7] if draw.chance(0.85) else scalars)
    beta = draw.random.choice(scalars[:7] if draw.chance(0.85) else scalars)
    c = None
    if draw.chance(0.7):
        kind = usual if draw.chance(0.8) else draw.random.choice(ANY)
        c = draw.one(draw.tensor(shape if draw.chance(0.8) else shape[-1:], kind))
        if draw.chance(0.2) and options.get("out") is not None:
            c = options["out"]
    if isinstance(c, torch.Tensor) and c is options.get("out") and c.device.type == "cpu" and c.layout == torch.strided:
        before = c.clone() if not c.is_nested else c
    else:
        before = c

    def right(got: Any) -> str:
        one, two = (float(x) for x in (alpha, beta))
        want, size = one * (plain(a) @ plain(b)), abs(one) * (plain(a).abs() @ plain(b).abs())
        if c is not None and two != 0:
            want, size = want + two * plain(before), size + abs(two) * plain(before).abs()
        return difference(got, want, usual if c is None else c.dtype, size)

    return lambda: layoutgemm.gemm(alpha, a, b, beta, c, **_without(options)), right, [options.get("out")]


def _without(options: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in options.items() if name in ("out", "allow_tf32")}


def epilogue(draw: Draw) -> Any:
    """matmul with an epilogue."""
    m, n, k = (max(1, size) for size in draw.sizes())
    a, b = draw.tensor((m, k), BF16), draw.tensor((k, n), BF16)
    given = {
        "alpha": draw.one(2.0), "d": draw.one(draw.tensor((m, n), BF16)), "beta": draw.one(1.5),
        "bias": draw.one(draw.tensor((n,), F32)), "aux": draw.one(draw.tensor((m, n), BF16)),
    }  # fmt: skip
    options = {"out": draw.one(draw.tensor((m, n), F32))} if draw.chance(0.4) else {}
    if draw.chance(0.2):
        given["aux"] = draw.random.choice((a, b, given["d"], given["bias"], options.get("out")))
    steps = Epilogue(Scale(), Residual(), Bias(), Aux(), Activation("relu"))

    def right(got: Any) -> str:
        alpha, beta = (float(given[name]) for name in ("alpha", "beta"))
        want = alpha * (plain(a) @ plain(b)) + beta * plain(given["d"]) + plain(given["bias"])
        size = torch.tensor(1.0).double() * 50 * k + 50
        return difference(given["aux"], want, BF16, size) or difference(got, want.relu(), F32, size)

    call = lambda: layoutgemm.matmul(a, b, epilogue=steps, given=given, out_dtype=F32, **options)  # noqa: E731
    return call, right, [options.get("out"), given["aux"]]


RECIPES = ("BlockWise1x128", "BlockWise128x128", "RowWise", "TensorWise")


def _scales(draw: Draw, recipe: str, side: str, size: int, k: int) -> tuple[Any, Callable[[Any], Any]]:
    """Scales of an operand, and how they spread over it."""
    blocks = -(-k // 128)
    shapes = {
        "BlockWise1x128": [(size, blocks)], "BlockWise128x128": [(-(-size // 128), blocks)],
        "RowWise": [(size, 1), (size,)] + [(1, size)] * (side == "b"), "TensorWise": [(), (1,), (1, 1)],
    }[recipe]  # fmt: skip
    shape = draw.random.choice(shapes) if draw.chance(0.96) else (size + 1, blocks)

    def spread(x: Any) -> Any:
        x = plain(x)
        if recipe == "TensorWise":
            return x.reshape(1, 1)
        if recipe == "RowWise":
            return x.reshape(-1, 1)
        rows = x if recipe == "BlockWise1x128" else x.repeat_interleave(128, 0)[:size]
        return rows.repeat_interleave(128, 1)[:, :k]

    return draw.one(draw.tensor(shape, F32 if draw.chance(0.96) else draw.kind())), spread


def scaled(draw: Draw) -> Any:
    """scaled_matmul."""
    m, n, k = draw.sizes()
    k = draw.random.choice((k, k, 130, 300))
    a, b = draw.one(draw.tensor((m, k), E4M3), 0.02), draw.one(draw.tensor((k, n), E5M2), 0.02)
    family = RECIPES[:2] if draw.chance(0.5) else RECIPES[2:]
    names = [draw.random.choice(family if draw.chance(0.95) else RECIPES) for _ in "ab"]
    (sa, of_a), (sb, of_b) = (_scales(draw, name, side, x, k) for name, side, x in zip(names, "ab", (m, n)))
    sb = sb if draw.chance(0.7) else None
    kind = draw.random.choice((BF16, F32, BF16, F16, I8, 5))
    options: dict[str, Any] = {"out_dtype": kind, "config": draw.one(None, 0.03)}
    if draw.chance(0.4) and isinstance(kind, torch.dtype):
        options["out"] = draw.one(draw.tensor((m, n), kind))
        if draw.chance(0.2):
            options["out"] = draw.random.choice((a, b, sa, sb))
    if draw.chance(0.3):
        options["bias"] = draw.one(draw.tensor((n,), F32 if draw.chance(0.8) else draw.random.choice(ANY)))
    if draw.chance(0.3):
        options["activation"] = draw.random.choice(ACTIVATIONS)
    if draw.chance(0.3):
        options["use_fast_accum"] = draw.chance(0.5)
    said = True
    for place, key in enumerate(("recipe_a", "recipe_b")):
        if draw.chance(0.3):
            options[key] = draw.one(names[place] if draw.chance(0.9) else draw.random.choice(RECIPES))
            said = said and options[key] in (None, names[place])

    def right(got: Any) -> str:
        if not said:  # a shape of two recipes
            return ""
        left = plain(a) * of_a(sa)
        other = plain(b) if sb is None else plain(b) * of_b(sb).T
        bias, want, size = options.get("bias"), left @ other, left.abs() @ other.abs()
        if bias is not None:
            want, size = want + plain(bias), size + plain(bias).abs()
        activation = options.get("activation")
        want, size = gated(want, size, activation) if activation in GATES else (ACTS[activation](want), size)
        return difference(got, want, kind, size)

    return lambda: layoutgemm.scaled_matmul(a, sa, b, sb, **options), right, [options.get("out")]


def grouped(draw: Draw) -> Any:
    """grouped_matmul in all its forms."""
    m, n, k = draw.sizes()
    experts = draw.random.choice((0, 1, 2, 3))
    kind = draw.random.choice((BF16, F16, F16, draw.kind()))
    form = draw.random.choice(("rows", "rows", "columns", "k", "batch", "counts"))
    size = {"rows": m, "columns": n, "k": k}.get(form, m)
    shapes = {
        "rows": ((m, k), (experts, k, n)), "columns": ((experts, m, k), (k, n)), "k": ((m, k), (k, n)),
    }.get(form, ((experts, m, k), (experts, k, n)))  # fmt: skip
    a, b = (draw.one(draw.tensor(shape, kind), 0.02) for shape in shapes)
    ends = sorted(draw.random.randint(0, size) for _ in range(experts))
    said = draw.random.choice(("offsets", "offs")) if form not in ("batch", "counts") else form
    values = {"offsets": [0, *ends[:-1], size] if experts else [0], "offs": ends, "batch": []}.get(said, ends[::-1])
    if draw.chance(0.1):
        values = [draw.random.choice((x, x, -1, size + 1, 2**31 - 1)) for x in values]
    groups = torch.tensor(values, dtype=draw.random.choice((I32, torch.int64)))
    if draw.chance(0.1):
        groups = draw.one(torch._neg_view(-groups), 0.5)
    front = (experts,) if form in ("k", "batch", "counts") else ()
    stored = BF16 if kind in (E4M3, E5M2) else kind
    out = draw.one(draw.tensor((*front, m, n), stored)) if draw.chance(0.4) else None
    if out is not None and draw.chance(0.2):
        out = draw.random.choice((a, b, groups))
    before = out.detach().clone() if isinstance(out, torch.Tensor) and _plain(out) else None
    given = {} if form == "batch" else {said: groups}
    bias = None
    if draw.chance(0.3):
        bias = draw.one(draw.tensor((n,) if draw.chance(0.5) else (experts, n), F32))
        given["bias"] = bias

    def right(got: Any) -> str:
        whole = form == "batch" or groups is None
        x, y, at = plain(a), plain(b), [] if whole else plain(groups).long().tolist()
        want = torch.zeros(*front, m, n, dtype=F64) if before is None else plain(before)
        steps = list(zip([0, *at], at)) if said == "offs" else list(pairwise(at))
        for e in range(experts):
            if whole:
                want[e] = x[e] @ y[e]
            elif form == "counts":
                want[e, : at[e]] = x[e, : at[e]] @ y[e]
            elif form == "k":
                want[e] = x[:, slice(*steps[e])] @ y[slice(*steps[e])]
            elif form == "rows":
                want[slice(*steps[e])] = x[slice(*steps[e])] @ y[e]
            else:
                want[:, slice(*steps[e])] = x[e] @ y[:, slice(*steps[e])]
            if bias is not None:
                part = slice(*steps[e]) if form == "rows" else e if whole else (e, slice(0, at[e]))
                want[part] += plain(bias)[e] if bias.ndim == 2 else plain(bias)
        return difference(got, want, stored, want.abs().sum() + 20 * k + 10)

    return lambda: layoutgemm.grouped_matmul(a, b, **given, out=out), right, [out]


def raw(draw: Draw) -> Any:
    """The operators by name. torch checks types of arguments itself, and says so in its own words."""
    m, n, k = draw.sizes()
    kind = draw.kind()
    a = draw.tensor((m, k) if draw.chance(0.93) else (k,), kind)
    b = draw.tensor((k, n) if draw.chance(0.93) else (k,), kind if draw.chance(0.9) else draw.kind())
    asked = None if draw.chance(0.6) else draw.random.choice(ANY)
    config = "" if draw.chance(0.85) else draw.random.choice(TEXTS)
    stored = asked or {E4M3: BF16, E5M2: BF16, I8: I32, U8: I32}.get(kind, kind)
    if draw.chance(0.3):
        gate = draw.random.choice(("swiglu", "geglu", "relu", ""))

        def gated(got: Any) -> str:
            want = plain(a) @ plain(b)
            half = want.shape[-1] // 2
            size = (plain(a).abs() @ plain(b).abs()).square().sum()
            return difference(got, ACTS[GATES[gate]](want[:, :half]) * want[:, half:], stored, size)

        return lambda: torch.ops.layoutgemm.gated(a, b, gate, stored, config, True), gated, []
    if draw.chance(0.3):
        return _raw_variant(draw, config)
    right = lambda got: difference(got, plain(a) @ plain(b), stored, plain(a).abs() @ plain(b).abs())  # noqa: E731
    leave = draw.random.choice((True, True, True, None))
    return lambda: torch.ops.layoutgemm.matmul(a, b, asked, config, leave), right, []


def _raw_variant(draw: Draw, config: str) -> Any:
    """The operators of scaled and grouped products: answered or refused for any arguments."""
    kinds = (E4M3, E4M3, E5M2, BF16)
    a, b = (draw.tensor(draw.random.choice(((4, 4), (4, 4), (2, 4, 4), (4,))), draw.random.choice(kinds)) for _ in "ab")
    scales = [draw.tensor(draw.random.choice(((4, 1), (1,), (1, 4), (2, 4, 1), ())), F32) for _ in "ab"]
    names = [draw.random.choice(("", "", *RECIPES, "x")) for _ in "ab"]
    if draw.chance(0.5):
        bias = draw.tensor((4,), F32) if draw.chance(0.3) else None
        given = a, scales[0], b, scales[1], bias, draw.random.choice((None, "relu", "")), F32, *names, True, config
        return lambda: torch.ops.layoutgemm.scaled_matmul(*given), lambda got: "", []
    groups = torch.tensor(draw.random.choice(([0, 4], [0, 2, 4], [4, 4], [4], [1, 9], [])), dtype=I32)
    said = draw.random.choice(("offsets", "offs", "counts", ""))
    more = (*scales, None, *names) if draw.chance(0.4) else (None, None, None, "", "")
    return lambda: torch.ops.layoutgemm.grouped_matmul(a, b, groups, said, *more, config), lambda got: "", []


_PLANS: dict[Any, Any] = {}


def plan(draw: Draw) -> Any:
    """plan.run of three kinds of plans, in the NumPy executor."""
    key = draw.random.choice(("gemm", "sm80", "sm90"))
    if key not in _PLANS:
        sizes = 5, 8, 16
        _PLANS[key] = {
            "gemm": lambda: layoutgemm.kernels.TeachingPlan.derive(*sizes),
            "sm80": lambda: layoutgemm.Sm80Plan.derive(*sizes),
            "sm90": lambda: layoutgemm.Sm90Plan.derive(*sizes, config=layoutgemm.Sm90Config((64, 64), consumers=1)),
        }[key]()  # fmt: skip
    found = _PLANS[key]
    kind = {"f32": F32, "bf16": BF16, "f16": F16}[found.c.dtype.name]
    a, b = draw.one(draw.tensor((5, 16), BF16)), draw.one(draw.tensor((16, 8), BF16))
    out = draw.one(draw.tensor((5, 8), kind)) if draw.chance(0.5) else None
    if out is not None and draw.chance(0.2):
        out = draw.random.choice((a, b))
    right = lambda got: difference(got.c, plain(a) @ plain(b), kind, plain(a).abs() @ plain(b).abs())  # noqa: E731
    return lambda: found.run(a, b, out=out, device="reference"), right, [out]


ENTRIES = (product, product, product, epilogue, scaled, grouped, raw, plan)
# What torch says of an operator's arguments before the operator is called, and of tensors that it cannot pass on.
OF_TORCH = ("layoutgemm::", "Expected a value of type", "expected at most")


def faults(seed: int, count: int, tally: dict[str, int] | None = None) -> Iterator[str]:
    """The faults of so many calls; `tally` counts answers and refusals."""
    for number in range(count):
        draw = Draw(seed * 1_000_003 + number)
        entry = draw.random.choice(ENTRIES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call, right, written = entry(draw)
            kept = [(x, x.detach().clone()) for x in written if isinstance(x, torch.Tensor) and _plain(x)]
            said = f"seed {seed}, call {number} ({entry.__name__})"
            try:
                got = call()
            except LayoutError:
                if tally is not None:
                    tally["refused"] = tally.get("refused", 0) + 1
                if not all(torch.equal(plain(x), plain(before)) for x, before in kept):
                    yield f"{said}: refused, and an output was written"
                continue
            except Exception as error:
                if not (entry is raw and any(x in str(error) for x in OF_TORCH)):
                    yield f"{said}: {type(error).__name__}: {str(error)[:200]}"
                continue
            if tally is not None:
                tally["answered"] = tally.get("answered", 0) + 1
            if (got.c if entry is plan else got).device.type != "meta" and (why := right(got)):
                yield f"{said}: {why}"


def _plain(x: Any) -> bool:
    return x.layout == torch.strided and not x.is_nested and x.device.type == "cpu"
