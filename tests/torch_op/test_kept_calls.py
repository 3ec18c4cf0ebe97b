"""The second call of scaled, grouped and quantised products: one allocation, one launch, few calls, and every refusal.

Counts, not times: CPU tensors are taken for a GPU's, and launches compute nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from layoutgemm import QuantizedFormat, QuantizedWeight, grouped_matmul, matmul, quantized_matmul, scaled_matmul
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.kernels.sm90.config import Sm90Config
from layoutgemm.kernels.sm90.quantized.feature_parts import FeatureParts
from layoutgemm.torch_op.compiled import guards
from layoutgemm.torch_op.compiled.guards import MAX_CHANGES
from layoutgemm.torch_op.quantized import api as packed_api
from layoutgemm.torch_op.quantized import kept as packed_kept
from layoutgemm.torch_op.quantized import launch as packed_launch
from layoutgemm.torch_op.scaled_grouped import api, kept
from tests.torch_op.host_launches import bare_launches

BF16, E4M3, F32 = torch.bfloat16, torch.float8_e4m3fn, torch.float32
SIZE = 128
# Each tensor that a call reads is asked for its strides, address, device, negation and gradient.
CALLS_PER_TENSOR = 5


class Tensors:
    """Operands of each product."""

    def __init__(self) -> None:
        self.x, self.y = torch.ones(SIZE, SIZE, dtype=BF16), torch.ones(SIZE, SIZE, dtype=BF16)
        self.a, self.b = torch.ones(SIZE, SIZE).to(E4M3), torch.ones(SIZE, SIZE).to(E4M3).T
        self.scale_a, self.scale_b, self.rows = torch.ones(SIZE, 1), torch.ones(1, 1), torch.ones(SIZE)
        self.experts = torch.ones(4, SIZE, SIZE, dtype=BF16)
        self.gates = torch.ones(4, SIZE, SIZE, dtype=BF16).mT
        self.offsets = torch.arange(5, dtype=torch.int32) * (SIZE // 4)
        self.counts = torch.full((4,), 7)
        self.indices = torch.arange(SIZE)
        self.out = torch.zeros(SIZE, SIZE, dtype=BF16)
        self.packed, self.by_column = (
            QuantizedWeight.quantize(torch.ones(SIZE, SIZE), QuantizedFormat("int4", group)) for group in (32, None)
        )
        self.for_float8 = QuantizedWeight.quantize(torch.ones(SIZE, SIZE), QuantizedFormat("int4", 32), E4M3)
        self.deep = QuantizedWeight.quantize(torch.ones(64, 32 * SIZE), QuantizedFormat("int8"))
        self.narrow = torch.ones(20, 32 * SIZE, dtype=BF16)
        self.weights = self.packed, self.by_column, self.for_float8, self.deep

    def matmul(self) -> Any:
        return matmul(self.x, self.y)

    def packed_weights(self) -> Any:
        return quantized_matmul(self.x.view(2, -1, SIZE), self.packed)

    def packed_with_bias(self) -> Any:
        return quantized_matmul(self.x, self.by_column, bias=self.rows, activation="silu", out_dtype=torch.float32)

    def packed_float8(self, **options: Any) -> Any:
        return quantized_matmul(self.a, self.for_float8, **{"scale_x": self.scale_a, "bias": self.rows, **options})

    def packed_parts(self) -> Any:
        return quantized_matmul(self.narrow, self.deep, bias=self.rows[:64])

    def scaled(self, **options: Any) -> Any:
        return scaled_matmul(self.a, self.scale_a, self.b, self.scale_b, **options)

    def row_wise(self) -> Any:
        return scaled_matmul(self.a, self.rows, self.b, self.rows)

    def grouped(self, **options: Any) -> Any:
        return grouped_matmul(self.x, self.experts, self.offsets, **options)

    def grouped_rows(self) -> Any:
        return self.grouped(rows=self.indices)

    def gated_rows(self) -> Any:
        return grouped_matmul(self.x, self.gates, self.offsets, rows=self.indices, activation="swiglu")

    def ends(self) -> Any:
        return grouped_matmul(self.x, self.experts, offs=self.offsets[1:])

    def masked(self) -> Any:
        return grouped_matmul(self.x.view(4, -1, SIZE), self.experts, counts=self.counts)

    def columns(self) -> Any:
        return grouped_matmul(self.experts.mT, self.x.T, self.offsets)

    def columns_copied(self) -> Any:
        return grouped_matmul(self.experts, self.x, self.offsets)

    def gathered(self) -> Any:
        return matmul(self.x, self.y, rows=self.indices)

    def scattered(self) -> Any:
        return matmul(self.x, self.y, out_rows=self.indices)

    def scaled_copied(self) -> Any:
        return scaled_matmul(self.a, self.scale_a, self.a, self.scale_b)

    def along_k(self) -> Any:
        return grouped_matmul(self.x.T, self.y, self.offsets)


# How many tensors a call reads beside A and B.
READS = {"scaled": 2, "row_wise": 2, "grouped": 1, "masked": 1, "columns": 1, "along_k": 1, "grouped_rows": 2}
PACKED = ("packed_weights", "packed_with_bias", "packed_float8")
BY_INDEX = ("gathered", "scattered")
COPIED = ("columns_copied", "scaled_copied")  # with an operand whose strides no kernel reads


def calls_of(run: Callable[[], object]) -> int:
    """Calls of Python and of C in one run."""
    made = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    return made


@pytest.mark.parametrize("name", [*READS, *PACKED, *COPIED, *BY_INDEX, "ends"])
def test_a_second_call_allocates_once_and_launches_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Tensors()
    with bare_launches(monkeypatch) as noted:
        run = getattr(given, name)
        first = run()
        for where, shut in (
            (api, "checked_scaled"),
            (api, "checked_grouped"),
            (kept, "launch_of"),
            (packed_api, "checked_call"),
        ):
            monkeypatch.setattr(where, shut, None)
        noted.allocated = 0
        noted.arguments.clear()
        again = run()
        assert noted.allocated == len(noted.arguments) == 1
        assert (again.shape, again.stride(), again.dtype) == (first.shape, first.stride(), first.dtype)
        assert again.data_ptr() in noted.arguments[0][:3] and noted.arguments[0][-2] == 77
        read = {x.data_ptr() for x in vars(given).values() if isinstance(x, torch.Tensor)}
        in_place = len(read & {*noted.arguments[0][:2]})
        assert in_place == (1 if name in COPIED or name in PACKED else 2)  # packed weights are no tensor of `given`
        if name == "columns_copied":
            assert given.experts.data_ptr() in noted.arguments[0][:2]


@pytest.mark.parametrize("name", READS)
def test_a_second_call_makes_few_calls_more_than_matmul(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Tensors()
    with bare_launches(monkeypatch):
        counts = {}
        for each in ("matmul", name):
            run = getattr(given, each)
            for _ in range(2 + MAX_CHANGES + 1):
                run()
            counts[each] = min([calls_of(run) for _ in range(5)])  # a view that is made anew may have another id
        # `find` itself; a view that the test makes, and whose argument says the groups; a transposed result's memory.
        # The guard of a view as b is found by shapes.
        own = {"masked": 4, "columns": 15, "along_k": 5}.get(name, 1)
        assert counts[name] <= counts["matmul"] + CALLS_PER_TENSOR * READS[name] + own, counts


@pytest.mark.parametrize("name", ["matmul", *READS, "ends"])
def test_a_guarded_call_launches_what_the_checked_one_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated calls have the first one's arguments, but for stream and result."""
    given = Tensors()
    with bare_launches(monkeypatch) as noted:
        made = [getattr(given, name)() for _ in range(4)]
        if name != "ends":  # which begin at an odd address
            monkeypatch.setattr(api, "find", None)  # a guard finds the last one
        made.append(getattr(given, name)())
    own = [x.data_ptr() for x in made]  # all held: each result has memory of its own
    launched = [[0 if x == at else x for x in each[:-2]] for at, each in zip(own, noted.arguments, strict=True)]
    assert len(set(own)) == 5 and launched == [launched[0]] * 5


