"""layoutgemm.matmul on a GPU: types, strides, batches, outputs, streams, threads, graphs, devices, sizes, gradients."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import layoutgemm
from layoutgemm.dtypes import f32
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.kernels.epilogue import chain as steps
from tests import needs

torch = needs.module("torch")

from layoutgemm import explain_matmul, matmul
from layoutgemm.torch_op import bias_activation as torch_finish
from layoutgemm.torch_op import choose as torch_choice
from layoutgemm.torch_op import solver as torch_solver
from layoutgemm.torch_op.prepared import forget

pytestmark = [pytest.mark.gpu, pytest.mark.dsl]
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def integers(*shape: int, dtype: Any = BF16, device: Any = "cuda") -> Any:
    """Small integers, of which every sum below is exact in float32."""
    return torch.randint(-3, 4, shape, device=device).to(dtype)


def exact(a: Any, b: Any, kind: Any) -> Any:
    return torch.matmul(a.double(), b.double()).to(kind)


def check(a: Any, b: Any, kind: Any = None, **options: Any) -> Any:
    """Twice, the second time by the fast path; with the exact product."""
    want = exact(a, b, kind or a.dtype)
    for _ in range(2):
        got = matmul(a, b, out_dtype=kind, **options)
        assert got.shape == want.shape and got.dtype == want.dtype and got.is_contiguous()
        assert torch.equal(got, want), explain_matmul(a, b)
    return got


def majors(rows: int, columns: int, order: str, dtype: Any = BF16) -> Any:
    return integers(rows, columns, dtype=dtype) if order == "row" else integers(columns, rows, dtype=dtype).T


@pytest.mark.parametrize("orders", list(itertools.product(("row", "col"), repeat=2)))
@pytest.mark.parametrize("size", [(128, 128, 128), (200, 136, 72), (1000, 1032, 520), (16, 4096, 512), (4096, 8, 256)])
def test_majors(size: tuple[int, int, int], orders: tuple[str, str]) -> None:
    m, n, k = size
    a, b = majors(m, k, orders[0]), majors(k, n, orders[1])
    check(a, b)
    assert not explain_matmul(a, b).copies


@pytest.mark.parametrize("kind", ["bf16 f32", "f16", "f16 f32", "bf16 f16", "e4m3", "e5m2", "e4m3 f16"])
def test_types(kind: str) -> None:
    names = {"bf16": BF16, "f16": F16, "f32": F32, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    given, _, out = kind.partition(" ")
    eight = given.startswith("e")
    for m, n, k in ((128, 256, 128), (72, 136, 200), (300, 40, 64)):
        a, b = integers(m, k, dtype=names[given]), integers(n, k, dtype=names[given]).T
        check(a, b, names[out] if out else BF16 if eight else None)


def test_both_kinds_of_eight_bits_meet() -> None:
    a, b = integers(64, 128, dtype=torch.float8_e4m3fn), integers(96, 128, dtype=torch.float8_e5m2).T
    check(a, b, BF16)


@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_integers_and_tf32(kind: str) -> None:
    a, b = integers(72, 128, dtype=getattr(torch, kind)), integers(96, 128, dtype=getattr(torch, kind)).T
    got = matmul(a, b, allow_tf32=True)
    assert torch.equal(got, exact(a, b, torch.int32 if kind == "int8" else F32))
    if kind == "float32":
        with pytest.raises(OperandError, match="allow_tf32"):
            matmul(a, b, allow_tf32=False)


STRIDES: dict[str, Callable[[], tuple[Any, Any, int]]] = {
    # operands, and how many are copied
    "columns of a wider matrix": lambda: (integers(128, 256)[:, 64:192], integers(128, 512)[:, 128:264], 0),
    "rows far apart": lambda: (integers(256, 128)[::2], integers(384, 128)[::3].T, 0),
    "odd pitch": lambda: (integers(100, 75)[:, :64], integers(64, 96), 0),
    "every second column": lambda: (integers(64, 128)[:, ::2], integers(64, 96), 1),
    "off 16 bytes": lambda: (integers(64 * 64 + 1)[1:].view(64, 64), integers(64, 96), 0),
    "one row for all": lambda: (integers(1, 64).expand(100, 64), integers(64, 96), 0),
    "odd sizes": lambda: (integers(33, 65), integers(65, 31), 0),
    "odd sizes, large": lambda: (integers(3000, 2999), integers(2999, 3001), 2),
    "k of 1": lambda: (integers(64, 1), integers(1, 96), 0),
    "one row": lambda: (integers(1, 4096), integers(4096, 1024), 0),
    "one column": lambda: (integers(1024, 4096), integers(4096, 1), 0),
    "one element": lambda: (integers(1, 1), integers(1, 1), 0),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides(name: str) -> None:
    a, b, copies = STRIDES[name]()
    check(a, b)
    assert len(explain_matmul(a, b).copies) == copies


def off(x: Any, elements: int) -> Any:
    """The same values so many elements off 16 bytes."""
    return torch.empty(x.numel() + elements, dtype=x.dtype, device="cuda")[elements:].view(x.shape).copy_(x)


LINES: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    # operands of a type, for sizes that take more than a tile and end inside one
    "pitch": lambda kind: (integers(300, 205, dtype=kind)[:, :200], integers(200, 333, dtype=kind)),
    "pitch of columns": lambda kind: (integers(201, 300, dtype=kind).T[:, 1:], integers(333, 203, dtype=kind).T[3:]),
    "a half": lambda kind: (integers(300, 204, dtype=kind), integers(204, 334, dtype=kind)),
    "address": lambda kind: (off(integers(130, 64, dtype=kind), 1), off(integers(64, 128, dtype=kind), 4)),
    "one row for all": lambda kind: (integers(1, 200, dtype=kind).expand(300, 200), integers(200, 64, dtype=kind)),
    "a batch": lambda kind: (integers(5, 70, 33, dtype=kind), integers(5, 33, 81, dtype=kind)[..., 1:]),
    "one matrix for a batch": lambda kind: (integers(70, 33, dtype=kind), integers(5, 33, 81, dtype=kind)),
    "dimensions that do not join": lambda kind: (
        integers(2, 3, 40, 33, dtype=kind), integers(3, 2, 33, 41, dtype=kind).transpose(0, 1)
    ),
    "large": lambda kind: (integers(2100, 1030, dtype=kind)[:, :1021], integers(1021, 2301, dtype=kind)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32", "int8", "uint8", "float8_e4m3fn"])
@pytest.mark.parametrize("name", LINES)
def test_lines_of_any_pitch(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place by the mma.sync kernel, then copied for the other one: the same product."""
    a, b = LINES[name](torch.int32 if kind == "uint8" else getattr(torch, kind))
    if kind == "uint8":
        a, b = (x.abs().to(torch.uint8) for x in (a, b))
    out = torch.int32 if "int" in kind else BF16 if "8" in kind else getattr(torch, kind)
    want = exact(a, b, out)
    for seconds, in_place in ((1.0, True), (-1.0, False)):
        monkeypatch.setitem(torch_choice.MODEL.__dict__, "copy", seconds)
        forget()
        how = explain_matmul(a, b)
        assert how.kernel.startswith("Sm80Plan" if in_place and "an estimate" in how.why else "Sm90Plan")
        assert not in_place or not how.copies
        for _ in range(2):
            assert torch.equal(matmul(a, b, allow_tf32=True), want), how
    forget()


