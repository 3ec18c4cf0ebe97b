"""A CuTe-style layout algebra in plain Python, with the GEMM kernels built on it.

Layouts and proofs   Layout, Swizzle, ComposedLayout, E, parse, dim, dims, Facts, prove, Proof, CounterExample
Atoms                wgmma, smem_tile; the others are in `layoutgemm.atoms`, budgets and banks in `layoutgemm.checks`
Kernels              plan, GemmPlan, Sm80Plan, Sm90Plan, Sm100Plan and their Sm80Config, Sm90Config,
                     Sm100Config; on torch tensors matmul, gemm, scaled_matmul, grouped_matmul, fp8_matmul,
                     fp8_grouped_matmul, quantize, quantize_both, quantized_matmul with QuantizedFormat and
                     QuantizedWeight, explain_matmul, tune; on JAX's arrays jax.matmul
Tools                emulate, emulate_ptx, emulated_gpu, mutate, from_cute

Every refusal is a LayoutError; `layoutgemm.errors` has its kinds. Pictures are in `layoutgemm.view`.

>>> from layoutgemm import Layout
>>> tile = Layout((8, 16), (16, 1))
>>> tile(3, 5), str(tile.zipped_divide((4, 4)))
(53, '((4,4),(2,4)):((16,1),(64,4))')
"""

import sys
from typing import TYPE_CHECKING, Any

from .errors import LayoutError
from .layouts import ComposedLayout, CounterExample, E, Layout, Proof, Swizzle, parse
from .lazy_names import by_import, elsewhere, homes_of_names
from .moved import install, old_names

if TYPE_CHECKING:
    from .atoms import smem_tile, wgmma
    from .emulator.api import emulate, emulate_ptx, emulated_gpu
    from .emulator.mutation.api import mutate
    from .interop import from_cute
    from .kernels import GemmPlan, Sm80Config, Sm80Plan, Sm90Config, Sm90Plan, Sm100Config, Sm100Plan
    from .kernels.planner import plan
    from .kernels.quantized.formats import QuantizedFormat as QuantizedFormat
    from .layouts.proofs.prove import prove
    from .layouts.symbols.dims import dim, dims
    from .layouts.symbols.facts import Facts
    from .torch_op.api import gemm as gemm
    from .torch_op.api import matmul as matmul
    from .torch_op.explain import explain_matmul as explain_matmul
    from .torch_op.fp8.api import quantize as quantize
    from .torch_op.fp8.api import quantize_both as quantize_both
    from .torch_op.quantized import QuantizedWeight as QuantizedWeight
    from .torch_op.quantized import quantized_matmul as quantized_matmul
    from .torch_op.scaled_grouped import fp8_grouped_matmul as fp8_grouped_matmul
    from .torch_op.scaled_grouped import fp8_matmul as fp8_matmul
    from .torch_op.scaled_grouped import grouped_matmul as grouped_matmul
    from .torch_op.scaled_grouped import scaled_matmul as scaled_matmul
    from .torch_op.tuning import tune as tune

install()

__version__ = "0.1.0"

# Loaded on first use: users of layouts alone do not pay for kernels.
_LATER = homes_of_names(sys._getframe().f_code, globals())
_DOORS = frozenset({"jax"})  # modules that need another framework
_old_name = old_names(__name__, frames=1)


def __getattr__(name: str) -> Any:
    imported = by_import()
    if name not in _LATER and name not in _DOORS:
        try:
            return _old_name(name)
        except AttributeError as error:
            raise elsewhere(__name__, error, imported) from None
    from importlib import import_module

    needs, without = (
        ("jax", "") if name in _DOORS else ("torch", "; layouts, proofs, plans and the emulator do without")
    )
    try:
        module = import_module(_LATER.get(name, f".{name}"), __name__)
        value = module if name in _DOORS else getattr(module, name)  # which may import more
    except ModuleNotFoundError as error:
        if error.name != needs:
            raise
        said = f"layoutgemm.{name} needs {needs}: pip install 'layoutgemm[{needs}]'{without}"
        if imported:
            raise ModuleNotFoundError(said, name=needs) from None
        raise AttributeError(said, name=name, obj=sys.modules[__name__]) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_DOORS})


# The names of a star import at a prompt: all but those that need torch, which takes seconds to load.
__all__ = [
    "ComposedLayout",
    "CounterExample",
    "E",
    "Facts",
    "GemmPlan",
    "Layout",
    "LayoutError",
    "Proof",
    "Sm80Config",
    "Sm80Plan",
    "Sm90Config",
    "Sm90Plan",
    "Sm100Config",
    "Sm100Plan",
    "Swizzle",
    "__version__",
    "dim",
    "dims",
    "emulate",
    "emulate_ptx",
    "emulated_gpu",
    "from_cute",
    "mutate",
    "parse",
    "plan",
    "prove",
    "smem_tile",
    "wgmma",
]
