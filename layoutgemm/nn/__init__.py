"""Modules on layoutgemm's kernels, and swap_linears, which puts them into a model.

    module           computes                                        state dict
    ---------------  ----------------------------------------------  ------------------------------------------
    Linear           activation(x @ weight.T + bias), one kernel     torch.nn.Linear's
    GatedMLP         down(act(x @ gate.T) * (x @ up.T)), of any      gate_proj, up_proj, down_proj
                     of these layers but the packed ones
    ScaledLinear     Linear with float8 weights, scales of blocks    torch.nn.Linear's, or with weight_scale_inv
    MasterLinear     Linear in fp8 with gradients in fp8, to train   torch.nn.Linear's
    MasterGroups     the same of rows in groups, as of experts        (experts, out features, in features)
    QuantizedLinear  Linear with packed weights of 4 or 8 bits       units, scales, bias
    ExpertsMLP       gated MLPs of experts, of packed, float8 or     of both layers
                     master weights

`load_checkpoint` fills a model from safetensors, packed layers included. `experts_forward` computes the experts of
transformers' models. Linear is DenseLinear, as models and reports print it.

linear, gated, scaled, master, quantized, experts  the layers
kept_weights                                       master weights that stay quantised for inference
routing, recorded_experts                          experts' rows in order; gated ones with gradients
swap, adopted                                      layers into a model; layers of other libraries in place
loading                                            tensors of files into a model
checkpoint, packed_layer, stored_experts           files; packed layers of their tensors; experts stored one by one
packed_experts                                     dense experts, packed
stored_blocks                                      experts' parameters stored as blocks of MXFP4
Every product is `layoutgemm.matmul`, `scaled_matmul`, `fp8_matmul`, `quantized_matmul` or a grouped one of these, with
their rules and refusals.

>>> import torch
>>> from layoutgemm.nn import swap_linears
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).bfloat16()
>>> print(swap_linears(model))
replaced  0  by DenseLinear
1 of 1 linear layers replaced
"""

from .checkpoint import Checkpoint
from .experts import ExpertsMLP, experts_forward
from .gated import GatedMLP
from .linear import DenseLinear
from .loading import Loaded, load_checkpoint
from .master import MasterGroups, MasterLinear
from .quantized import QuantizedLinear
from .scaled import ScaledLinear
from .swap import Swapped, Swaps, swap_linears

Linear = DenseLinear  # the name that models and reports print can be imported, too

__all__ = [
    "Checkpoint",
    "DenseLinear",
    "ExpertsMLP",
    "GatedMLP",
    "Linear",
    "Loaded",
    "MasterGroups",
    "MasterLinear",
    "QuantizedLinear",
    "ScaledLinear",
    "Swapped",
    "Swaps",
    "experts_forward",
    "load_checkpoint",
    "swap_linears",
]
