"""Ways to make a drawn call: compiled, exported, mapped, derived, checkpointed, hooked, copied, traced or in threads.

A call of `door_fuzz` holds its tensors in closures. `Functional` makes it a function of them.

    WAYS[name](kept, given) -> the result of the call made that way; what is written is in `given` and `kept.out`
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import tempfile
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint as torch_checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from layoutgemm.errors import LayoutError
from layoutgemm.torch_op.tuning import tune_call
from tests.torch_op import door_fuzz
from tests.torch_op.door_fuzz import again

REFUSED = "no way for this call"
THREADS = 4


class NoWayError(Exception):
    """The way has no meaning for the call, as a gradient of integers has none."""


class Functional:
    """A call as a function of the tensors in its closures."""

    def __init__(self, call: Any) -> None:
        self.call, self.cells = call, list(cells_of(call, set()))
        self.tensors: list[Any] = []
        for cell in self.cells:
            replaced(cell.cell_contents, self._noted)

    def _noted(self, x: Any) -> Any:
        if not any(x is y for y in self.tensors):
            self.tensors.append(x)
        return x

    def __call__(self, tensors: Any, out: Any, given: Any) -> Any:
        """The call's result with other tensors in its closures."""
        was = [cell.cell_contents for cell in self.cells]
        place = {id(x): y for x, y in zip(self.tensors, tensors, strict=True)}
        try:
            for cell, x in zip(self.cells, was):
                cell.cell_contents = replaced(x, lambda y: place[id(y)])
            return self.call(out, given)
        finally:
            for cell, x in zip(self.cells, was):
                cell.cell_contents = x


def cells_of(function: Any, seen: set[int]) -> Any:
    """The cells of a function that hold tensors, those of functions in them included."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):
            x = cell.cell_contents
            if id(cell) in seen:
                continue
            seen.add(id(cell))
            if isinstance(x, types.FunctionType):
                yield from cells_of(x, seen)
            elif holds_tensors(x):
                yield cell


def holds_tensors(x: Any) -> bool:
    if isinstance(x, dict):
        return any(holds_tensors(y) for y in x.values())
    return isinstance(x, torch.Tensor) or (isinstance(x, (list, tuple)) and any(holds_tensors(y) for y in x))


def replaced(x: Any, by: Any) -> Any:
    """The same lists and dictionaries of other tensors."""
    if isinstance(x, torch.Tensor):
        return by(x)
    if isinstance(x, dict):
        return {name: replaced(y, by) for name, y in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*[replaced(y, by) for y in x])
    return type(x)(replaced(y, by) for y in x) if type(x) in (list, tuple) else x


def floats(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in (torch.float32, torch.bfloat16, torch.float16) and not x.is_neg()


class Called(torch.nn.Module):
    """A call as a module, whose arguments are its tensors."""

    def __init__(self, of: Functional, out: Any, given: Any) -> None:
        super().__init__()
        self.of, self.numbers = of, {n: x for n, x in given.items() if not isinstance(x, torch.Tensor)}
        self.has_out = out is not None

    def forward(self, tensors: list[Any], out: Any, given: dict[str, Any]) -> Any:
        """The result."""
        return self.of(tensors, out, {**given, **self.numbers})


def parts(kept: Any, given: Any) -> Any:
    of = Functional(kept.problem.call)
    return of, of.tensors, kept.out, {n: x for n, x in given.items() if isinstance(x, torch.Tensor)}


# ---------------------------------------------------------------------------------------------------------------- ways


def compiled(kept: Any, given: Any, full: bool = True, backend: str = "aot_eager") -> Any:
    if kept.compiled is None:
        torch._dynamo.reset()
        kept.compiled = torch.compile(lambda out, given: kept.problem.call(out, given), fullgraph=full, backend=backend)
    return kept.compiled(kept.out, given)


def exported(kept: Any, given: Any, save: bool = False) -> Any:
    of, tensors, out, written = parts(kept, given)
    module = Called(of, out, given)
    made = torch.export.export(module, (tensors, out, written), strict=False)
    if save:
        file = io.BytesIO()
        torch.export.save(made, file)
        file.seek(0)
        made = torch.export.load(file)
    return made.module()(tensors, out, written)


def mapped(kept: Any, given: Any) -> Any:
    """Two slices of the same values: both results are the call's."""
    of, tensors, out, written = parts(kept, given)
    two = [torch.stack([x.resolve_neg()] * 2) for x in tensors]
    outs = None if out is None else torch.stack([out] * 2)
    news = {n: torch.stack([x] * 2) for n, x in written.items()}

    def one(tensors: Any, out: Any, written: Any) -> Any:
        found = of(tensors, out, {**given, **written})
        return found if isinstance(found, torch.Tensor) else torch.zeros(())

    found = torch.vmap(one, in_dims=(0, None if out is None else 0, 0))(two, outs, news)
    for name, x in written.items():
        assert torch.equal(bits(news[name][0]), bits(news[name][1])), f"{name}: slices differ"
        x.copy_(news[name][0])
    if out is not None:
        assert torch.equal(bits(outs[0]), bits(outs[1])), "slices of out differ"
        out.copy_(outs[0])
        return out
    assert torch.equal(bits(found[0]), bits(found[1])), "slices differ"
    return found[0]


