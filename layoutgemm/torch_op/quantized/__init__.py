"""layoutgemm.quantized_matmul: activations of 16 bits or float8 times packed weights of 4 and 8 bits.

weights             QuantizedWeight: packed units as a tensor, from plain weights and back
no_tensor           what packed weights answer where a tensor is expected
dense               packed weights as dense matrices: by a kernel on a GPU
experts             several experts' weights in one launch
configs             configurations of kernels, as operators take them
operators           torch.ops.layoutgemm.quantized_matmul and dequantized, as compilers and autograd see them
epilogue_operator   the operator with an epilogue, likewise
launch              a checked product on a GPU, or in float64 on the CPU
own_epilogue        the same behind an epilogue of one's own
kept                launches that are kept for a repeated call
explain             what a call would do
api                 the functions
"""

from .api import quantized_grouped_matmul, quantized_matmul
from .experts import QuantizedExperts
from .weights import QuantizedWeight

__all__ = ["QuantizedExperts", "QuantizedWeight", "quantized_grouped_matmul", "quantized_matmul"]
