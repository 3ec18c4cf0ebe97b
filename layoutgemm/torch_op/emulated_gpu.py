"""Operators on an emulated GPU. They see its tensors, and forget what they know of real GPUs.

Torch turns a function mode off within the mode's own functions, and so within an operator: `around` turns it on again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType

import torch

from ..emulator.joined import JoinedGpu, join
from ..errors import PlanError
from ..kernels.compile import ahead, compiler
from ..kernels.run import occupancy
from . import launch

_TABLES = ("READY", "PREPARED", "KEPT")  # of modules: launches that are kept
_GPUS: list[JoinedGpu] = []  # of the session that is open


def around() -> AbstractContextManager[object]:
    """The context in which operators compute."""
    return _GPUS[-1].torch_mode() if _GPUS else nullcontext()


def check_time(what: str) -> None:
    """Raise PlanError where no launch takes a GPU's time.

    That is on an emulated one, and within `compile_ahead`.
    """
    if _GPUS:
        raise PlanError(f"{what} measures time, and an emulated GPU has none of its own: run it on a GPU")
    if compiler.AHEAD:
        raise PlanError(f"{what} measures time, and within compile_ahead nothing is launched: run it outside")


def adopt(tensors: Sequence[torch.Tensor]) -> None:
    """Have tensors of compiled code on the emulated GPU where one is; without one nothing."""
    if _GPUS:
        _GPUS[-1].adopt(tensors)


def _empty(shape: Sequence[int], strides: Sequence[int], kind: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=kind, device="cuda")


def _stream(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


def _current() -> int:
    return int(torch.cuda.current_device())


# In place of torch's functions in C, by the names that modules of this package have for them.
_FUNCTIONS = {"empty_on_gpu": _empty, "raw_stream": _stream, "current_device": _current, "take_memory": None}


@contextmanager
def operators_on(gpu: JoinedGpu) -> Iterator[None]:
    """Within it operators compute on an emulated GPU."""
    real = {name: getattr(launch, name) for name in _FUNCTIONS}
    forget((occupancy,))
    _replace(real, _FUNCTIONS)
    _GPUS.append(gpu)
    try:
        yield
    finally:
        _GPUS.pop()
        _replace(_FUNCTIONS, real)  # of modules that were loaded within, too
        forget((occupancy,))


def _replace(old: Mapping[str, object], new: Mapping[str, object]) -> None:
    for module in _modules():
        for name, value in old.items():
            if name in vars(module) and vars(module)[name] is value:
                setattr(module, name, new[name])


def forget(others: Sequence[ModuleType] = ()) -> None:
    """Drop what was chosen, prepared and kept for GPUs, by these modules too. What was compiled stays."""
    for module in (*_modules(), *others):
        for value in list(vars(module).values()):
            own = str(getattr(value, "__module__", "")).startswith(__name__.partition(".")[0])
            if own and hasattr(value, "cache_clear"):
                value.cache_clear()
        for name in _TABLES:
            if name in vars(module):
                vars(module)[name].clear()


_PACKAGE = f"{__name__.rpartition('.')[0]}."


def _modules() -> list[ModuleType]:
    """The modules of this package that are loaded."""
    return [module for name, module in list(sys.modules.items()) if name.startswith(_PACKAGE)]


@contextmanager
def _forgetting(_: ahead.KernelsAhead) -> Iterator[None]:
    """Drop launches that are kept, before and after. The GPU's occupancy, which takes 0.6 s, stays known."""
    forget()
    try:
        yield
    finally:
        forget()


join(operators_on)
ahead.join(_forgetting)