def bits(x: Any) -> Any:
    """The bytes of a tensor's elements in order."""
    return x.resolve_neg().reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def gradients(kept: Any, given: Any, around: Callable[..., Any], same: bool = True) -> Any:
    """The result by `around(function, tensors)`, whose gradients have the bits of a plain call's.

    same  whether the result has, too: not where it is computed where nothing is recorded
    """
    of, tensors, out, _ = parts(kept, given)
    places = [i for i, x in enumerate(tensors) if floats(x)]
    if not places or out is not None or given:
        raise NoWayError(REFUSED)

    def run(*leaves: Any) -> Any:
        every = list(tensors)
        for i, x in zip(places, leaves):
            every[i] = x
        return of(every, None, {})

    def both(by: Callable[..., Any]) -> Any:
        leaves = [tensors[i].detach().requires_grad_() for i in places]
        found = by(run, leaves)
        if not isinstance(found, torch.Tensor) or not found.requires_grad:
            raise NoWayError(REFUSED)
        (found.float().square().sum() / 8).backward()  # a reentrant checkpoint knows no other way
        return found, [x.grad for x in leaves]

    want, plain = both(lambda run, leaves: run(*leaves))
    found, other = both(around)
    assert not same or torch.equal(bits(want.detach()), bits(found.detach())), (
        "the result differs from a plain recorded call's"
    )
    for i, (x, y) in zip(places, zip(plain, other)):
        assert (x is None) == (y is None), f"the gradient of {i} is {x} and {y}"
        if x is None:
            continue
        if not same or x.is_cuda:  # a GPU adds gradients of chosen rows in any order
            near(x, y, f"the gradient of {i}")
        else:
            assert torch.equal(bits(x), bits(y)), f"the gradient of {i}"
    return found.detach()


def checkpointed(kept: Any, given: Any, reentrant: bool) -> Any:
    return gradients(
        kept,
        given,
        lambda run, leaves: torch_checkpoint.checkpoint(run, *leaves, use_reentrant=reentrant),
        not reentrant,
    )


def hooked(kept: Any, given: Any) -> Any:
    def around(run: Any, leaves: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: (x.device, x.cpu().clone()), lambda x: x[1].to(x[0])):
            return run(*leaves)

    return gradients(kept, given, around)


def by_vjp(kept: Any, given: Any) -> Any:
    """torch.func.vjp beside autograd: values alone are compared with float64, gradients by nearness."""
    of, tensors, out, _ = parts(kept, given)
    places = [i for i, x in enumerate(tensors) if floats(x)]
    if not places or out is not None or given:
        raise NoWayError(REFUSED)

    def run(*leaves: Any) -> Any:
        every = list(tensors)
        for i, x in zip(places, leaves):
            every[i] = x
        return of(every, None, {})

    leaves = [tensors[i].detach() for i in places]
    found, pull = torch.func.vjp(run, *leaves)
    if not found.is_floating_point():
        raise NoWayError(REFUSED)
    mine = pull(torch.ones_like(found))
    again = [x.clone().requires_grad_() for x in leaves]
    plain = torch.autograd.grad(run(*again), again, torch.ones_like(found), allow_unused=True)
    for i, x, y in zip(places, mine, plain):
        near(x, torch.zeros_like(x) if y is None else y, f"the gradient of {i}")
    return found