def test_lines_of_c_in_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory between C's rows stays, whichever index is contiguous."""
    monkeypatch.setitem(torch_choice.MODEL.__dict__, "copy", 1.0)
    forget()
    a, b = integers(130, 65), integers(65, 71)
    want = exact(a, b, BF16)
    for make in (lambda: torch.zeros(140, 80, dtype=BF16, device="cuda")[3:133, 3:74],
                 lambda: torch.zeros(80, 141, dtype=BF16, device="cuda").T[1:131, 3:74]):  # fmt: skip
        for _ in range(2):
            out = make()
            assert not explain_matmul(a, b, out=out).copies
            assert matmul(a, b, out=out) is out and torch.equal(out, want)
            out.zero_()
            assert not out._base.any()
    forget()


BATCHES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "both": lambda: (integers(5, 64, 72), integers(5, 72, 40)),
    "one matrix for all": lambda: (integers(5, 64, 72), integers(72, 40)),
    "the other": lambda: (integers(64, 72), integers(5, 72, 40)),
    "many of the other": lambda: (integers(64, 72), integers(100, 72, 40)),
    "four dimensions": lambda: (integers(3, 1, 64, 72), integers(5, 72, 40)),
    "heads": lambda: (integers(4, 128, 6, 64).transpose(1, 2), integers(4, 128, 6, 64).permute(0, 2, 3, 1)),
    "a vector and a batch": lambda: (integers(72), integers(5, 72, 40)),
    "a batch and a vector": lambda: (integers(5, 64, 72), integers(72)),
    "vectors": lambda: (integers(72), integers(72)),
    "a matrix and a vector": lambda: (integers(64, 72), integers(72)),
    "odd": lambda: (integers(3, 7, 9), integers(3, 9, 5)),
    "between lines": lambda: (integers(64, 5, 72).transpose(0, 1), integers(5, 40, 72).transpose(1, 2)),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches(name: str) -> None:
    check(*BATCHES[name]())


