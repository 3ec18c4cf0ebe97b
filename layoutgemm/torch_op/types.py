"""torch's types and the names that plans use for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch

from ..errors import OperandError
from ..kernels.sm80.plan import Sm80Config, Sm80Plan
from ..kernels.sm90.config import Sm90Config
from ..kernels.sm90.plan import Sm90Plan
from ..kernels.sm100.plan import Sm100Config, Sm100Plan
from .problem import C_TYPES, OLDEST_TORCH


def refuse_older(version: torch.torch_version.TorchVersion) -> None:
    """Raise OperandError for a version of torch that is too old.

    >>> refuse_older(torch.torch_version.TorchVersion("2.5.1+cu124"))
    Traceback (most recent call last):
        ...
    layoutgemm.errors.OperandError: torch 2.5.1+cu124: layoutgemm needs torch 2.6 or later; pip install 'torch>=2.6'
    """
    if version < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise OperandError(f"torch {version}: layoutgemm needs torch {oldest} or later; pip install 'torch>={oldest}'")


refuse_older(torch.__version__)

GroupsPlan = Sm80Plan | Sm90Plan | Sm100Plan  # of a product in groups, or with scales
GroupsConfig = Sm80Config | Sm90Config | Sm100Config

Scalar: TypeAlias = float | torch.Tensor  # alpha and beta: numbers, or tensors of one element

# float32 is multiplied as tf32, which keeps 11 bits of the significand.
NAMES = {
    torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2",
    torch.float32: "tf32", torch.int8: "i8", torch.uint8: "u8",
}  # fmt: skip
C_NAMES = {**NAMES, torch.float32: "f32", torch.int32: "i32"}
TYPES = {name: kind for kind, name in C_NAMES.items()}

READ = (torch.float32, torch.bfloat16, torch.float16)  # of a bias and of a C that an epilogue reads
WHOLE = (torch.int32, torch.int16, torch.int8, torch.uint8)  # of a bias and of a C of integers


def listed(kinds: Iterable[torch.dtype]) -> str:
    """The types by name, for an error.

    >>> listed(READ)
    'float32, bfloat16, float16'
    """
    return ", ".join([str(kind).removeprefix("torch.") for kind in kinds])


def of_mask(name: str, kind: torch.dtype) -> str:
    """The end of an error about row indices of that type. For a mask it says where its rows are.

    >>> of_mask("rows", torch.bool), of_mask("rows", torch.float32)
    ('; rows.nonzero().flatten() are the rows of a mask', '')
    """
    return f"; {name}.nonzero().flatten() are the rows of a mask" if kind == torch.bool else ""


def usual_type(kind: torch.dtype) -> torch.dtype:
    """The type of a product of that type where none is asked for.

    >>> usual_type(torch.int8)
    torch.int32
    """
    return TYPES[C_TYPES[NAMES[kind]][0]]
