"""The walk of a tensor to the launch, as the package's docstring draws it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs, walks

torch = needs.module("torch")

import layoutgemm.torch_op
from layoutgemm import Sm90Config, gemm, matmul
from layoutgemm.kernels.epilogue.chain import Aux, Bias, Epilogue
from layoutgemm.moved import MODULES, NAMES
from layoutgemm.torch_op import api, compute, epilogue, launch, prepared
from layoutgemm.torch_op.compiled import c_calls
from tests.test_imports import imports_of

ROOT = Path(layoutgemm.__file__).resolve().parent
FOLDER = ROOT / "torch_op"
SMALL = Sm90Config((64, 64), consumers=1, loader="warp")
MOST = 8


def drawn() -> list[str]:
    """The files of the docstring's table, in its order; two of a line are alternatives."""
    table = [line.split("  ")[2] for line in (layoutgemm.torch_op.__doc__ or "").splitlines() if line[:4] == "    "]
    return [name for cell in table for name in cell.split(" or ")]


def files_of(tensor: Any, call: Callable[[], object]) -> list[str]:
    """The files whose functions are handed the tensor."""
    return walks.files_of(lambda x: x is tensor, call, "torch_op")


@contextlib.contextmanager
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """CPU tensors are taken for an H200's; launches are noted and not made."""
    launches: list[Any] = []

    class Launcher:
        def load(self, device: int) -> None:
            pass

        def block(self, arguments: Any) -> Any:
            return SimpleNamespace(values=[*arguments, 0, 0], pointer=launches)

        def entry(self, pointer: list[Any]) -> None:
            pointer.append(1)

    monkeypatch.setattr(launch, "kernel", lambda solution: SimpleNamespace(launcher=Launcher()))
    monkeypatch.setattr(launch, "THREAD", SimpleNamespace(bound=True))
    for module in (compute, epilogue):
        monkeypatch.setattr(module, "on_gpu", lambda x: True)
    for module in (launch, api):
        monkeypatch.setattr(module, "current_device", lambda: -1)
        monkeypatch.setattr(module, "raw_stream", lambda index: 77)
        if hasattr(module, "empty_on_gpu"):
            monkeypatch.setattr(module, "empty_on_gpu", lambda *x: torch.empty_strided(*x[:2], dtype=x[2]))
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=88))
    prepared.forget()
    try:
        yield launches
    finally:
        prepared.forget()


def ones(*shape: int) -> Any:
    return torch.ones(shape).bfloat16()


# tensors by name, and the call
CALLS: dict[str, tuple[dict[str, Any], Callable[..., object]]] = {
    "plain": ({"a": ones(64, 64), "b": ones(64, 72)}, matmul),
    "out": ({"a": ones(64, 64), "b": ones(64, 72), "out": ones(64, 72)}, matmul),
    "bias": ({"a": ones(64, 64), "b": ones(64, 72), "bias": ones(72), "out": ones(64, 72)},
             lambda **x: matmul(**x, activation="gelu")),
    "a batch": ({"a": ones(3, 64, 64), "b": ones(64, 72), "bias": ones(72)}, matmul),
    "vectors": ({"a": ones(64), "b": ones(64)}, matmul),
    "copied": ({"a": ones(64, 65), "b": ones(65, 72), "out": ones(64, 72)}, lambda **x: matmul(**x, config=SMALL)),
    "integers": ({"a": ones(64, 64).char(), "b": ones(72, 64).char().T, "bias": ones(72).int()}, matmul),
    "gated": ({"a": ones(64, 64), "b": ones(96, 64).T, "out": ones(64, 48)},
              lambda **x: matmul(**x, activation="swiglu")),
    "gated by torch": ({"a": ones(64, 64), "b": ones(64, 96), "bias": ones(96)},
                       lambda **x: matmul(**x, activation="swiglu")),
    "gemm": ({"a": ones(64, 64), "b": ones(64, 72), "c": ones(64, 72), "out": ones(64, 72)},
             lambda **x: gemm(2.0, x["a"], x["b"], 0.5, x["c"], out=x["out"])),
    "in place": ({"a": ones(64, 64), "b": ones(64, 72), "c": ones(64, 72)},
                 lambda **x: gemm(2.0, x["a"], x["b"], 0.5, x["c"], out=x["c"])),
    "epilogue": ({"a": ones(64, 64), "b": ones(64, 72), "out": ones(64, 72), "bias": ones(72), "aux": ones(64, 72)},
                 lambda a, b, out, **given: matmul(a, b, out=out, epilogue=Epilogue(Bias(dtype="bf16"), Aux()),
                                                   given=given)),
}  # fmt: skip


