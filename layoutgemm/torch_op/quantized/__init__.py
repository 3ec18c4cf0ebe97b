"""layoutgemm.quantized_matmul: activations of 16 bits or float8 times packed weights of 4 and 8 bits.

weights     QuantizedWeight: packed units as a tensor, from plain weights and back
experts     several experts' weights in one launch
operators   torch.ops.layoutgemm.quantized_matmul and dequantized, as compilers and autograd see them
launch      a checked product on a GPU, or in float64 on the CPU
api         the functions
"""

from .api import quantized_grouped_matmul, quantized_matmul
from .experts import QuantizedExperts
from .weights import QuantizedWeight

__all__ = ["QuantizedExperts", "QuantizedWeight", "quantized_grouped_matmul", "quantized_matmul"]