@pytest.mark.parametrize("name", COPIED)
def test_a_guarded_call_copies_the_operand_that_the_checked_one_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, size = Tensors(), SIZE * SIZE
    given.x, given.a = (torch.randn(SIZE, SIZE).to(kind) for kind in (BF16, E4M3))
    own, copied = (given.experts, given.x) if name == "columns_copied" else (given.a, given.a)
    read: list[Any] = []

    def entry(values: list[int]) -> None:
        at = next(x for x in values[:2] if x != own.data_ptr())  # the copy, while it lives
        raw = (ctypes.c_uint8 * (size * copied.element_size())).from_address(at)
        read.append(torch.frombuffer(bytearray(raw), dtype=copied.dtype).view(SIZE, SIZE))

    with bare_launches(monkeypatch) as noted:
        monkeypatch.setattr(noted, "entry", entry)
        for _ in range(4):
            getattr(given, name)()
            if len(read) == 2:
                monkeypatch.setattr(kept, "launch_of", None)
            given.x.copy_(given.x.flip(0))  # the next call copies what is there then
            given.a.view(torch.uint8).copy_(given.a.view(torch.uint8).flip(0))
    for each, turns in zip(read, range(4), strict=True):
        now = copied.view(torch.uint8 if copied.dtype == E4M3 else torch.int16)
        assert torch.equal(each.view(now.dtype), (now.flip(0) if turns % 2 else now).T)