# Files that only some of the calls pass through.
OF_SOME = {"compiled.kept_launches": ("epilogue", "gemm", "in place"), "own_epilogue.api": ("epilogue",)}


@pytest.mark.parametrize("place", ["gpu", "cpu"])
@pytest.mark.parametrize("name", CALLS)
def test_a_tensor_takes_the_way_that_is_drawn(name: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, call = CALLS[name]
    order = [each for each in drawn() if name in OF_SOME.get(each, (name,))]
    with gpu(monkeypatch) if place == "gpu" else contextlib.nullcontext([1]) as launches:
        for operand, x in tensors.items():
            prepared.forget()
            files = files_of(x, lambda: call(**tensors))
            assert files[:3] == order[:3], (operand, files)
            assert len(files) <= MOST and files == [each for each in order if each in files], (operand, files)
            if operand in ("a", "b"):
                ends = {"gpu": "launch", "cpu": "reference"}[place]
                assert files[-1] == ends or (name, place) == ("copied", "gpu"), (operand, files)
        assert launches


def test_repeated_calls_are_launched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = ones(64, 64), ones(64, 72)
    with gpu(monkeypatch) as launches:
        matmul(a, b)
        # The launch's code is made, and in no file.
        in_c = c_calls.library() is not None
        assert files_of(a, lambda: matmul(a, b)) == ["api", "compiled.guards", *["compiled.c_calls"] * in_c]
        found = files_of(a, lambda: matmul(a, b))
        assert found == ["api"] or not in_c
        assert len(launches) == 3


def test_recorded_calls_of_vectors_go_to_the_operator() -> None:
    a, b = ones(64).requires_grad_(), ones(64, 72)
    files = files_of(a, lambda: matmul(a, b, bias=ones(72), activation="gelu"))
    assert files[: files.index("operators") + 1] == ["api", "kernels.run.operand_checks", "checks", "operators"]


def test_the_walk_sees_a_return(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = ones(64, 64), ones(64, 72)
    real = compute.exact
    monkeypatch.setattr(compute, "multiply", lambda x, y, kind: real(x, y).to(kind))
    assert files_of(a, lambda: matmul(a, b))[3:] == ["compute", "reference"]
    monkeypatch.setattr(compute, "multiply", lambda x, y, kind: (real(x, y), compute.sums(x, y, None))[0].to(kind))
    assert files_of(a, lambda: matmul(a, b))[3:] == ["compute", "reference", "compute", "reference"]


@pytest.mark.filterwarnings("ignore:layoutgemm.torch_.* is now:DeprecationWarning")
def test_names_that_changed_files_are_found_where_they_were() -> None:
    """By the path of version 0.1.0 too, whose warning says the present one at once."""
    flat = {new: old for old, new in MODULES.items() if new.startswith("torch_op.")}
    moved = [(old, name, new) for (old, name), new in NAMES.items() if old.startswith("torch_op.")]
    assert len(moved) > 15
    for old, name, place in moved:
        new, _, renamed = place.partition(":")
        now = f"layoutgemm.{new}.{renamed or name}"
        for path in (old, *([flat[old]] if old in flat else [])):
            with pytest.warns(DeprecationWarning) as said:
                found = getattr(import_module(f"layoutgemm.{path}"), name)
            assert found is getattr(import_module(f"layoutgemm.{new}"), renamed or name)
            assert str(said[-1].message).startswith(f"layoutgemm.{path}.{name} is now {now};")


def test_files_of_the_package_are_in_order() -> None:
    """No imports inside of functions, no private names, no circles."""
    files = {path.stem: path for path in FOLDER.glob("*.py")}
    uses: dict[str, set[str]] = {}
    for name, path in files.items():
        own = [found for found in imports_of(path, ROOT.parent) if found.target.startswith("layoutgemm.")]
        assert not [f"{name}: {found.target}" for found in own if found.inner or (found.typing and name != "__init__")]
        if name == "__init__":  # loads its functions on first use
            continue
        below = [found.target.removeprefix("layoutgemm.torch_op.") for found in own]
        assert not [f"{name}: {target}" for target in below if "._" in target and not target.endswith("__")]
        uses[name] = {target.partition(".")[0] for target in below} & set(files)
    done: set[str] = set()
    while ready := {name for name, used in uses.items() if name not in done and used <= done | {"__init__"}}:
        done |= ready
    done.add("__init__")
    assert done == set(files), f"a circle among {sorted(set(files) - done)}"