def test_one_matrix_for_a_batch_in_the_tensor_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hardware takes a stride of 0, on which `torch_op.solver.STRETCHED_IN_MAP` rests; without it, launches do."""
    a, b = integers(64, 128), integers(5, 128, 80)
    monkeypatch.setattr(torch_solver, "STRETCHED_IN_MAP", False)
    forget()
    assert explain_matmul(a, b).launches == 5
    check(a, b)
    monkeypatch.setattr(torch_solver, "STRETCHED_IN_MAP", True)
    forget()
    try:
        a, b = integers(64, 128), integers(50, 128, 80)
        assert explain_matmul(a, b).launches == 1 and not explain_matmul(a, b).copies
        check(a, b)
        # columns of A contiguous keep the shared B from being more rows
        a, b = integers(50, 128, 64).transpose(1, 2), integers(128, 80)
        assert explain_matmul(a, b).launches == 1 and not explain_matmul(a, b).copies
        check(a, b)
    finally:
        forget()


@pytest.mark.parametrize("shapes", [((0, 8), (8, 4)), ((4, 0), (0, 8)), ((4, 8), (8, 0)), ((0, 4, 8), (8, 4))])
def test_sizes_of_zero(shapes: tuple[Any, Any]) -> None:
    a, b = (torch.ones(shape, dtype=BF16, device="cuda") for shape in shapes)
    assert torch.equal(matmul(a, b), torch.matmul(a, b))


def test_outputs_and_what_lies_around_them() -> None:
    a, b = integers(72, 128), integers(128, 136)
    want = exact(a, b, BF16)
    for left, n in ((8, 136), (3, 135), (1, 1), (8, 131)):
        whole = torch.full((80, 160), 7.0, dtype=BF16, device="cuda")
        out = whole[4:76, left : left + n]
        assert matmul(a, b[:, :n], out=out) is out
        assert torch.equal(out, want[:, :n])
        out.fill_(7.0)
        assert bool((whole == 7).all())
    turned = torch.zeros(136, 72, dtype=BF16, device="cuda").T
    assert torch.equal(matmul(a, b, out=turned), want)
    assert not explain_matmul(a, b, out=turned).copies
    scattered = torch.zeros(144, 272, dtype=BF16, device="cuda")[::2, ::2]
    assert torch.equal(matmul(a, b, out=scattered), want)
    assert len(explain_matmul(a, b, out=scattered).copies) == 1
    square = integers(128, 128)
    with pytest.raises(TensorError, match="out, which is written to, shares memory with a"):
        matmul(square, square.clone(), out=square)


def peak_of(call: Callable[[], Any]) -> tuple[Any, int]:
    """A call's result, and the most bytes that it held of the allocator.

    Of what is asked for: the allocator hands out a cached block that is up to 1 MiB too large, and counts all of it.
    """
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    got = call()
    return got, torch.cuda.memory_stats()["requested_bytes.all.peak"] - before


def test_nothing_is_copied_in_secret() -> None:
    """The peak of memory: the product alone where explain_matmul says so, and its workspace where it says that."""
    cases = [(majors(1024, 2048, x), majors(2048, 1536, y)) for x in ("row", "col") for y in ("row", "col")]
    cases += [(integers(8, 256, 512), integers(512, 1024)), (integers(1024, 1023), integers(1023, 1024))]
    for a, b in cases:
        matmul(a, b)  # kernels are loaded
        said = explain_matmul(a, b).workspace
        got, peak = peak_of(lambda a=a, b=b: matmul(a, b))
        assert peak <= got.numel() * 2 + said, (peak, said)


def test_more_than_2_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 24e9:
        pytest.skip("needs 24 GB of free GPU memory: end other programs on the GPU, or take a larger one")
    a, b = integers(36000, 65536), integers(64, 65536).T  # 2.36e9 elements
    got = matmul(a, b)
    rows = torch.tensor([0, 1, 17777, 32767, 32768, 35999], device="cuda")
    assert torch.equal(got[rows], exact(a[rows], b, BF16))
    del a, b, got
    torch.cuda.empty_cache()
    a, b = integers(50000, 64), integers(50000, 64).T
    got, peak = peak_of(lambda: matmul(a, b))  # 2.5e9 elements
    assert peak <= got.numel() * 2
    rows = torch.tensor([0, 1, 24999, 42949, 42950, 49999], device="cuda")
    assert torch.equal(got[rows], exact(a[rows], b, BF16))


def test_streams() -> None:
    """A product waits for what its stream has queued, and for nothing else."""
    a, b = integers(1024, 1024), integers(1024, 1024)
    want = exact(a, b, BF16)
    matmul(a, b)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    late = torch.zeros_like(a)
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late.copy_(a)
        got = matmul(late, b)
    side.synchronize()
    assert torch.equal(got, want)


def test_threads_at_once() -> None:
    a, b = [integers(256, 64 * (i + 1)) for i in range(4)], [integers(64 * (i + 1), 256) for i in range(4)]
    want = [exact(x, y, BF16) for x, y in zip(a, b)]
    faults: list[str] = []

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                for step in range(200):
                    i = (seed + step) % 4
                    if not torch.equal(matmul(a[i], b[i]), want[i]):
                        faults.append(f"thread {seed}, step {step}")
        except BaseException as error:
            faults.append(repr(error))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_a_thread_that_has_done_nothing_else() -> None:
    """It has no CUDA context yet, which encoding a tensor map needs: by the long way, and by the short one."""
    a, b = integers(256, 64), integers(64, 256)
    want = exact(a, b, BF16)
    torch.cuda.synchronize()
    for _ in range(3):
        found: list[Any] = []
        thread = threading.Thread(target=lambda found=found: found.append(matmul(a, b)))
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert torch.equal(found[0], want)


def test_graphs() -> None:
    a, b = integers(200, 128), integers(128, 136)
    odd = integers(33, 65)
    matmul(a, b), matmul(odd, odd.T)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = matmul(a, b)
        second = matmul(odd, odd.T)  # in place, by the mma.sync kernel
    for _ in range(3):
        a.copy_(integers(200, 128))
        odd.copy_(integers(33, 65))
        graph.replay()
        assert torch.equal(first, exact(a, b, BF16)) and torch.equal(second, exact(odd, odd.T, BF16))


def test_another_device_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs: run it on a machine with two")
    a, b = integers(200, 128, device="cuda:1"), integers(128, 136, device="cuda:1")
    assert torch.cuda.current_device() == 0
    for _ in range(2):
        got = matmul(a, b)
        assert got.device == a.device and torch.equal(got, exact(a, b, BF16))
    assert torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        assert torch.equal(matmul(a, b), exact(a, b, BF16))
        assert torch.equal(matmul(a.to("cuda:0"), b.to("cuda:0")).to("cuda:1"), exact(a, b, BF16))
    with pytest.raises(TensorError, match="same device"):
        matmul(a, b.to("cuda:0"))


def test_gradients_are_those_of_torch() -> None:
    torch.manual_seed(0)
    cases = [((64, 72), (72, 80)), ((3, 64, 72), (72, 80)), ((3, 64, 72), (3, 72, 80)), ((2, 1, 64, 72), (3, 72, 80))]
    for shape_a, shape_b in cases:
        a = (torch.randn(shape_a, device="cuda") / 4).bfloat16().requires_grad_()
        b = (torch.randn(shape_b, device="cuda") / 4).bfloat16().requires_grad_()
        x, y = (t.detach().double().requires_grad_() for t in (a, b))
        got, want = matmul(a, b), torch.matmul(x, y)
        grad = torch.randn_like(got)
        got.backward(grad)
        want.backward(grad.double())
        for mine, theirs in ((a.grad, x.grad), (b.grad, y.grad)):
            assert torch.allclose(mine.double(), theirs, rtol=2**-7, atol=2**-7 * float(theirs.abs().max()))
    # and again: gradients of gradients, of integers, exact
    a, b = integers(16, 16).requires_grad_(), integers(16, 16).requires_grad_()
    (first,) = torch.autograd.grad(matmul(a, b).sum(), a, create_graph=True)
    first.sum().backward()
    assert torch.equal(b.grad, torch.full_like(b, 16.0))


def test_as_an_operator() -> None:
    a, b = integers(40, 64).requires_grad_(), integers(64, 48).requires_grad_()
    results = torch.library.opcheck(torch.ops.layoutgemm.matmul, (a, b))
    assert set(results.values()) == {"SUCCESS"}


def test_under_the_compiler() -> None:
    linear = torch.nn.Linear(64, 48, device="cuda", dtype=BF16)

    def step(x: Any) -> Any:
        return matmul(x, linear.weight.T, bias=linear.bias, activation="gelu").square().mean()

    x = torch.randn(96, 64, device="cuda").bfloat16()
    try:
        compiled = torch.compile(step, fullgraph=True)
        loss = compiled(x)
    except Exception as error:  # inductor wants triton or a compiler, which may not be here
        if "riton" not in str(error) and "ompiler" not in str(error):
            raise
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        loss = compiled(x)
    loss.backward()
    grad = linear.weight.grad.clone()
    linear.weight.grad = None
    step(x).backward()
    assert torch.allclose(loss, step(x), rtol=1e-2) and torch.allclose(grad, linear.weight.grad, rtol=5e-2, atol=1e-3)


def test_under_the_compiler_as_a_graph() -> None:
    a, b = integers(128, 64), integers(64, 128)
    compiled = torch.compile(lambda a, b: matmul(a, b), fullgraph=True, backend="cudagraphs")
    for _ in range(4):
        assert torch.equal(compiled(a, b), exact(a, b, BF16))


def test_vmap_and_autocast() -> None:
    a, b = integers(5, 40, 64), integers(5, 64, 48)
    assert torch.equal(torch.func.vmap(matmul)(a, b), exact(a, b, BF16))
    assert torch.equal(torch.func.vmap(matmul, in_dims=(0, None))(a, b[0]), exact(a, b[0], BF16))
    with torch.autocast("cuda", dtype=F16):
        got = matmul(a.float(), b.float())
    assert got.dtype == F16 and torch.equal(got, exact(a, b, F16))


FUSED = [((64, 72), (72, 80)), ((3, 40, 72), (72, 80)), ((16, 512), (512, 1024)), ((7, 9), (9, 5))]


@pytest.mark.parametrize("shapes", FUSED)
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_bias_and_activation(shapes: Any, activation: str | None) -> None:
    a, b = (integers(*shape) for shape in shapes)
    for bias in (torch.randn(shapes[1][-1], device="cuda"), None):
        for kind in (BF16, F32):
            product = a.double() @ b.double() + (0 if bias is None else bias.double())
            want = product if activation is None else torch_finish.ACTIVATIONS[activation](product)
            for _ in range(2):
                given = None if bias is None else bias.to(kind)
                if given is not None:
                    product = a.double() @ b.double() + given.double()
                    want = product if activation is None else torch_finish.ACTIVATIONS[activation](product)
                got = matmul(a, b, bias=given, activation=activation, out_dtype=kind)
                # bf16 rounds by 2**-8; its gelu may be off by half as much again (bridge_math.ElementMath, coarse)
                bound = (1.5 * 2.0**-8 if kind == BF16 else 2.0**-17) * want.abs() + 2.0**-17 * product.abs() + 1e-6
                assert got.dtype == kind and bool(((got.double() - want).abs() <= bound).all())


def test_what_is_fused_takes_one_kernel_and_no_memory() -> None:
    a, b, bias = integers(1024, 512), integers(512, 2048), integers(2048)
    c = integers(1024, 2048)
    calls = (lambda: matmul(a, b, bias=bias, activation="gelu"), lambda: layoutgemm.gemm(2.0, a, b, -1.0, c))
    for call in calls:
        call()
        got, peak = peak_of(call)
        assert peak <= got.numel() * 2


def test_gemm_with_its_scalars() -> None:
    a, b, c = integers(64, 72), integers(72, 80), integers(64, 80)
    want = (2 * (a.double() @ b.double()) - c.double()).bfloat16()
    for d in (c, c.T.contiguous().T, torch.cat([c, c], 1)[:, :80], c[:, :1].expand(64, 80)):
        want = (2 * (a.double() @ b.double()) - d.double()).bfloat16()
        assert torch.equal(layoutgemm.gemm(2.0, a, b, -1.0, d), want)
        out = torch.empty_like(want)
        assert torch.equal(layoutgemm.gemm(2.0, a, b, -1.0, d, out=out), want)
    held = c.clone()
    want = (2 * (a.double() @ b.double()) - c.double()).bfloat16()
    assert torch.equal(layoutgemm.gemm(2.0, a, b, -1.0, held, out=held), want)
    assert torch.equal(layoutgemm.gemm(0.5, a, b), (0.5 * (a.double() @ b.double())).bfloat16())


OWN = [*FUSED, ((3, 40, 72), (3, 72, 80)), ((40, 72), (3, 72, 81)), ((2, 3, 33, 64), (3, 64, 40))]


@pytest.mark.parametrize("shapes", OWN)
def test_an_epilogue_of_the_user_s_own(shapes: Any) -> None:
    """Every kind of operand, compared with CPU tensors; small integers make both exact."""
    a, b = (integers(*shape) for shape in shapes)
    *batch, m, n = torch.matmul(a.float(), b.float()).shape
    upper = steps.Custom.of(lambda x, i, j, ops, g: ops.where(j >= i, x * g, x), steps.EpilogueOperand("g", "mn", f32))
    epilogue = steps.Epilogue(
        steps.Scale(), steps.Residual(), steps.Bias("n", "bf16"), steps.Bias("m", name="rows"), steps.Aux(), upper,
        steps.Amax(), steps.Activation("relu"),
    )  # fmt: skip
    for front in ((), batch):
        given = {
            "alpha": 2.0, "beta": -1.0, "d": integers(*batch, n, m).mT, "bias": integers(*front, n),
            "rows": integers(*front, m, dtype=F32), "g": integers(*batch, m, n + 3, dtype=F32)[..., 1 : n + 1],
            "aux": torch.zeros(*batch, m, n, dtype=BF16, device="cuda"), "amax": torch.zeros(1, device="cuda"),
        }  # fmt: skip
        here = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
        want = matmul(a.cpu(), b.cpu(), epilogue=epilogue, given=here)
        for _ in range(2):
            got = matmul(a, b, epilogue=epilogue, given=given)
            assert torch.equal(got.cpu(), want)
            assert torch.equal(given["aux"].cpu(), here["aux"]) and torch.equal(given["amax"].cpu(), here["amax"])
        drop = steps.Epilogue(steps.Dropout(0.5))
        got = matmul(a, b, epilogue=drop, given={"seed": 5})
        assert torch.equal(got.cpu(), matmul(a.cpu(), b.cpu(), epilogue=drop, given={"seed": 5}))
    bias = integers(n, dtype=F32)
    got = matmul(a, b, epilogue=steps.Epilogue(steps.Bias()), given={"bias": bias})
    assert torch.equal(got, (a.double() @ b.double() + bias.double()).bfloat16())


GATES = {"swiglu": "silu", "geglu": "gelu"}
GATED: dict[str, tuple[Callable[[], tuple[Any, Any]], bool]] = {
    # operands, and whether one kernel takes them as they are
    "weights": (lambda: (integers(512, 256), integers(1024, 256).T), True),
    "few rows": (lambda: (integers(5, 512), integers(2048, 512).T), True),
    "ragged": (lambda: (integers(333, 200), integers(2 * 301, 200).T), True),
    "large": (lambda: (integers(1024, 1024), integers(4096, 1024).T), True),
    "tokens of a batch": (lambda: (integers(3, 40, 72), integers(160, 72).T), True),
    "a vector": (lambda: (integers(256), integers(96, 256).T), True),
    "pairs": (lambda: (integers(3, 70, 64), integers(3, 144, 64).mT), True),
    "rows of b": (lambda: (integers(70, 64), integers(64, 144)), False),
    "pitch": (lambda: (integers(70, 65)[:, :64], integers(144, 67)[:, :64].T), True),
}


def gated_product(a: Any, b: Any, activation: str, bias: Any = None) -> tuple[Any, Any]:
    """The product in float64, and the magnitude that bounds its error before C is rounded."""
    gate, up = (torch.matmul(a.double(), b.double()) + (0 if bias is None else bias.double())).chunk(2, -1)
    return torch_finish.ACTIVATIONS[GATES[activation]](gate) * up, gate.abs() * up.abs()


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("activation", GATES)
def test_gated_products(name: str, activation: str) -> None:
    make, fused = GATED[name]
    a, b = make()
    how = explain_matmul(a, b, activation=activation)
    assert (f"gated by {GATES[activation]}" in how.kernel) == fused
    want, size = gated_product(a, b, activation)
    for kind in (BF16, F32):
        out = torch.full_like(want, float("nan"), dtype=kind)
        for _ in range(2):
            got = matmul(a, b, activation=activation, out_dtype=kind)
            bound = (1.5 * 2.0**-8 if kind == BF16 else 2.0**-17) * want.abs()
            bound = bound + (2.0**-9 if kind == BF16 else 2.0**-17) * size + 1e-6
            assert got.shape == want.shape and bool(((got.double() - want).abs() <= bound).all())
            assert matmul(a, b, activation=activation, out=out, out_dtype=kind) is out and torch.equal(out, got)


def test_gated_products_of_other_types_with_a_bias_and_gradients() -> None:
    for kind in (F16, torch.float8_e4m3fn, torch.int8):
        a, b = integers(100, 128, dtype=kind), integers(160, 128, dtype=kind).T
        want, size = gated_product(a, b, "swiglu")
        assert "gated by silu" in explain_matmul(a, b, activation="swiglu", out_dtype=F32).kernel
        got = matmul(a, b, activation="swiglu", out_dtype=F32)
        assert bool(((got.double() - want).abs() <= 2.0**-16 * size + 1e-6).all())
    a, b, bias = integers(40, 64), integers(96, 64).T, integers(96)
    want, size = gated_product(a, b, "geglu", bias)
    got = matmul(a, b, bias=bias, activation="geglu", out_dtype=F32)
    assert bool(((got.double() - want).abs() <= 2.0**-17 * size + 1e-5).all())
    x, y = (z.float().div(8).bfloat16().requires_grad_() for z in (a, b))
    matmul(x, y, activation="swiglu").float().sum().backward()
    ours = x.grad, y.grad
    x.grad = y.grad = None
    gate, up = (x.float() @ y.float()).chunk(2, -1)
    (torch.nn.functional.silu(gate) * up).sum().backward()
    for one, other in zip(ours, (x.grad, y.grad), strict=True):
        assert bool(((one.float() - other.float()).abs() <= 2.0**-5 * other.float().abs().max()).all())
    function = torch.compile(lambda x, y: matmul(x, y, activation="swiglu"), fullgraph=True)
    assert torch.equal(function(a, b), matmul(a, b, activation="swiglu"))


def test_gated_products_take_the_memory_that_is_stated() -> None:
    for a, b in (
        (integers(1024, 512), integers(2048, 512).T),
        (integers(1024, 512), integers(512, 2048)),
        (integers(1024, 512), integers(2048, 520)[:, 1:513].T),
    ):
        for kind in (BF16, F32):
            matmul(a, b, activation="swiglu", out_dtype=kind)
            said = explain_matmul(a, b, activation="swiglu", out_dtype=kind)
            call = lambda a=a, b=b, kind=kind: matmul(a, b, activation="swiglu", out_dtype=kind)  # noqa: E731
            got, peak = peak_of(call)
            assert peak <= got.numel() * got.element_size() + said.workspace, said
            assert (said.workspace == 0) == (b.stride() == (1, 512) and b.data_ptr() % 16 == 0)