@pytest.mark.parametrize("name", [*PACKED, "packed_parts"])
def test_a_guarded_call_with_packed_weights_launches_what_the_checked_one_did(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of the call's own is told by its place."""
    given = Tensors()
    if name == "packed_parts":
        monkeypatch.setattr(packed_launch, "target", lambda index, config=None: ("sm_80", 99 << 10))
    with bare_launches(monkeypatch) as noted:
        forms = []
        for _ in range(4):
            noted.allocated = 0
            c = getattr(given, name)()
            (arguments,) = noted.arguments
            noted.arguments.clear()
            own = 1 if c.data_ptr() in arguments[:3] else 0  # C is the third, of a transposed product the first
            known = {c.data_ptr(): -1}
            tensors = [given.x, given.a, given.scale_a, given.rows, given.narrow]
            tensors += [v for w in given.weights for v in (w.units, w.scales) if v is not None]
            known |= {t.data_ptr(): place for place, t in enumerate(tensors)}
            new = [at for at in arguments[:-2] if at > 1 << 32 and at not in known]
            forms.append((own, len(new), [known.get(at, -2 if at in new else at) for at in arguments[:-2]]))
            if len(forms) == 2:  # a guard finds the others
                monkeypatch.setattr(packed_kept, "_by_facts", None)
    assert forms == [forms[0]] * 4 and forms[0][:2] == (1, name == "packed_parts")


def test_groups_said_twice_are_refused_by_a_repeated_call_too(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Tensors()
    with bare_launches(monkeypatch):
        for _ in range(4):
            given.grouped(), given.masked()
        for _ in range(2):
            gate = {"rows": given.indices, "activation": "swiglu"}
            given.grouped_rows(), given.gated_rows()
            with pytest.raises(OperandError, match="counts: row indices of masked groups"):
                given.grouped(counts=given.counts, **gate)
            for said in ({"counts": given.counts}, {"offs": given.offsets[1:]}):
                with pytest.raises(OperandError, match=f"offsets and {next(iter(said))}"):
                    given.grouped(**said)
            with pytest.raises(OperandError, match="offs and counts"):
                grouped_matmul(given.x, given.experts, offs=given.offsets[1:], counts=given.counts)


def test_into_an_output_nothing_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Tensors()
    with bare_launches(monkeypatch) as noted:
        for run in (given.scaled, given.grouped):
            run(out=given.out)
            noted.allocated, version = 0, given.out._version
            assert run(out=given.out) is given.out
            assert noted.allocated == 0 and given.out._version == version + 1
            assert given.out.data_ptr() in noted.arguments[-1][:3]


def test_ends_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel clears rows of no group, in a new result. Another leaves those of `out`."""
    given, plans = Tensors(), []
    real = kept.launch_of
    with bare_launches(monkeypatch) as noted:
        monkeypatch.setattr(kept, "launch_of", lambda plan, *rest: plans.append(plan) or real(plan, *rest))
        for _ in (1, 2):
            given.ends()
            assert given.offsets[1:].data_ptr() in noted.arguments[-1]
        grouped_matmul(given.x, given.experts, offs=given.offsets[1:], out=torch.empty_like(given.ends()))
    assert [(plan.ragged.ends, plan.ragged.clears) for plan in plans] == [(True, True), (True, False)]


def test_groups_at_any_word_are_kept_beside_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel reads the bias in pairs, and the groups one number at a time."""
    given = Tensors()
    ends = given.offsets[1:]
    offsets = torch.cat([given.offsets, given.offsets])[5:]
    assert ends.data_ptr() % 16 and offsets.data_ptr() % 16
    with bare_launches(monkeypatch) as noted:
        calls = [{"offs": ends}, {"offsets": offsets}]
        for groups in calls:
            grouped_matmul(given.x, given.experts, **groups, bias=given.rows)
        monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        for groups in calls:
            grouped_matmul(given.x, given.experts, **groups, bias=given.rows)
        assert len(noted.arguments) == 4


def shifted(x: Any, by: int) -> Any:
    """A copy that begins so many elements behind a multiple of 64 bytes."""
    made = torch.empty(x.numel() + by, dtype=x.dtype)[by:].view(x.shape)
    return made.copy_(x)


# What begins elsewhere, in a call of it alone: scales that are read four at a time, vectors of an epilogue, an A that
# TMA does not read there.
PLACED: dict[str, Callable[[Tensors], tuple[Any, Callable[[Any], Any]]]] = {
    "scales of blocks": lambda t: (torch.ones(SIZE, 4), lambda x: scaled_matmul(torch.ones(SIZE, 512).to(E4M3), x,
                                   torch.ones(SIZE, 512).to(E4M3).T, torch.ones(1, 4))),
    "scales of rows": lambda t: (t.rows, lambda x: scaled_matmul(t.a, x, t.b, t.rows)),
    "a bias": lambda t: (t.rows.bfloat16(), lambda x: t.scaled(bias=x)),
    "a bias of groups": lambda t: (t.rows.bfloat16(), lambda x: t.grouped(bias=x)),
    "an operand": lambda t: (t.a, lambda x: scaled_matmul(x, t.scale_a, t.b, t.scale_b)),
}  # fmt: skip


@pytest.mark.parametrize("what", PLACED)
def test_tensors_that_begin_now_here_now_there_are_found_again(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Tensors()
    x, call = PLACED[what](given)
    places = [shifted(x, by) for by in (0, 1, 2, 3)]
    with bare_launches(monkeypatch) as noted:
        for _ in range(2):
            for each in places:
                call(each)
        monkeypatch.setattr(api, "checked_scaled", None)  # the long way is shut
        monkeypatch.setattr(api, "checked_grouped", None)
        noted.arguments.clear()
        for each in (*places, *places[::-1]):
            call(each)
        assert len(noted.arguments) == 8
        for each, arguments in zip((*places, *places[::-1]), noted.arguments, strict=True):
            begins = each.data_ptr()
            read = {*arguments}
            assert (begins in read) == (what != "an operand" or begins % 16 == 0)


def test_scales_that_come_four_at_a_time_keep_their_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales that lie otherwise have a launch of their own, beside the first one."""
    a, scales, loads = torch.ones(SIZE, 512).to(E4M3), torch.ones(SIZE, 4), Sm90Config((128, 128), loader="warpgroup")
    with bare_launches(monkeypatch):
        for x in (scales, shifted(scales, 1), scales):
            scaled_matmul(a, x, a.T, torch.ones(1, 4), config=loads)
        (launches,) = kept.READY.values()
        assert [launch.direct._compiled.plan.numbers.span for launch in launches.values()] == [4, 1]


def test_the_transposed_launch_gets_each_operand_at_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of columns are rows of B^T @ A^T: addresses of the kept call are those of the first."""
    given = Tensors()
    x, y = given.experts.to(E4M3), given.x.to(E4M3).T
    scales = {"scale_a": torch.ones(4, SIZE), "scale_b": torch.ones(1, SIZE)}
    with bare_launches(monkeypatch) as noted:
        results = [grouped_matmul(x, y, given.offsets, **scales) for _ in (1, 2)]
        first, second = [dict(enumerate(x)) for x in noted.arguments]
        differ = {at for at in first if first[at] != second[at]}
        assert first[2] == results[0].data_ptr() and second[2] == results[1].data_ptr()
        assert differ <= {2, len(first) - 2}, "C's address and the stream alone"
        read = {x.data_ptr(): x for x in (x, y, given.offsets, *scales.values())}
        assert {*read} <= {*second.values()}


REFUSED: list[tuple[str, Callable[[Tensors], Any], type[Exception], str]] = [
    ("a gradient of a", lambda t: (t.a.requires_grad_(), t.scaled(out=t.out)), TensorError, "a requires grad"),
    ("of scale_b", lambda t: (t.scale_b.requires_grad_(), t.scaled()), TensorError, "scale_b requires grad"),
    ("another type of scales", lambda t: scaled_matmul(t.a, t.scale_a.double(), t.b, t.scale_b, out=t.out),
     OperandError, "scale_a is torch.float64"),
    ("another shape of scales", lambda t: scaled_matmul(t.a, torch.ones(64, 1), t.b, t.scale_b, out=t.out),
     TensorError, "scale_a has shape"),
    ("a sparse operand", lambda t: scaled_matmul(t.x.to_sparse(), t.scale_a, t.b, t.scale_b),
     OperandError, "a is .*sparse"),
    ("an output that is read", lambda t: grouped_matmul(t.x, t.experts, t.offsets, out=t.x), OperandError, "out"),
    ("offsets of floats", lambda t: grouped_matmul(t.x, t.experts, t.offsets.float(), out=t.out),
     OperandError, "offsets is torch.float32"),
    ("offsets that are too many", lambda t: grouped_matmul(t.x, t.experts, torch.zeros(9, dtype=torch.int32)),
     OperandError, r"offsets is torch.int32 of shape \[9\]"),
    ("more rows than there are", lambda t: t.grouped(expected_rows=1 << 20), OperandError, "groups of as many have"),
    ("no tensor", lambda t: grouped_matmul([[1.0]], t.experts, t.offsets), OperandError, "a is a builtins.list"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "said"), [x[1:] for x in REFUSED], ids=[x[0] for x in REFUSED])
def test_refusals_stay_once_a_launch_is_kept(
    call: Callable[[Tensors], Any], error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Tensors()
    with bare_launches(monkeypatch) as noted:
        for _ in range(3):  # the third call is found by a guard
            given.scaled(), given.scaled(out=given.out), given.grouped(), given.grouped(out=given.out)
        noted.arguments.clear()
        with pytest.raises(error, match=said):
            call(given)
        assert noted.arguments == []
    assert (given.out == 0).all()


def test_scales_at_an_odd_address_are_refused_once_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Tensors()
    raw = torch.zeros(SIZE * 4 + 4, dtype=torch.uint8)
    odd = torch.frombuffer(raw.numpy(), dtype=F32, count=SIZE, offset=1).view(SIZE, 1)
    with bare_launches(monkeypatch) as noted:
        given.scaled(), given.scaled(), given.scaled()
        noted.arguments.clear()
        with pytest.raises(OperandError, match="scale_a: its address"):
            scaled_matmul(given.a, odd, given.b, given.scale_b)
        assert noted.arguments == []


def test_a_negated_operand_is_not_read_as_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Tensors()
    with bare_launches(monkeypatch) as noted:
        given.grouped(), given.grouped(), given.grouped()
        grouped_matmul(torch._neg_view(given.x), given.experts, given.offsets)
        assert noted.arguments[-1][0] != given.x.data_ptr() == noted.arguments[-2][0]


class Seen(TorchFunctionMode):
    """A mode that sees functions."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class SeenOperators(TorchDispatchMode):
    """A mode that sees operators."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """A class of its own."""


CHANGES: dict[str, tuple[Callable[[Tensors], Any], Callable[[], Any]]] = {
    "nothing": (lambda given: None, contextlib.nullcontext),
    "a mode of functions": (lambda given: None, Seen),
    "a mode of operators": (lambda given: None, SeenOperators),
    "fake tensors": (lambda given: None, lambda: FakeTensorMode(allow_non_fake_inputs=True)),
    "autocast": (lambda given: None, lambda: torch.autocast("cpu", BF16)),
    "forward derivatives": (lambda given: None, torch.autograd.forward_ad.dual_level),
    "a gradient": (lambda given: given.x.requires_grad_(), contextlib.nullcontext),
    "a gradient, not recorded": (lambda given: given.x.requires_grad_(), torch.no_grad),
    "a class of its own": (lambda given: setattr(given, "x", given.x.as_subclass(Own)), contextlib.nullcontext),
    "another type": (lambda given: vars(given).update(x=given.x.half(), experts=given.experts.half()),
                     contextlib.nullcontext),
    "other strides": (lambda given: setattr(given, "x", given.x.T.contiguous().T), contextlib.nullcontext),
    "an odd address": (lambda given: setattr(given, "x", torch.ones(SIZE * SIZE + 1).bfloat16()[1:].view(SIZE, SIZE)),
                       contextlib.nullcontext),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_guard_holds_for_the_same_call_alone(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards of torch's compiler decide which launch is made again: each change is another call."""
    given = Tensors()
    with bare_launches(monkeypatch) as noted:
        for _ in range(3):
            given.grouped()
        assert sum(map(len, kept.SEEN.values())) == 1
        for name in ("_first_grouped", "checked_grouped", "grouped_call"):  # nothing but a guard finds a launch
            monkeypatch.setattr(api, name, None, raising=name == "checked_grouped")
        monkeypatch.setattr(kept, "by_facts", lambda *given: ((), None))
        noted.arguments.clear()
        vary, region = CHANGES[change]
        vary(given)
        with (
            region(),
            contextlib.suppress(RuntimeError, OperandError, TypeError),
        ):  # a class goes to the dispatcher
            given.grouped()
        assert len(noted.arguments) == (change == "nothing")
        kept.READY.clear()
        assert kept.SEEN == {}


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", ["matmul", "scaled", "grouped"])
def test_a_trace_repeats_no_launch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, called = Tensors(), []

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name == "product":
            called.append(torch._C._get_tracing_state() is not None)

    def traced(x: torch.Tensor) -> torch.Tensor:
        before = sys.getprofile()
        sys.setprofile(count)
        with contextlib.suppress(RuntimeError, OperandError):
            getattr(given, name)()
        sys.setprofile(before)
        return x + 1

    with bare_launches(monkeypatch):
        for _ in range(4):
            traced(torch.ones(1))
        assert len(called) >= 2
        torch.jit.trace(traced, torch.ones(1))  # which also calls without a trace, to compare
        assert True not in called


def test_a_torch_without_guards_finds_calls_by_their_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Tensors()
    monkeypatch.setattr(guards, "_class", None)
    with bare_launches(monkeypatch) as noted:
        for _ in range(4):
            given.grouped(), given.packed_weights()
        assert len(noted.arguments) == 8 and not kept.SEEN and not packed_kept.SEEN


def test_a_guard_made_without_gradients_does_not_hold_where_they_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Tensors()
    given.experts = torch.nn.Parameter(given.experts)
    with bare_launches(monkeypatch) as noted:
        with torch.no_grad():
            for _ in range(4):
                given.grouped()
        assert len(noted.arguments) == 4 and sum(map(len, kept.SEEN.values())) == 1
        assert given.grouped().requires_grad


@pytest.mark.parametrize("name", ["scaled", "grouped"])
def test_a_launch_that_another_thread_drops_meanwhile_is_no_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, by_facts = Tensors(), kept.by_facts
    with bare_launches(monkeypatch) as noted:
        getattr(given, name)()
        monkeypatch.setattr(kept, "by_facts", lambda *key: (by_facts(*key), kept.READY.clear())[0])
        for _ in range(3):
            getattr(given, name)()
        assert len(noted.arguments) == 4


@pytest.mark.parametrize("change", ["rows", "stride", "type", "bias", "gradient", "weights"])
def test_another_product_with_packed_weights_is_not_taken_for_a_kept_one(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Tensors()
    with bare_launches(monkeypatch) as noted:
        for _ in range(3):
            given.packed_with_bias()
        kept_before = len(packed_kept.READY)
        assert kept_before == 1
        if change == "rows":
            given.x = given.x[:-1]
        elif change == "stride":
            given.x = torch.ones(SIZE, 2 * SIZE, dtype=BF16)[:, :SIZE]
        elif change == "type":
            given.x, given.by_column = given.x.half(), replace(given.by_column, activations=torch.float16)
        elif change == "bias":
            given.rows = given.rows.half()
        elif change == "weights":
            given.by_column = QuantizedWeight.quantize(torch.ones(SIZE, SIZE), QuantizedFormat("int8"))
        else:
            given.rows.requires_grad_()
        noted.arguments.clear()
        result = given.packed_with_bias()
        assert result.requires_grad == (change == "gradient")
        # With a gradient: the product in float32, which torch finishes.
        assert len(packed_kept.READY) == kept_before + 1 and len(noted.arguments) == 1


def test_two_launches_of_packed_weights_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each later call writes the addresses of its own tensors: a part's begin at its first output feature."""
    given, usual = Tensors(), {"tile_k": 64, "stages": 2, "overlap": True}
    of_two = (64, Sm90Config((64, 16), consumers=1, **usual)), (64, Sm90Config((64, 8), consumers=1, **usual))
    with bare_launches(monkeypatch) as noted:
        monkeypatch.setattr(packed_launch, "packed_parts", lambda *sizes: of_two)
        found = []
        for _ in range(3):
            given.x, given.rows = given.x.clone(), given.rows.clone()
            c = given.packed_with_bias()
            starts = {x.data_ptr(): i for i, x in enumerate((given.x, given.by_column.units, c, given.rows))}
            ends = {at: at + x.nbytes for at, x in zip(starts, (given.x, given.by_column.units, c, given.rows))}
            found.append([
                [next(((i, v - at) for at, i in starts.items() if at <= v < ends[at]), v) for v in values]
                for values in noted.arguments
            ])  # fmt: skip
            noted.arguments.clear()
            monkeypatch.setattr(packed_api, "quantized_product", None)
        assert len(packed_kept.READY) == 1 and found[0] == found[1] == found[2] and len(found[0]) == 2
        first, second = ({v[0]: v[1] for v in values if isinstance(v, tuple)} for values in found[0])
        assert first == dict.fromkeys(range(4), 0)
        assert second == {0: 0, 1: given.by_column.units.nbytes // 2, 2: 64 * c.element_size(), 3: 64 * 4}


def test_scales_of_rows_are_whole_in_each_of_two_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    given, usual = Tensors(), {"tile_k": 64, "stages": 2, "consumers": 1}
    of_two = FeatureParts(((64, Sm90Config((64, 16), **usual)), (64, Sm90Config((64, 8), **usual))))
    with bare_launches(monkeypatch) as noted:
        for _ in range(2):  # checked, then kept
            given.packed_float8(config=of_two)
            starts = [given.scale_a.data_ptr(), given.rows.data_ptr()]
            first, second = noted.arguments
            assert {*starts} <= {*first} and {starts[0], starts[1] + 64 * 4} <= {*second}
            noted.arguments.clear()
        assert len(packed_kept.READY) == 1


def test_scales_of_x_decide_on_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Tensors()
    strided = torch.ones(SIZE, 2)[:, :1]
    with bare_launches(monkeypatch) as noted:
        for scale, kept_then in ((given.scale_a, 1), (given.rows, 2), (given.scale_b, 3), (None, 4), (strided, 4)):
            for _ in range(2):
                given.packed_float8(scale_x=scale)
            assert len(packed_kept.READY) == kept_then
            read = 0 if scale is None else scale.data_ptr()
            assert (read in noted.arguments[-1]) == (scale is not strided)
