"""Calls whose launches are kept: the arguments of a first call, and what is looked at again each time."""

from __future__ import annotations

import contextlib
import math
import pickle
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import gemm, grouped_matmul, matmul, scaled_matmul
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.kernels import Prologue
from layoutgemm.kernels.epilogue.chain import Amax, Aux, Bias, ColumnReduce, Epilogue, Residual, RowReduce, Scale
from layoutgemm.kernels.indexed.row_copy import COPIED
from layoutgemm.kernels.plan import WORKSPACE
from layoutgemm.torch_op import launch
from layoutgemm.torch_op.compiled import kept_launches
from layoutgemm.torch_op.compiled.guards import _class
from layoutgemm.torch_op.own_epilogue import api
from tests.torch_op.host_launches import BareLaunches, bare_launches

pytestmark = [
    pytest.mark.dsl,
    pytest.mark.skipif(_class is None, reason="this torch has no guards in C, so nothing is kept: pip install torch"),
]
BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
M, N, K, GROUPS = 128, 256, 384, 4
Call = Callable[[], Any]
STEPS = Epilogue(Scale("half"), Bias(), Residual("f32", beta=None), Aux("f32"), RowReduce("max", "most"), Amax())
PLAIN = Epilogue(Scale("half"), Bias())


def normal(*shape: int, kind: Any = BF16) -> Any:
    return torch.randn(*shape).to(kind)


def operands(*front: int) -> dict[str, Any]:
    return {
        "half": 0.5, "bias": normal(N, kind=F32), "d": normal(*front, M, N, kind=F32), "amax": torch.zeros(1),
        "aux": torch.zeros(*front, M, N), "most": torch.zeros(*front, M),
    }  # fmt: skip


def dense() -> Call:
    a, b, given = normal(M, K), normal(N, K).mT, operands()
    return lambda: matmul(a, b, epilogue=STEPS, given=given)


def into() -> Call:
    a, b, out = normal(M, K), normal(K, N), torch.zeros(M, N, dtype=BF16)
    given = {"half": float(a[0, 0]), "bias": normal(N, kind=F32)}
    return lambda: matmul(a, b, epilogue=PLAIN, given=given, out=out)


def transposed() -> Call:
    """The kernel's A is the call's b."""
    a, b, given = normal(8, K), normal(4096, K).mT, {"bias": normal(4096, kind=F32)}
    return lambda: matmul(a, b, epilogue=Epilogue(Bias()), given=given)


def nothing_stored() -> Call:
    a, b, given = normal(2, M, K), normal(2, K, N), {"sums": torch.zeros(2, M)}
    steps = Epilogue(RowReduce("sum", "sums"), stores_c=False)
    return lambda: matmul(a, b, epilogue=steps, given=given)


def scaled() -> Call:
    a, b, of_a, of_b = normal(M, K, kind=E4M3), normal(N, K, kind=E4M3).mT, torch.rand(M, 3), torch.rand(2, 3)
    steps, given = Epilogue(Scale("half"), RowReduce("max", "most")), {"half": 0.5, "most": torch.zeros(M)}
    return lambda: scaled_matmul(a, of_a, b, of_b, epilogue=steps, given=given)


def scaled_rows() -> Call:
    a, b, given = normal(M, K, kind=E4M3), normal(N, K, kind=E4M3).mT, {"half": 0.5, "bias": normal(N, kind=F32)}
    of_a, of_b = torch.rand(M, 1), torch.rand(1, N)
    return lambda: scaled_matmul(a, of_a, b, of_b, epilogue=PLAIN, given=given)


def groups(chosen: bool = False) -> Call:
    a, b, given = normal(M, K), normal(GROUPS, K, N), {"sums": torch.zeros(GROUPS, N)}
    offsets, steps = torch.tensor([0, 3, 60, 60, M], dtype=torch.int32), Epilogue(ColumnReduce("sum", "sums"))
    rows = torch.randint(0, M, (M,), dtype=torch.int32) if chosen else None
    return lambda: grouped_matmul(a, b, offsets, epilogue=steps, given=given, rows=rows)


