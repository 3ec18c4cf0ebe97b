"""Kept launches from C do what Python's code does, which stands in without a compiler: arguments, results, refusals."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode

from layoutgemm.dtypes import f32, i32
from layoutgemm.errors import PlanError
from layoutgemm.kernels.compile import launcher
from layoutgemm.kernels.compile.launcher import ArgumentBlock
from layoutgemm.kernels.epilogue.chain import EpilogueOperand
from layoutgemm.kernels.epilogue.parameters import float_below, number_word
from layoutgemm.torch_op import launch
from layoutgemm.torch_op.compiled import c_calls, guards
from layoutgemm.torch_op.compiled.guards import Guard, LastCalls, check_of
from layoutgemm.torch_op.launch import ZEROS, DirectLaunch, Given, NewResult, NewTensor, making, recorded
from tests import needs

pytestmark = needs.C_COMPILER
F32 = torch.float32
FIRST = ((2, np.int32(3)), (2, np.float32(0.5)))  # words of a workspace


class Host:
    """Host functions of C that note their arguments, the stream and the status. `refuses`: a launch's number."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.refuses: int | None = None
        self.held: list[Any] = []

    def launch(self, count: int, name: str = "a kernel") -> DirectLaunch:
        """A launch of `count` arguments, which are 100, 101, ... where nothing is written."""

        def host(pointer: int) -> None:
            addresses = (ctypes.c_void_p * (count + 2)).from_address(pointer)
            self.seen.append([ctypes.c_int64.from_address(at or 0).value for at in addresses])
            refused = self.refuses == len(self.seen) - 1
            ctypes.c_int32.from_address(addresses[-1] or 0).value = 700 if refused else 0

        entry = launcher.ENTRY(host)
        self.held.append(entry)
        own = SimpleNamespace(
            entry=entry, load=lambda device: None, block=lambda arguments: ArgumentBlock(entry, arguments)
        )
        compiled: Any = SimpleNamespace(launcher=own, plan=None)
        return DirectLaunch(compiled, range(100, 100 + count), (), -1, name)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(launch, "current_device", lambda: -1)
    monkeypatch.setattr(launch, "raw_stream", lambda index: 77)
    monkeypatch.setattr(
        launch, "empty_on_gpu", lambda shape, strides, kind: torch.empty_strided(shape, strides, dtype=kind).fill_(9)
    )
    yield Host()


def both_ways(monkeypatch: pytest.MonkeyPatch, *given: Any, **options: Any) -> list[Any]:
    """The call by Python's code, and from C."""
    with monkeypatch.context() as patch:
        patch.setattr(launch.LaunchPlan, "call", lambda plan: None)
        python = making(*given, **options)
    c = making(*given, **options)
    assert type(c).__name__ == "builtin_function_or_method" != type(python).__name__
    return [python, c]


def told(x: object, known: dict[int, object]) -> object:
    """A result or an argument, with names for addresses, which differ each time."""
    if isinstance(x, torch.Tensor):
        known.setdefault(x.data_ptr(), f"new {len(known)}")
        return known[x.data_ptr()], tuple(x.shape), x.stride(), x.dtype, x.flatten().tolist()
    if isinstance(x, tuple):
        return tuple([told(each, known) for each in x])
    return known.get(x, x) if isinstance(x, int) else x


