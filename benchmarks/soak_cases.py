"""Random products for the soak: sizes, types, strides, batches and outputs, reproducible by number.

`soak_forms` has gated, scaled and grouped products and user epilogues.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks import soak_forms
from layoutgemm import Sm90Config
from layoutgemm.dtypes import dtype
from layoutgemm.kernels.compile.worker import Kernel
from layoutgemm.kernels.run.error_bound import rounded_error, sum_error
from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy
from layoutgemm.torch_op.prepared import choice_of, problem_of
from layoutgemm.torch_op.problem import contiguous_strides, shapes_of
from layoutgemm.torch_op.solver import solve
from layoutgemm.torch_op.types import C_NAMES, NAMES

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)
LAYOUTS = ("row", "col", "wide", "steps", "odd", "off", "far")
OUTS = ("none", "none", "inside", "turned", "odd", "scattered", "off")
CONFIGS = (
    None, None, None,
    Sm90Config((128, 128), consumers=2, loader="warpgroup", schedule="pingpong"),
    Sm90Config((64, 64), consumers=1, loader="warp"),
    Sm90Config((256, 128), cluster=(2, 1)),
    Sm90Config((128, 256), cluster=(1, 2)),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One product.

    sizes     m, n, k; batches of A and of B; None in place of m or n for a vector
    layouts   of A and B: "wide" within a wider matrix, "steps" every second row, "odd" an odd pitch, "off" off 16
              bytes, "far" with the batch between the lines
    out       the output: new, or "inside" a larger matrix, ...
    integers  small integers with exact sums; else normal values within the error bound
    finish    with a bias and relu
    form      "plain", or one of `soak_forms` and which of its kind: "gated 0", "own 2"; n counts columns of b
    """

    number: int
    sizes: tuple[int, int, int]
    batches: tuple[tuple[int, ...], tuple[int, ...]]
    vectors: tuple[bool, bool]
    types: tuple[Any, Any, Any]
    layouts: tuple[str, str]
    out: str
    config: Any
    integers: bool
    finish: bool
    form: str = "plain"

    def __str__(self) -> str:
        m, n, k = self.sizes
        kinds = " ".join(str(kind).removeprefix("torch.") for kind in self.types)
        text = f"case {self.number}: {m}x{n}x{k} {self.batches} {self.vectors} {kinds} {self.layouts} out {self.out}"
        return text + f" {self.form}" * (self.form != "plain")


def draw(number: int, seed: int, kinds: tuple[Any, ...] = (BF16, F16, *EIGHT)) -> Case:
    """The case of that number."""
    rng = random.Random(seed * 1_000_003 + number)

    def size(most: int) -> int:
        if rng.random() < 0.02:
            return rng.choice((0, 1, 1, 2))
        unit = rng.choice((1, 8, 8, 64))
        return max(1, round(math.exp(rng.uniform(0, math.log(most / unit)))) * unit)

    most = 3000 if rng.random() < 0.1 else 600
    m, n, k = size(most), size(most), size(min(most, 1500))
    kind = rng.choice(kinds)
    mixed = next((kinds for kinds in (EIGHT, (torch.int8, torch.uint8)) if kind in kinds), (kind,))
    types = (kind, rng.choice(mixed))
    integers = rng.random() < 0.5
    outs = {torch.int8: (torch.int32, torch.int32, F32), F32: (F32, BF16)}.get(kind, (BF16, F16, F32))
    out_type = rng.choice(outs)
    front: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    if rng.random() < 0.35:
        full = tuple(rng.choice((2, 3, 5)) for _ in range(rng.choice((1, 1, 2))))
        kept = [tuple(x if rng.random() < 0.7 else 1 for x in full)[rng.choice((0, 0, len(full))) :] for _ in range(2)]
        front = (kept[0], kept[1])
    vectors = (rng.random() < 0.04 and not front[0], rng.random() < 0.04 and not front[1])
    m, n = (1 if vectors[0] else m), (1 if vectors[1] else n)
    finish = rng.random() < 0.08 and kind in (BF16, F16) and not vectors[1]
    case = Case(
        number, (m, n, k), front, vectors, (*types, out_type), (rng.choice(LAYOUTS), rng.choice(LAYOUTS)),
        rng.choice(OUTS), rng.choice(CONFIGS) if kind in (BF16, F16) else None, integers, finish,
    )  # fmt: skip
    form = soak_forms.draw_form(rng, kind)
    return case if form == "plain" else _formed(case, form, rng)