def chosen_rows() -> Call:
    return groups(True)


def masked() -> Call:
    a, b, given = normal(GROUPS, M, K), normal(GROUPS, K, N), operands(GROUPS)
    counts = torch.tensor([3, 0, M, 7], dtype=torch.int32)
    return lambda: grouped_matmul(a, b, counts=counts, epilogue=STEPS, given=given)


def scalars() -> Call:
    a, b, c = normal(M, K), normal(K, N), normal(M, N)
    return lambda: gemm(2.0, a, b, 0.5, c)


def alone() -> Call:
    a, b = normal(M, K), normal(K, N)
    return lambda: gemm(2, a, b)


def _combined(p: Any, q: Any, ops: Any, s: Any) -> Any:
    return ops.maximum(p, 0.0) + s * q


def combined() -> Call:
    a, b, c = normal(M, K), normal(N, K).mT, normal(N, K).mT
    return lambda: matmul(a, (b, c), combine=_combined, given={"s": 3.0})


def pairs() -> Call:
    a, b, a2, b2, bias = normal(M, K), normal(K, N), normal(M, 16), normal(16, N), normal(N)
    return lambda: matmul((a, a2), (b, b2), bias=bias)


def in_order() -> Call:
    """A list of tiles, which the plan keeps."""
    a, b = normal(M, K), normal(N, K).mT
    return lambda: matmul(a, b, order="hilbert")


def triangle() -> Call:
    a, b, out = normal(N, K), normal(N, K).mT, torch.zeros(N, N, dtype=BF16)
    return lambda: matmul(a, b, order="lower", out=out)


def lower() -> Call:
    """A new result, in which the launch leaves tiles out."""
    a, b = normal(N, K), normal(N, K).mT
    return lambda: matmul(a, b, order="lower")


def pairs_with_steps() -> Call:
    """Two pairs, an order and an epilogue that writes."""
    a, b, a2, b2 = normal(M, K), normal(N, K).mT, normal(M, 16), normal(N, 16).mT
    steps, given = Epilogue(Scale("half"), RowReduce("sum", "sums")), {"half": 0.5, "sums": torch.zeros(M)}
    return lambda: matmul((a, a2), (b, b2), order="hilbert", epilogue=steps, given=given)


def statistics() -> Call:
    """Reductions over some of the tiles: the memory of partial results holds identities first."""
    a, b, given = normal(N, K), normal(N, K).mT, {"most": torch.zeros(N), "sums": torch.zeros(N)}
    steps = Epilogue(RowReduce("max", "most"), RowReduce("sum", "sums"), stores_c=False)
    return lambda: matmul(a, b, order="lower", epilogue=steps, given=given)


def rows_of_several() -> Call:
    """Chosen rows and several matrices, with a number."""
    a, b, c, given = normal(M, K), normal(N, K).mT, normal(N, K).mT, {"s": 3.0}
    rows = torch.randint(0, M, (M,), dtype=torch.int32)
    return lambda: matmul(a, (b, c), rows=rows, combine=_combined, given=given)


def function_of_a() -> Call:
    """A prologue, an epilogue and rows of the result by index."""
    a, b, rows = normal(M, K), normal(N, K).mT, torch.randperm(M)
    given = {"s": torch.rand(M), "bias": normal(N)}
    return lambda: matmul(a, b, prologue=OF_ROWS, epilogue=OF_BIAS, given=given, out_rows=rows)


OF_ROWS, OF_BIAS = Prologue.of(lambda x, i, k, ops, s: x * s, s="m"), Epilogue(Bias("n", "bf16"))
OF_STEPS = (dense, into, transposed, nothing_stored, scaled, scaled_rows, groups, chosen_rows, masked)
TOGETHER = (pairs_with_steps, rows_of_several, function_of_a, statistics)
CALLS = (*OF_STEPS, scalars, alone, combined, pairs, in_order, triangle, lower, *TOGETHER)


