"""The Operator API, asked for by name, and the Provider that is registered with it."""

from __future__ import annotations

import importlib.metadata

NEEDS = "layoutgemm.operators needs the CUTLASS Operator API: pip install nvidia-cutlass-operators"
NAMES = ("GemmArguments", "IndexPtrGroupedGemmArguments", "Provider", "ScaledOperand", "TargetSm", "register_provider")

try:
    import cutlass.operators as api
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{NEEDS} ({error})", name=error.name) from error


def missing_name(module: object) -> str:
    """The first name that this package needs and an API lacks, or "".

    >>> missing_name(api), missing_name(object())
    ('', 'GemmArguments')
    """
    return next((name for name in NAMES if not hasattr(module, name)), "")


if lacking := missing_name(api):
    version = importlib.metadata.version("nvidia-cutlass-operators")
    raise ImportError(
        f"nvidia-cutlass-operators {version} has no {lacking}: layoutgemm.operators is for 0.3.0 and later"
    )

__all__ = ["LayoutgemmProvider", "api", "missing_name"]

available = api.available_providers


@api.register_provider("layoutgemm")
class LayoutgemmProvider(api.Provider):
    """The operators of this package: one for a problem, the kernel that torch_op chooses."""


# Callers that time the first few operators see providers in this order.
for name in [name for name in available if name != "layoutgemm"]:
    available[name] = available.pop(name)