def _formed(case: Case, form: str, rng: random.Random) -> Case:
    """The case restricted to the options of that form."""
    (m, n, k), (kind, other, out_type), name = case.sizes, case.types, form.split()[0]
    a, b = case.layouts
    case = replace(case, form=form, finish=False, vectors=(False, False))
    if kind in (BF16, F16) and rng.random() < 0.6:  # one of few kernels, rather than the size's own
        case = replace(case, config=rng.choice(CONFIGS[3:]))
    if name == "own":
        return replace(case, types=(kind, other, out_type if out_type.is_floating_point else F32))
    if name == "gated":  # a product of two sums is beyond float16 now and then; weights are mostly K-major
        b = "col" if rng.random() < 0.6 else b
        return replace(case, sizes=(m, n + n % 2, k), types=(kind, other, rng.choice((BF16, F32))), layouts=(a, b))
    case = replace(case, types=(kind, kind, BF16 if rng.random() < 0.7 else F32), out="none", config=None)
    if name == "scaled":
        front = (2,) if rng.random() < 0.3 else ()
        return replace(case, batches=(front, front), types=(kind, kind, F32 if front else BF16))
    b = rng.choice(("row", "col")) if kind == BF16 else "col"
    return replace(case, batches=((), (rng.choice((1, 3, 7)),)), types=(kind, kind, BF16), layouts=(a, b))


def tensors(case: Case, device: str, fill: bool = True) -> tuple[Any, Any, Any, Any]:
    """(a, b, out, matrix around `out`), the last two None for a new output."""
    generator = torch.Generator(device=device).manual_seed(case.number)
    m, n, k = case.sizes
    a = _operand((*case.batches[0], m, k), case.layouts[0], case.types[0], case.integers, device, generator, fill)
    b = _operand((*case.batches[1], k, n), case.layouts[1], case.types[1], case.integers, device, generator, fill)
    a = a[0] if case.vectors[0] else a
    b = b[:, 0] if case.vectors[1] else b
    if case.out == "none" or case.finish:
        return a, b, None, None
    shape = soak_forms.result_shape(case, a, b)
    out, whole = _out(shape, case.out, case.types[2], device)
    return a, b, out, whole