def by_jvp(kept: Any, given: Any) -> Any:
    """The tangent of torch.func.jvp, of the tensors in their own directions."""
    of, tensors, out, _ = parts(kept, given)
    places = [i for i, x in enumerate(tensors) if floats(x)]
    if not places or out is not None or given:
        raise NoWayError(REFUSED)

    def run(*leaves: Any) -> Any:
        every = list(tensors)
        for i, x in zip(places, leaves):
            every[i] = x
        return of(every, None, {})

    leaves = tuple(tensors[i].detach() for i in places)
    found, tangent = torch.func.jvp(run, leaves, leaves)
    again = [x.clone().requires_grad_() for x in leaves]
    value = run(*again)
    if value.requires_grad:
        dot = torch.autograd.grad(value, again, torch.ones_like(value), allow_unused=True)
        want = sum(float((x.double() * y.double()).sum()) for x, y in zip(dot, leaves) if x is not None)
        have, size = float(tangent.double().sum()), float(tangent.double().abs().sum())
        assert abs(have - want) <= 0.05 * size + 0.5 or size != size, f"jvp {have}, vjp {want}"
    return found


def near(x: Any, y: Any, said: str) -> None:
    x, y = x.double(), y.double()
    size = float(y[y.isfinite()].abs().max()) if bool(y.isfinite().any()) else 0.0
    wrong = ((x - y).abs() > 0.03 * size + 1e-3) & x.isfinite() & y.isfinite()
    assert not bool(wrong.any()), f"{said}: {x[wrong][0]} and {y[wrong][0]}"


def copy_of(x: Any) -> Any:
    """A copy in the same kind of memory, as `again` has it."""
    with x.device if isinstance(x, torch.Tensor) else contextlib.nullcontext():
        return again(x)


class AskedError(Exception):
    """In place of a call: its arguments."""


def asked_of(kept: Any, given: Any) -> Any:
    """The function of the library that the call calls, its arguments and options."""
    doors = {name: getattr(door_fuzz, name) for name in ("matmul", "grouped_matmul", "scaled_matmul")}

    def noting(door: Any) -> Any:
        def note(*args: Any, **options: Any) -> Any:
            raise AskedError(door, args, options)

        return note

    try:
        for name, door in doors.items():
            setattr(door_fuzz, name, noting(door))
        kept.problem.call(kept.out, given)
    except AskedError as asked:
        return asked.args
    finally:
        for name, door in doors.items():
            setattr(door_fuzz, name, door)
    raise NoWayError(REFUSED)


def tuned(kept: Any, given: Any, beside: bool = False) -> Any:
    """The call after a short measurement of its configurations, or while they are measured."""
    door, args, options = asked_of(kept, given)
    options = {name: copied_deep(x) for name, x in options.items() if name != "config"}
    args = copied_deep(args)
    errors: list[Any] = []

    def measure() -> None:
        try:
            tune_call(door, *args, most=3, rounds=2, budget=1.0, progress=lambda line: None, **options)
        except LayoutError:  # nothing to choose from
            pass
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=measure)
    thread.start()
    if not beside:
        thread.join()
    got = kept.problem.call(kept.out, given)
    while thread.is_alive():  # with other results
        kept.problem.call(copy_of(kept.out), {n: copy_of(x) for n, x in given.items()})
    thread.join()
    if errors:
        raise errors[0]
    return got


def copied_deep(x: Any) -> Any:
    return replaced(x, copy_of)


def deep_copied(kept: Any, given: Any) -> Any:
    of, tensors, out, _ = parts(kept, given)
    return of(copy.deepcopy(tensors), out, given)