MATRIX, VECTOR = NewTensor((2, 3), (3, 1), F32, 2), NewTensor((4,), (1,), torch.uint8, 3, ZEROS)
CASES: dict[str, tuple[list[tuple[Any, ...]], dict[str, Any], int]] = {
    "a product": ([((MATRIX,), {0: 0, 1: 1})], {"count": 2}, 0),
    "numbers": ([((MATRIX,), {1: 0, 0: 4}, (5, 3))], {"count": 2}, 2),
    "a third tensor": ([((MATRIX,), {0: 0, 1: 1, 2: 5})], {"count": 3}, 0),
    "two results": ([((MATRIX, VECTOR), {0: 0, 1: 1})], {"count": 2, "returns": [1, None, 0]}, 0),
    "a workspace": (
        [((MATRIX, NewTensor((16,), (1,), torch.uint8, 3, FIRST), NewTensor((0,), (1,), F32, None)), {0: 0, 1: 1})],
        {"count": 2, "returns": [2, 0]}, 0,
    ),
    "into a tensor": ([((), {0: 2, 1: 0, 2: 1})], {"count": 3, "given": Given(into=0, begins=(16, 0, 32))}, 0),
    "written": (
        [((MATRIX,), {0: 0, 1: 1, 2: 3, 3: 4})], {"count": 4, "given": Given((2, 3), (64, 64, 64, 64), None, False)}, 0,
    ),
    "a chain": (
        [((), {0: 0}, (), {1: 0, 2: 256}), ((MATRIX,), {1: 4}, (3,), {0: 256, 1: 0})],
        {"count": 2, "memory": 512}, 1,
    ),
    "a dropped tensor": ([((VECTOR._replace(first=()), MATRIX), {0: 0, 1: 1})], {"count": 2, "returns": [1]}, 0),
    "at odd addresses": ([((MATRIX,), {0: 0, 1: 1})], {"count": 2, "given": Given(aligned=False)}, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_c_launches_what_python_does(name: str, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    launches, options, words = CASES[name]
    monkeypatch.setattr(launch, "take_memory", None)  # that of a CUDA build asks for a GPU
    made = [NewResult(host.launch(6, f"kernel {i}"), *each) for i, each in enumerate(launches)]
    ways = both_ways(monkeypatch, made, **options)
    whole, count = torch.arange(80, dtype=F32), options["count"]
    tensors = [whole[16 * i : 16 * i + 16] for i in range(count)]
    if name == "at odd addresses":
        tensors = [x[1:] for x in tensors]
    numbers = (-5, 1 << 63)[:words]
    found = []
    for call in ways:
        host.seen.clear()
        versions = [x._version for x in tensors]
        result = call(*tensors, *numbers)
        known: dict[int, object] = {x.data_ptr() + 4 * i: f"given {i}" for x in tensors for i in range(16)}
        said = told(result, known)
        memory = host.seen[0][1] if name == "a chain" else 0
        seen = [[told(x - memory if 0 <= x - memory < 512 else x, known) for x in one] for one in host.seen]
        if name in ("a workspace", "a dropped tensor"):  # which lives no longer
            seen[0][3] = "memory"
        found.append((said, seen, [x._version - before for x, before in zip(tensors, versions)]))
        assert result is (tensors[0] if "into" in name else result) is not None
    assert found[0] == found[1]
    assert [each[-2:] for each in host.seen] == [[77, 0]] * len(launches)

    def refused(*given: Any) -> list[bool]:
        host.seen.clear()
        with torch.no_grad():
            answers = [call(*given) is None for call in ways]
        return [*answers, not host.seen]

    aligned = options.get("given", Given()).aligned
    for place in range(count):
        odd = [x[1:] if i == place else x for i, x in enumerate(tensors)]
        assert refused(*odd, *numbers) == [aligned, aligned, aligned]
    if name == "written":
        assert refused(tensors[0], tensors[1], tensors[2], tensors[2]) == [True] * 3  # both are written
        assert refused(tensors[0], tensors[1], tensors[2], tensors[0]) == [True] * 3
        assert refused(tensors[1], tensors[1], tensors[2], tensors[3]) == [False] * 3  # they are only read
        torch._C._set_deterministic_algorithms(True)
        try:
            assert refused(*tensors) == [True] * 3
        finally:
            torch._C._set_deterministic_algorithms(False)
    for call in ways:
        with pytest.raises(TypeError):
            call(*tensors[1:])
        host.seen.clear()
        with recorded() as record:
            call(*tensors, *numbers)
        assert [[*one.arguments] for one in record.launches] == [each[:6] for each in host.seen]
        host.seen.clear()
        host.refuses = len(launches) - 1
        with pytest.raises(PlanError, match=f"kernel {host.refuses}"):
            call(*tensors, *numbers)
        host.refuses, _ = None, call(*tensors, *numbers)


def test_c_asks_for_the_device_the_context_and_the_stream_at_each_call(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions that are asked are those of torch, which a made call holds."""
    now, bound = {"device": -1, "stream": 77}, []
    monkeypatch.setattr(launch, "current_device", lambda: now["device"])
    monkeypatch.setattr(launch, "raw_stream", lambda index: now["stream"])
    monkeypatch.setattr(launch, "bind", bound.append)
    x = torch.ones(16)
    call = both_ways(monkeypatch, [NewResult(host.launch(3), (MATRIX,), {0: 0, 1: 1})], 2)[1]
    thread = threading.Thread(target=lambda: [call(x, x), call(x, x, None)])
    thread.start()
    thread.join()
    assert bound == [-1] and len(host.seen) == 2
    now["stream"] = 78
    assert call(x, x) is not None and host.seen[-1][-2] == 78
    now["device"] = 0
    assert call(x, x) is None and len(host.seen) == 3
    now["device"] = -1
    freed = torch.ones(32)
    part = freed[16:]
    freed.untyped_storage().resize_(0)
    assert call(freed, x) is None and call(part, x) is None and len(host.seen) == 3
    with pytest.raises(AttributeError):
        call(x, "no tensor")


def test_c_finds_the_last_call_if_no_mode_has_to_see_it() -> None:
    """By the id of the second tensor. The guard and the call take the tensors in another order."""
    weight, x, last, python = torch.ones(2), torch.ones(2, 3), *[LastCalls(1, (1, 0)) for _ in range(2)]
    check = check_of([weight, x])
    assert check is not None
    for each in (last, python):
        each.note(id(weight), Guard(check, False, lambda w, t: (t.sum() - w.sum()).item()))
    del python.again
    assert type(last.again).__name__ == "builtin_function_or_method"
    for again in (last.again, python.again):
        assert again(x, weight) == 4 and again(x, weight.clone()) is None and again(x) is again(x, weight, x) is None
        nested = torch.nested.nested_tensor([x])
        for other in (x.mT, nested, x.double(), torch.nn.Parameter(x), x.to("meta"), x.to_sparse(), x[:, :2], x[0]):
            assert again(other, weight) is None
        for mode in (
            torch.overrides.BaseTorchFunctionMode(), torch.utils._python_dispatch.TorchDispatchMode(),
            forward_ad.dual_level(), torch.autocast("cpu", torch.bfloat16),
        ):  # fmt: skip
            with mode:
                assert again(x, weight) is None
        assert again("no tensor", weight) is None
    last[id(weight)] = None
    assert last.again(x, weight) is None
    last.clear()
    assert last.again(x, weight) is None


def test_without_a_compiler_python_s_code_stands_in(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    monkeypatch.setattr(c_calls, "library", lambda: None)
    call = making([NewResult(host.launch(3), (MATRIX,), {0: 0, 1: 1})], 2)
    x, last = torch.ones(16), LastCalls(0, range(2))
    last.note(id(x), Guard(lambda *tensors: True, False, call))
    assert last.again(x, x).shape == (2, 3) and len(host.seen) == 1
    assert type(call).__name__ == type(guards.check_of([x])).__name__ == "function" and "again" not in vars(last)


def test_what_functions_point_to_is_never_freed() -> None:
    """The last functions are freed behind the library: as a process ends, or where two threads have built it."""
    functions = c_calls.library()
    assert functions is not None
    for method in functions.methods.values():
        assert sys.getrefcount(method) > 3  # of the dict, this name and the argument: one more, which nothing drops


def test_memory_that_is_dropped_is_the_stream_s_until_the_last_launch(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One piece, by torch's functions. A refused launch leaves it, too."""
    events: list[object] = []
    at = 1 << 40

    def take(size: int, stream: int) -> int:
        events.append((size, stream, len(host.seen)))
        return at if size else size // 0

    def leave(address: int) -> None:
        events.append((address, len(host.seen)))
        assert len(events) < 10, "torch frees nothing"

    monkeypatch.setattr(launch, "take_memory", take)
    monkeypatch.setattr(launch, "leave_memory", leave)
    vector, x = VECTOR._replace(first=(), shape=(2, 30), strides=(40, 1)), torch.ones(16)  # 70 bytes from end to end
    makes = [((vector,), {0: 0}, (), {1: 0}), ((MATRIX,), {1: 4}, (), {0: 256, 1: 0})]
    call = making([NewResult(host.launch(6), *each) for each in makes], 2, [1], memory=300)
    for number in range(2):
        made = call(x, x)
        assert events[-2:] == [(512 + 70, 77, 2 * number), (at, 2 * number + 2)]
        assert [each[:4] for each in host.seen[-2:]] == [[x.data_ptr(), at, 102, at + 512],
                                                        [at + 256, at, made.data_ptr(), 103]]  # fmt: skip
    host.refuses = 5
    with pytest.raises(PlanError, match="a kernel"):
        call(x, x)
    assert events[-1] == (at, 6)
    host.refuses, count, held = None, sys.getrefcount(x), sys.getrefcount(at) - 3  # of `events`
    call(x, x)
    with pytest.raises(AssertionError, match="frees nothing"):
        call(x, x)
    monkeypatch.setattr(launch, "take_memory", lambda *given: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        making([NewResult(host.launch(6), *each) for each in makes], 2, [1], memory=300)(x, x)
    assert len(host.seen) == 10 and (sys.getrefcount(x), sys.getrefcount(at) - 5) == (count, held)


FAILING = ("empty_on_gpu", "fill", "raw_stream", "bind", "mark_written", "current_device", "deterministic")


@pytest.mark.parametrize("name", FAILING)
def test_an_error_of_a_function_that_c_calls_is_the_call_s(
    name: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its calls. Nothing is launched, and no object is held any longer, or released twice."""
    left, news, allocate = [0], [], launch.empty_on_gpu

    def allocated(*given: Any) -> Any:
        made = allocate(*given)
        news.append(weakref.ref(made))
        return made

    monkeypatch.setattr(launch, "empty_on_gpu", allocated)
    real = getattr(launch, name)

    def failing(*given: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise MemoryError(name)
        return real(*given)

    monkeypatch.setattr(launch, name, failing)
    makes = MATRIX, NewTensor((16,), (1,), torch.uint8, 3, FIRST), NewTensor((4,), (1,), F32, 4, ZEROS)
    whole = torch.arange(64, dtype=F32)
    tensors = [whole[:16], whole[16:32], whole[32:48]]
    given = Given((2,), (64,) * 3, None, False)
    made = NewResult(host.launch(7), makes, {0: 0, 1: 1, 2: 6}, (5,))
    call = both_ways(monkeypatch, [made], 3, [0, 2, None], given)[1]
    held = [*tensors, makes[0].shape, makes[1].first, F32, 1 << 40]

    def counts() -> list[int]:
        return [sys.getrefcount(x) for x in held]

    def run() -> Any:
        return call(*tensors, held[-1])

    for calls in range(4):
        errors = []

        def in_thread(calls: int = calls, errors: list[str] = errors) -> None:  # a new one has no context
            left[0] = calls
            try:
                run()
            except MemoryError as error:
                errors.append(str(error))

        before, launched = counts(), len(host.seen)
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        del thread, in_thread
        assert counts() == before and not any(new() is not None for new in news)
        assert len(host.seen) == launched + (not errors) and errors == [name] * (left[0] < 0)
        if not errors:
            assert calls
            return
    raise AssertionError(f"{name} is called more than three times")


def test_what_a_call_is_found_by_may_be_dropped_meanwhile(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what C calls, or by another thread while a launch waits: a call holds its guard, and that its launch."""
    x, last = torch.ones(16), LastCalls(0, range(2))
    dropped: list[int] = []

    def note() -> None:
        calls = making([NewResult(host.launch(3), (MATRIX,), {0: 0, 1: 1})], 2)
        host.held.clear()
        last.note(id(x), Guard(lambda *tensors: not dropping() or True, False, calls))

    def dropping(*given: Any) -> int:
        last.clear()
        dropped.append(gc.collect())
        return 77

    for name in ("raw_stream", "current_device"):
        with monkeypatch.context() as patch:
            real = getattr(launch, name)
            patch.setattr(launch, name, lambda *given, real=real: dropping() and real(*given))
            note()
            made = last.again(x, x)
            assert made.shape == (2, 3) and last.again(x, x) is None and host.seen[-1][0] == x.data_ptr()
    assert len(dropped) == 4


class _Subclass(torch.Tensor):
    pass


@contextlib.contextmanager
def _vmapped() -> Iterator[None]:
    level = torch._C._functorch._vmap_increment_nesting(2, "error")
    try:
        yield level
    finally:
        torch._C._functorch._vmap_decrement_nesting()


MODES: dict[str, Callable[[], Any]] = {
    "none": contextlib.nullcontext, "gradients": torch.enable_grad, "no gradients": torch.no_grad,
    "inference": torch.inference_mode, "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "dispatch": torch.utils._python_dispatch.TorchDispatchMode, "vmap": _vmapped,
    "another autocast": lambda: torch.autocast("cuda", torch.bfloat16),
    "fake": lambda: FakeTensorMode(allow_non_fake_inputs=True),
}  # fmt: skip


def others(x: torch.Tensor) -> dict[str, Any]:
    """Tensors that differ from a matrix in one thing."""
    with torch.inference_mode():
        inferred = x.clone()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
    return {
        "itself": x, "its like": x.clone(), "with a gradient": x.clone().requires_grad_(),
        "a parameter": torch.nn.Parameter(x), "one without": torch.nn.Parameter(x, requires_grad=False),
        "of inference": inferred, "fake": fake, "of a subclass": x.as_subclass(_Subclass), "meta": x.to("meta"),
        "of integers": x.view(torch.int32), "of 16 bits": x.half(), "complex": x.to(torch.complex64),
        "conjugated": x.to(torch.complex64).conj(), "negated": torch._neg_view(x), "sparse": x.to_sparse(),
        "nested": torch.nested.nested_tensor([x]), "of a derivative": (x.clone().requires_grad_() * 2),
        "detached": (x.clone().requires_grad_() * 2).detach(), "more rows": torch.cat([x, x]), "turned": x.mT,
        "fewer": x[:, :2], "of a dimension less": x[0], "of one more": x[None],
        "of a pitch": torch.cat([x, x], 1)[:, :3], "from another byte": torch.cat([x, x]).view(-1)[1:10].view(3, 3),
        "of another stride of 1": x[:1].as_strided((3, 3), (3, 1)), "broadcast": x[:1].expand(3, 3),
        "of many dimensions": torch.zeros([1] * 9), "zero": torch._efficientzerotensor((3, 3)), "none": None,
        "a number": 3.0, "a list": [1.0],
    }  # fmt: skip


def agrees(check: Any, by_torch: Any, given: Any, modes: set[str]) -> bool:
    """The answer of a guard, which torch's guard gives as well: it raises for what is no tensor.

    Torch's holds in a fake mode too, and for a tensor in inference mode where one of inference was outside.
    """
    try:
        wanted = by_torch(given)
    except (AttributeError, TypeError):
        wanted = False
    found = check(given)
    assert found is wanted or (wanted and modes & {"fake", "inference"}), (given, modes)
    return bool(found)


@pytest.mark.parametrize("made_in", ["none", "no gradients", "inference", "autocast"])
def test_facts_from_c_hold_where_torch_s_own_guard_does(made_in: str) -> None:
    """Tensors differ in one thing, in each mode, and in another thread."""
    x = torch.randn(3, 3)
    with MODES[made_in]():
        guarded = {name: y for name, y in others(x).items() if type(y) in (torch.Tensor, torch.nn.Parameter)}
        pairs = {}
        for name, y in guarded.items():
            found = c_calls.alike([y], [0], {})
            assert (found is None) == (name in ("sparse", "nested", "of many dimensions")), name
            if found is not None:
                pairs[name] = found, guards._by_torch([y])
                assert found(y)
    held = set()

    def compare() -> None:
        for mode, entered in MODES.items():
            tensors = others(x)  # made in no mode
            with entered():
                for name, (check, by_torch) in pairs.items():
                    held.update(
                        (mode, name, other)
                        for other, y in tensors.items()
                        if agrees(check, by_torch, y, {mode, made_in})
                    )

    compare()
    assert {mode for mode, *_ in held} >= {made_in}
    assert not any(mode in ("dispatch", "vmap", "fake") for mode, *_ in held)
    assert ("inference", "of inference", "itself") not in held and ("none", "itself", "of inference") not in held
    here, held = held, set()
    thread = threading.Thread(target=compare)
    thread.start()
    thread.join()
    assert held == here


def test_a_guard_tells_objects_and_addresses_apart() -> None:
    x, y, number = torch.randn(4, 4), torch.randn(4, 4), torch.nn.Parameter(torch.ones(()))
    twice = check_of([x, y, x])
    assert twice is not None and twice(x, y, x) and twice(y, x, y)
    assert not twice(x, y, x.view(4, 4)) and not twice(x, x, x) and not twice(x, y, y) and not twice(x, y)
    apart, together = check_of([x, x.view(4, 4)]), check_of([x, x.mT, y], begins=True)
    assert apart is not None and together is not None and type(together).__name__ == "builtin_function_or_method"
    assert apart(x, y) and not apart(x, x)
    assert together(x, x.mT, y) and together(y, y.mT, y.view(4, 4)) and not together(x, y.mT, y)
    assert not together(x, x.mT, x)
    scalar = check_of([number])
    assert scalar is not None and scalar(torch.nn.Parameter(torch.zeros(()))) and not scalar(number.detach())


@pytest.mark.parametrize("name, symbol", [
    ("requires_grad", "no such function"), ("strides", "aoti_torch_get_sizes"), ("dimensions", "aoti_torch_get_numel"),
    ("mark", "getpid"),  # it counts no write; one that takes more than a tensor would write anywhere
])  # fmt: skip
def test_another_torch_is_asked_by_python_s_functions(
    name: str, symbol: str, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    """One that lacks a function, or says something else, reads no tensor from C."""
    monkeypatch.setitem(c_calls._SYMBOLS, name, symbol)
    functions = c_calls.library.__wrapped__()
    assert functions is not None and functions.facts(torch.ones(3)) is None
    monkeypatch.setattr(c_calls, "library", lambda: functions)
    x, y, last = torch.ones(16), torch.ones(16), LastCalls(1, range(2))
    check = check_of([x, x, y])
    assert check is not None and check(x, x, y) and not check(x, x, x) and not check(x, y, y)
    call = making([NewResult(host.launch(3), (MATRIX,), {0: 0, 1: 1})], 2)
    last.note(id(y), Guard(guards._by_torch([x, y]), False, call))
    assert last.again(x, y).shape == (2, 3) and host.seen[0][:2] == [x.data_ptr(), y.data_ptr()]
    with forward_ad.dual_level():
        assert last.again(x, y) is None
    with torch.overrides.BaseTorchFunctionMode():
        assert last.again(x, y) is None
    written = Given((0,), (64, 64))
    making([NewResult(host.launch(3), (MATRIX,), {0: 0, 1: 1})], 2, None, written)(x, y)
    assert (x._version, y._version, len(host.seen)) == (1, 0, 2)


def test_a_write_to_a_tensor_of_inference_mode_is_counted_by_python_s_function(host: Host) -> None:
    """Torch's own function throws for such a tensor, which ends a process of C."""
    call = making([NewResult(host.launch(3), (MATRIX,), {0: 0, 1: 1})], 2, None, Given((0,), (64, 64)))
    x, y = torch.ones(16), torch.ones(16)
    with torch.inference_mode():
        inferred = torch.ones(16)
        assert call(inferred, y) is not None and call(x, inferred) is not None
    assert (x._version, len(host.seen)) == (1, 2)
    assert call(inferred, y) is not None and len(host.seen) == 3


def test_words_of_numbers_are_those_of_python() -> None:
    """C's words are those of `number_word`, for numbers that it refuses too."""
    operand, whole = EpilogueOperand("alpha", "", f32, host=True), EpilogueOperand("step", "", i32, host=True)
    values: list[Any] = [0.0, -0.0, 0.1, 1e-46, 2.0**-149, 3.4028235e38, -3.4028235677973366e38, 3.5e38, 1e300]
    values += [float("inf"), float("nan"), 7, True, np.float32(0.3), np.float64(0.1), torch.tensor(0.5), "x"]
    for each in (operand, whole):
        plan = c_calls.RepeatPlan(
            (lambda: True, lambda word: word, None, number_word), "given", 1, [], 1, [], [],
            [(each, each.name, float_below(each))],
        ).call()  # fmt: skip
        assert plan is not None
        for value in values:
            try:
                wanted: object = number_word(each, value)
            except (ValueError, TypeError):
                wanted = None  # the call's function refuses it
            found = plan((), {"given": {each.name: value}})
            assert found == wanted, (each.name, value, found, wanted)
        assert plan((), {"given": {}}) is plan((), {"given": None}) is plan((), {}) is plan((1,), {"given": {}}) is None