@contextlib.contextmanager
def launches(patch: pytest.MonkeyPatch) -> Iterator[tuple[BareLaunches, list[int]]]:
    """The launches that are made, and an entry for each call that is recorded."""
    first: list[int] = []
    recorded = kept_launches.recorded

    def counted() -> Any:
        first.append(1)
        return recorded()

    patch.setattr(kept_launches, "recorded", counted)
    with bare_launches(patch) as noted:
        yield noted, first


@pytest.mark.parametrize("made", CALLS, ids=lambda f: f.__name__)
def test_a_kept_call_has_the_arguments_of_a_first_one(
    made: Callable[[], Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensors are others. Only new memory is elsewhere."""
    with launches(monkeypatch) as (noted, first):
        of_first, call = made(), made()
        of_first()
        ((guard,),) = kept_launches.KEPT.seen.values()
        (kept,) = guard.kept.values()
        names = kept.direct._compiled.plan.parameters
        again = call()
        assert len(first) == 1 and len(noted.arguments) == 2
        kept_launches.KEPT.clear()
        slow = call()
        assert len(first) == 2 and len(noted.arguments) == 3
        before, *both = (dict(zip(names, arguments)) for arguments in noted.arguments)
    new = {COPIED, WORKSPACE, *(["c"] if made not in (into, triangle) else [])}
    assert {name for name in names if both[0][name] != both[1][name]} <= new
    assert before["a"] != both[0]["a"] and before["b"] != both[0]["b"]
    assert again.shape == slow.shape and again.stride() == slow.stride() and again.dtype == slow.dtype
    assert kept.memory == () or {COPIED, WORKSPACE} & set(names)


def _results(call: Call) -> list[Any]:
    """The result, and copies of all tensors in `given`, which the call may have written."""
    given = [cell.cell_contents for cell in call.__closure__ or () if isinstance(cell.cell_contents, dict)]
    c = call()
    return [c.clone(), *[x.clone() for each in given for x in each.values() if isinstance(x, torch.Tensor)]]


@pytest.mark.gpu
@pytest.mark.parametrize("made", CALLS, ids=lambda f: f.__name__)
def test_a_kept_call_gives_the_same_bits_on_a_gpu(made: Callable[[], Call], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors are others, and a graph holds it too."""
    first, recorded = [], kept_launches.recorded
    monkeypatch.setattr(kept_launches, "recorded", lambda: (first.append(1), recorded())[1])
    with torch.device("cuda"):
        of_first, call = made(), made()
    kept_launches.KEPT.clear()
    of_first()
    kept = _results(call)
    assert len(first) == 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    captured.fill_(math.nan)
    graph.replay()
    written = ~captured.isnan()  # not the rows above a masked group's count
    assert written.any() or not captured.numel()  # where no C is stored
    assert len(first) == 1 and torch.equal(captured[written], kept[0][written])
    kept_launches.KEPT.clear()
    slow = _results(call)
    assert len(first) == 2 and torch.equal(slow[0][written], kept[0][written])
    assert all(torch.equal(x, y) for x, y in zip(kept[1:], slow[1:], strict=True))


def test_what_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    room = torch.zeros(4 * M * N, dtype=BF16)
    a, b, given = normal(M, K), normal(K, N), {"half": 2.0, "bias": normal(N, kind=F32)}
    with launches(monkeypatch) as (noted, first):

        def product(given: Any = given, out: Any = None, left: Any = a, steps: Any = PLAIN) -> int:
            """The count of recorded calls so far."""
            matmul(left, b, epilogue=steps, given=given, out=out)
            return len(first)

        assert product() == 1 and product() == 1
        # An equal epilogue, made anew; a number of its own each time.
        assert product({**given, "half": 3.0}, steps=Epilogue(Scale("half"), Bias())) == 1
        names = list(next(iter(kept_launches.KEPT.seen.values()))[0].kept[()].direct._compiled.plan.parameters)
        assert noted.arguments[-1][names.index("half")] == 0x40400000  # 3.0
        with pytest.raises(OperandError, match="half = 1e\\+39 is beyond float32"):
            product({**given, "half": 1e39})
        for wrong in ({**given, "more": 1.0}, {"half": 1.0}):
            with pytest.raises(OperandError, match=r"is no operand of it|is missing"):
                product(wrong)
        # Memory that is written overlaps what is read.
        count = product(out=room[: M * N].view(M, N))
        assert product(out=room[M * N : 2 * M * N].view(M, N)) == count
        inside = room[: M * K].view(M, K)
        with pytest.raises(TensorError, match="out, which is written to, shares memory with a"):
            product(left=inside, out=room[: M * N].view(M, N))
        # An address that is no multiple of 16 is not that of a kept launch, nor is a gradient recorded.
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(api, "epilogue_product", lambda *given: 1 / 0)
            assert product() == len(first)
            product(left=room[4 : 4 + M * K].view(M, K))
        recording = {**given, "bias": given["bias"].clone().requires_grad_()}
        assert matmul(a, b, epilogue=PLAIN, given=recording).requires_grad
        assert not matmul(a, b, epilogue=PLAIN, given=given).requires_grad
        with torch.inference_mode():
            left = normal(M, K)
            count = product(left=left)
            assert product(left=left.clone()) == count


def test_operands_that_begin_elsewhere_have_a_launch_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias that is read in pairs, and one that is not, alternate: after the first calls each is found again."""
    a, b, room = normal(M, K), normal(K, N), normal(N + 1, kind=F32)
    given = [{"half": 2.0, "bias": room[at : at + N]} for at in (0, 1)]
    with launches(monkeypatch) as (noted, first):
        for _ in range(3):
            for each in given:
                matmul(a, b, epilogue=PLAIN, given=each)
        assert len(first) == 2 and len(noted.arguments) == 6
        ((guard,),) = kept_launches.KEPT.seen.values()
        paired, single = guard.kept.values()
        plans = [x.direct._compiled.plan for x in (paired, single)]
        assert [plan.epilogue.pairs for plan in plans] == [True, False]
        at = list(plans[0].parameters).index("bias")
        assert [x[at] for x in noted.arguments] == [given[i % 2]["bias"].data_ptr() for i in range(6)]


def test_partial_results_of_tiles_left_out_are_filled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    filled, fill = [], launch.fill
    monkeypatch.setattr(launch, "fill", lambda x, runs: (fill(x, runs), filled.append(x.view(torch.float32))))
    with launches(monkeypatch) as (noted, first):
        call = statistics()
        call(), call()
        assert len(first) == 1 and len(noted.arguments) == 2
        half = filled[0].numel() // 2
        assert bool((filled[0][:half] == -math.inf).all() and (filled[0][half:] == 0).all())


def test_scalars_are_those_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, b2, c = normal(M, K), normal(K, N), normal(K, N), normal(M, N)
    with launches(monkeypatch) as (noted, first):
        for scale, more in ((2.0, ()), (2.0, (0.5, c)), (1, (0.5, c))):
            gemm(scale, a, b, *more)
        kinds = len(first)
        assert kinds == 3 and gemm(5.0, a, b, 0.25, c).shape == (M, N) and len(first) == kinds
        names = list(next(g for g in kept_launches.KEPT.seen.values() if len(g[0].kept[()].numbers) == 2)[0]
                     .kept[()].direct._compiled.plan.parameters)  # fmt: skip
        assert [noted.arguments[-1][names.index(name)] for name in ("alpha", "beta")] == [0x40A00000, 0x3E800000]
        with pytest.raises(OperandError, match="beta"):
            gemm(2.0, a, b, 0.5)
        with pytest.raises(OperandError, match="alpha = 1e\\+39 is beyond float32"):
            gemm(1e39, a, b)
        matmul(a, (b, b2), combine=_combined, given={"s": 3.0})
        count = len(first)
        matmul(a, (b, b2), combine=_combined, given={"s": 4.0})
        assert len(first) == count and 0x40800000 in noted.arguments[-1]


def test_calls_that_are_more_than_a_launch_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, given = normal(M, K), normal(K, N), {"half": 2.0, "bias": normal(N, kind=F32)}
    copied = normal(M, 2 * K)[:, ::2]  # TMA does not read such strides
    batch = normal(3, 2, M, K).transpose(0, 1), normal(3, 2, K, N)
    with launches(monkeypatch) as (noted, first):
        for count in (1, 2):
            matmul(copied, b, epilogue=PLAIN, given=given)
            assert len(first) == count
        wide = normal(2 * N, kind=F32)[::2]  # a bias that no kernel reads: torch adds it
        for count in (3, 4):
            matmul((a, a.clone()), (b, b.clone()), bias=wide)
            assert len(first) == count
        steps, own = Epilogue(Bias("m", "f32")), {"bias": normal(2, 3, M, kind=F32)}
        before = len(noted.arguments)
        matmul(*batch[:1], batch[1].transpose(0, 1), epilogue=steps, given=own)
        assert len(noted.arguments) > before + 1 and not any(kept_launches.KEPT.seen.values())


def test_a_matrix_times_its_transpose_is_kept_for_such_calls_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A symmetric order is of no other product. Of two tensors at one address the kernel's A is not known."""
    a, other = normal(N, K), normal(N, K)
    with launches(monkeypatch) as (noted, first):
        for x in (a, a, other, other, a):
            c = matmul(x, x.mT, order="symmetric")
            assert noted.arguments[-1][:3] == [x.data_ptr(), x.data_ptr(), c.data_ptr()] and len(first) == 1
        with pytest.raises(OperandError, match="b is a's own transpose"):
            matmul(a, other.mT, order="symmetric")
        with pytest.raises(OperandError, match="b is a's own transpose"):
            matmul(a, a.mT.clone(memory_format=torch.preserve_format), order="symmetric")
        count = len(first)
        for x, y in ((a, a), (a, other), (other, other), (other, a), (a, a)):
            matmul(x, y.mT, order="lower")
            assert noted.arguments[-1][:2] == [x.data_ptr(), y.data_ptr()] and len(first) <= count + 2
        assert len(first) == count + 2


def test_a_new_result_is_cleared_where_the_launch_leaves_tiles_out(monkeypatch: pytest.MonkeyPatch) -> None:
    call = lower()

    def ones(shape: Any, strides: Any, kind: Any) -> Any:
        return torch.empty_strided(shape, strides, dtype=kind).fill_(1)

    with launches(monkeypatch) as (noted, first):
        monkeypatch.setattr(launch, "empty_on_gpu", ones)
        results = [call() for _ in range(3)]
        assert len(first) == 1 and len(noted.arguments) == 3
        assert len({c.data_ptr() for c in results}) == 3 and not any(c.any() for c in results)  # they compute nothing


def test_transforms_and_subclasses_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = normal(2, M, K), normal(K, N)
    with launches(monkeypatch) as (noted, first):
        mapped = torch.func.vmap(lambda x: gemm(2.0, x, b))(a)
        assert mapped.shape == (2, M, N) and noted.arguments and not first
        both = gemm(2.0, TwoTensor(normal(M, K), normal(M, K)), b)
        assert type(both) is TwoTensor and not first
        with torch.autocast("cpu", dtype=BF16):
            gemm(2.0, a[0], b)
        assert not first and not kept_launches.KEPT.seen
        half, right = a[0].half(), b.half()
        assert gemm(2.0, half, right).dtype == torch.float16 and len(first) == 1
        with torch.autocast("cpu", dtype=BF16):  # it casts, and the kept call did not
            assert gemm(2.0, half, right).dtype == BF16 and len(first) == 1


def test_a_thread_records_its_own_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    call = dense()
    with launches(monkeypatch) as (noted, _), launch.recorded() as here:
        other = threading.Thread(target=call)
        other.start()
        other.join()
        assert len(noted.arguments) == 1 and not here.launches
        kept_launches.KEPT.clear()
        call()
        assert len(here.launches) == 1


def test_what_is_no_name_is_refused_by_the_product() -> None:
    a, b = normal(M, K), normal(K, N)
    for given in ({"": 1.0}, {1: 2.0}, [("s", 1.0)]):
        with pytest.raises(OperandError):
            matmul(a, (b, b.clone()), combine="silu", given=given)
    with pytest.raises(OperandError, match="given is a list; it is a dict"):
        matmul(a, b, order="rows", given=[1])


@pytest.mark.parametrize(
    ("module", "name", "instead", "made"),
    [
        pytest.param(launch, "note_workspace", lambda memory: None, dense, id="an unknown address"),
    ],
)
def test_what_is_not_kept(
    module: ModuleType, name: str, instead: object, made: Callable[[], Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, instead)
    with launches(monkeypatch) as (_, first):
        call = made()
        call()
        call()
        assert len(first) == 2 and not kept_launches.KEPT.seen


def test_an_epilogue_goes_to_other_processes_without_its_hash() -> None:
    steps = Epilogue(Scale("half"), Bias())
    assert hash(steps) == hash(PLAIN) and steps.given == PLAIN.given and "_hashed" in vars(steps)
    other = pickle.loads(pickle.dumps(steps))
    assert other == steps and "_hashed" not in vars(other) and "given" not in vars(other)


SUMS = Epilogue(ColumnReduce("sum", "sums", ordered=False))
UNORDERED: dict[str, Callable[[Any], Any]] = {
    "dense": lambda given: matmul(normal(M, K), normal(K, N), epilogue=SUMS, given=given),
    "in an order": lambda given: matmul(normal(M, K), normal(N, K).mT, epilogue=SUMS, given=given, order="hilbert"),
    "scaled": lambda given: scaled_matmul(normal(M, K, kind=E4M3), torch.ones(M, 3), normal(N, K, kind=E4M3).mT,
                                          torch.ones(2, 3), epilogue=SUMS, given=given),
    "masked": lambda given: grouped_matmul(normal(1, M, K), normal(1, K, N), counts=torch.tensor([7]), epilogue=SUMS,
                                           given={"sums": given["sums"].view(1, N)}),
}  # fmt: skip


@pytest.mark.parametrize("name", UNORDERED)
def test_sums_in_any_order_are_refused_in_deterministic_mode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept call is refused too. On the CPU sums have an order."""
    given, run = {"sums": torch.zeros(N)}, UNORDERED[name]
    modes = [("refused", {}), ("warned", {"warn_only": True})]
    try:
        torch.use_deterministic_algorithms(True)
        run(given)
        with launches(monkeypatch) as (noted, first):
            for kept in (False, True):
                for mode, options in modes:
                    torch.use_deterministic_algorithms(True, **options)
                    expected = pytest.raises(TensorError) if mode == "refused" else pytest.warns(UserWarning)
                    count, version = len(noted.arguments), given["sums"]._version
                    with expected as said:
                        run(given)
                    text = str(said.value if mode == "refused" else said[0].message)
                    assert "sums: a sum with ordered=False does not have a deterministic implementation" in text
                    made = mode == "warned"
                    assert len(noted.arguments) - count == given["sums"]._version - version == made
                torch.use_deterministic_algorithms(False)
                run(given), run(given)
                assert kept or len(first) >= 1
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_output_made_in_inference_mode_is_refused_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does it, and before a launch: by first calls, and by calls that others have kept."""
    a, b, experts, counts = normal(M, K), normal(K, N), normal(2, K, N), torch.tensor([3, 4])
    given = {"half": 2.0, "bias": normal(N, kind=F32)}
    calls: list[Callable[[Any], Any]] = [
        lambda out: matmul(a, b, out=out),
        lambda out: matmul(a, b, epilogue=PLAIN, given=given, out=out),
        lambda out: grouped_matmul(a, experts, offs=counts, out=out),
        lambda out: scaled_matmul(a.to(E4M3), torch.ones(M, 1), b.T.contiguous().to(E4M3).T, torch.ones(1, N), out=out),
    ]
    with torch.inference_mode():
        made = torch.zeros(M, N, dtype=BF16)
    with bare_launches(monkeypatch) as noted:
        for call in calls:
            for _ in range(3):
                count = len(noted.arguments)
                with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
                    call(made)
                assert len(noted.arguments) == count
                call(torch.zeros(M, N, dtype=BF16))
                with torch.inference_mode():
                    assert call(made) is made