def pickled(kept: Any, given: Any) -> Any:
    of, tensors, out, _ = parts(kept, given)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.pt")
        torch.save(tensors, path)
        return of(torch.load(path, weights_only=True), out, given)


def swapped(kept: Any, given: Any) -> Any:
    """A call, then another one whose tensors have other memory: `swap_tensors` and `set_`."""
    tensors, out = Functional(kept.problem.call).tensors, kept.out
    kept.problem.call(copy_of(out), {n: copy_of(x) for n, x in given.items()})
    kept.graph = None  # which reads the old memory
    for i, x in enumerate(tensors):
        if x.is_neg() or (x._is_view() and i % 2):
            continue
        if i % 2 and x.storage_offset() == 0:
            x.set_(x.untyped_storage().clone(), 0, x.shape, x.stride())
        else:
            whole = x.untyped_storage().clone()
            other = torch.empty(0, dtype=x.dtype, device=x.device).set_(whole, x.storage_offset(), x.shape, x.stride())
            x.data = other
    return kept.problem.call(out, given)


def in_threads(kept: Any, given: Any) -> Any:
    """The same call by several threads at once, each with outputs of its own."""
    found: list[Any] = []
    copies = [{n: copy_of(x) for n, x in given.items()} for _ in range(THREADS)]

    def one(own: Any) -> None:
        try:
            got = kept.problem.call(copy_of(kept.out), own)
            if (kept.out is not None and kept.out.is_cuda) or (got is not None and getattr(got, "is_cuda", False)):
                torch.cuda.synchronize()
            found.append((got, own, None))
        except BaseException as error:
            found.append((None, None, error))

    threads = [threading.Thread(target=one, args=(own,)) for own in copies]
    for thread in threads:
        thread.start()
    got = error = None
    try:
        got = kept.problem.call(kept.out, given)
    except BaseException as own:
        error = own
    for thread in threads:
        thread.join()
    for value, own, wrong in found:
        assert (wrong is None) == (error is None), f"one thread raises {wrong!r}, another {error!r}"
        if wrong is None and isinstance(got, torch.Tensor):
            want = kept.problem.want.get("C")  # NaN where a new result holds what its memory held
            said = slice(None) if want is None or want.shape != got.shape else ~want.isnan()
            assert torch.equal(bits(value[said]), bits(got[said])), "threads have different results"
            for name, x in given.items():
                if isinstance(x, torch.Tensor):
                    assert torch.equal(bits(own[name]), bits(x)), f"threads wrote different {name}"
    if error is not None:
        raise error
    return got


class Dispatched(TorchDispatchMode):
    """A call that torch's dispatcher sees, unchanged."""

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        return operator(*given, **(named or {}))


def faked(kept: Any, given: Any) -> Any:
    """Shapes by fake tensors first, which launch nothing and write nothing; then the call."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    of, tensors, out, _ = parts(kept, given)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in tensors]
        fake_out = None if out is None else mode.from_tensor(out)
        news = {n: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for n, x in given.items()}
        shape = of(fakes, fake_out, news)
    with Dispatched():  # else a launch may give its rows a pitch, which operators do not
        got = kept.problem.call(out, given)
    if isinstance(got, torch.Tensor):
        said = (shape.shape, shape.dtype, shape.stride()), (got.shape, got.dtype, got.stride())
        assert said[0] == said[1] or not got.numel(), f"fake {said[0]}, real {said[1]}"
    return got


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "compiled": compiled,
    "exported": exported,
    "exported and saved": lambda kept, given: exported(kept, given, True),
    "vmap": mapped,
    "vjp": by_vjp,
    "jvp": by_jvp,
    "checkpoint": lambda kept, given: checkpointed(kept, given, False),
    "reentrant checkpoint": lambda kept, given: checkpointed(kept, given, True),
    "hooks": hooked,
    "deepcopy": deep_copied,
    "saved": pickled,
    "swapped": swapped,
    "threads": in_threads,
    "fake": faked,
    "tuned": tuned,
    "called while tuned": lambda kept, given: tuned(kept, given, True),
}
