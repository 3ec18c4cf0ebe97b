"""The epilogue of products with scales and of groups, for torch and JAX. Nothing here imports torch.

sums --scales of rows, columns and tensors--> --bias--> --activation--> --quantised--> C
"""

from __future__ import annotations

from functools import lru_cache

from ...kernels.epilogue.chain import Activation, Bias, Epilogue, Quantize, Scale, Step, VectorScale
from ...kernels.fp8.plan import BLOCK as BLOCK_OF_C
from ...kernels.fp8.plan import LEAST
from ...kernels.operands.gated import GATES
from .recipes import TENSOR, Recipes

SCALE_C = "scale_c"  # the epilogue's operand


@lru_cache(maxsize=256)
def epilogue_of(recipes: Recipes, bias: str | None, activation: str | None, quantized: str | None = None) -> Epilogue:
    """The epilogue of a product. The scales that the main loop leaves, a bias of that type, an activation.

    activation  a gate is none of its steps: those before it are of each sum
    quantized   the type of a result with scales of its own

    >>> [type(step).__name__ for step in epilogue_of(Recipes("RowWise", "TensorWise"), "bf16", "relu").steps]
    ['VectorScale', 'Scale', 'Bias', 'Activation']
    """
    steps: list[Step] = []
    if not recipes.in_mainloop:
        steps = [*scale_step("scale_a", "m", recipes.a), *scale_step("scale_b", "n", recipes.b)]
    if bias is not None:
        steps.append(Bias("n", bias))
    sums = len(steps) if activation in GATES else 0
    if activation is not None and activation not in GATES:
        steps.append(Activation(activation))
    if quantized is not None:
        steps.append(Quantize(SCALE_C, BLOCK_OF_C, quantized, LEAST, "col"))
    return Epilogue(*steps, sums=sums)


def scale_step(name: str, axis: str, recipe: str, of_sum: int | None = None) -> list[Step]:
    """The step that applies an operand's scales; none without a recipe.

    of_sum  before a gate: which of the two sums has them, or None for both
    """
    if not recipe:
        return []
    tensor = recipe == TENSOR
    return [Scale(name, True, of_sum) if tensor else VectorScale(axis, "f32", name, of_sum)]


def why_unfinished(form: str, name: str) -> str:
    """Why groups of that form take no bias, activation or gate.

    form  "columns" or "K"
    name  of the argument

    >>> why_unfinished("K", "bias")
    'bias: groups of K take none, groups of rows do; the product of each is the gradient of a weight'
    """
    why = {
        "K": "the product of each is the gradient of a weight",
        "columns": "they are rows of the transpose, so grouped_matmul(b.mT, a.mT, ...).mT takes one",
    }[form]
    return f"{name}: groups of {form} take none, groups of rows do; {why}"
