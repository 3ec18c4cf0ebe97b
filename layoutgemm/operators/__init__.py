"""layoutgemm as a Provider of NVIDIA's CUTLASS Operator API. Importing this package registers it, in front.

    arguments                       operator         kernel                      targets
    ------------------------------  ---------------  --------------------------  ------------------------------------
    GemmArguments, 2D or 3D         DenseOperator    what matmul takes           80 to 89, 90a, 120a; 100a: compiled
    GemmArguments with an epilogue  DenseOperator    the same, epilogue inside   80 to 89, 90a, 120a; 100a: compiled
    GemmArguments of ScaledOperand  ScaledOperator   what scaled_matmul takes    90a
    IndexPtrGroupedGemmArguments    GroupedOperator  what grouped_matmul takes   90a

`cutlass.operators.get_operators(args)` then lists one operator of ours for a problem: the one that matmul would run.

>>> import cutlass.operators, torch, layoutgemm.operators
>>> a, b, c = (torch.empty(256, 256, dtype=torch.bfloat16) for _ in range(3))
>>> args = cutlass.operators.GemmArguments(a, b, c, torch.float32)
>>> [found.metadata.operator_class.__name__ for found in cutlass.operators.get_operators(args, target_sm="90a")][0]
'DenseOperator'
"""

from .api import LayoutgemmProvider
from .dense import DenseOperator
from .design import ChosenDesign
from .hopper import GroupedOperator, ScaledOperator

__all__ = ["ChosenDesign", "DenseOperator", "GroupedOperator", "LayoutgemmProvider", "ScaledOperator"]