def _operand(
    shape: tuple[int, ...], layout: str, kind: Any, integers: bool, device: str, generator: Any, fill: bool
) -> Any:
    *front, rows, columns = shape
    spare = 16 // torch.empty(0, dtype=kind).element_size()
    made = {
        "row": (rows, columns), "col": (columns, rows), "wide": (rows, -(-columns // spare) * spare + 2 * spare),
        "steps": (2 * rows, -(-columns // spare) * spare), "odd": (rows, columns | 1), "off": (rows, columns),
        "far": (rows, columns),
    }[layout]  # fmt: skip
    full = (*front, *made)
    if layout == "far" and front:
        full = (*front[:-1], rows, front[-1], columns)
    count = math.prod(full) + 1
    if not fill:
        values = torch.empty(count, dtype=kind, device=device)
    elif integers or not kind.is_floating_point:
        least = 0 if kind == torch.uint8 else -2
        values = torch.randint(least, 3, (count,), device=device, generator=generator).to(kind)
    else:
        values = (torch.randn(count, device=device, generator=generator) / 4).to(kind)
        if kind == F32:  # as tf32 will round them
            values = (values.view(torch.int32) & ~0x1FFF).view(F32)
    whole = (values[1:] if layout == "off" else values[:-1]).view(full)
    if layout == "col":
        return whole.transpose(-1, -2)
    if layout == "wide":
        return whole[..., spare : spare + columns]
    if layout == "steps":
        return whole[..., ::2, :columns]
    if layout == "odd":
        return whole[..., :columns]
    if layout == "far" and front:
        return whole.transpose(-2, -3)
    return whole


def _out(shape: tuple[int, ...], name: str, kind: Any, device: str) -> tuple[Any, Any]:
    """A tensor within a larger one full of 3."""
    shape_ = shape if shape else (1,)
    *front, last = shape_
    if name == "scattered":
        whole = torch.full((*front, 2 * last + 8), 3, device=device).to(kind)
        out = whole[..., 4 : 4 + 2 * last : 2]
    elif name == "turned" and front:
        whole = torch.full((*front[:-1], last, front[-1] + 16), 3, device=device).to(kind)
        out = whole[..., 8 : 8 + front[-1]].transpose(-1, -2)
    else:
        left, more = {"inside": (16, -last % 16 + 32), "odd": (16, (last & 1) + 33)}.get(name, (3, 35))
        whole = torch.full((*front, last + more), 3, device=device).to(kind)
        out = whole[..., left : left + last]
    return (out if shape else out[0]), whole


def kernel_of(case: Case, gpu: tuple[ClusterOccupancy, str]) -> tuple[Kernel | None, int]:
    """The case's kernel, found on the CPU, and its number of copies; None if empty."""
    a, b, out, _ = tensors(case, "cpu", fill=False)
    if case.form != "plain":
        return soak_forms.kernel_of_form(case, a, b, out, choice_of(case.config), gpu)
    shapes = shapes_of(tuple(a.shape), tuple(b.shape))
    if 0 in (*shapes.result, shapes.k):
        return None, 0
    from layoutgemm.torch_op.problem import StridedOperand

    wide = F32 if case.finish else case.types[2]
    c = out if out is not None else StridedOperand(shapes.result, contiguous_strides(shapes.result), C_NAMES[wide])
    assert a.dtype in NAMES
    found = solve(problem_of(a, b, c, choice_of(case.config), *gpu))
    return found.kernel, sum(copy is not None for copy in found.copies)


def cases(
    count: int, seed: int, gpu: tuple[ClusterOccupancy, str], kinds: tuple[Any, ...], kernels: int
) -> Iterator[tuple[Case, Kernel | None, int]]:
    """`count` cases with at most `kernels` kernels; cases beyond that are skipped."""
    few = kernels // 5  # of gated products, and of epilogues, so that no form takes the kernels of another
    most = {"plain": kernels - 2 * few, "gated": few, "own": few}
    seen: dict[str, set[Kernel]] = {form: set() for form in most}
    found: Counter[str] = Counter()
    number = 0
    while found.total() < count:
        case = draw(number, seed, kinds)
        number += 1
        form = case.form.split()[0]
        if found[form] >= soak_forms.MOST.get(form, 1.0) * count:
            continue
        kernel, copies = kernel_of(case, gpu)
        if kernel is not None and kernel not in seen[form]:
            if len(seen[form]) >= most[form]:
                continue
            seen[form].add(kernel)
        found[form] += 1
        yield case, kernel, copies


def fault(case: Case, a: Any, b: Any, got: Any, bias: Any = None, extra: Any = None) -> str:
    """The difference to the float64 product, or ""; integers are compared bit by bit."""
    kind = case.types[2]
    terms = sum_error(8 * a.element_size(), case.sizes[2]) if a.dtype.is_floating_point else 0.0
    terms = (terms + 8 * 2.0**-23) * (1 + 2.0**-7)  # with the partial sums of up to nine parts of K, and a bias
    if case.form != "plain":
        exact, bound = soak_forms.wanted(case, a, b, extra, lambda magnitudes: terms * magnitudes)
    else:
        exact = torch.matmul(a.double(), b.double())
        bound = terms * torch.matmul(a.double().abs(), b.double().abs())
    if bias is not None:
        exact = torch.relu(exact + bias.double())
    want = exact.to(kind)
    if got.shape != want.shape or got.dtype != kind:
        return f"{case}: shape {tuple(got.shape)} {got.dtype}, not {tuple(want.shape)} {kind}"
    if (case.integers or not a.dtype.is_floating_point) and soak_forms.exact(case):
        if torch.equal(got, want):
            return ""
        wrong = (got.double() != want.double()).nonzero()
        at = tuple(int(i) for i in wrong[0]) if len(wrong) else ()
        return f"{case}: {len(wrong)} elements are wrong, the first {at}: {got[at].item()}, not {want[at].item()}"
    if not exact.numel():
        return ""
    bound = rounded_error(bound, exact, dtype(C_NAMES[kind])) + 1e-30
    off = ((got.double() - exact).abs() / bound).max().item()
    return "" if off <= 1 else f"{case}: off by {off:.3g} of the bound"
