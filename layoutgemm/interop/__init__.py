"""Conversions of layouts, tensors, copies and products: the CuTe DSL, pycute, tensor-layouts and torch.

`from_cute` takes one of their objects and returns ours, equal as a function; `to_cute`, a method too, is the way back.

dsl_layouts   layouts, swizzles and tensors of the DSL, read from their types' notation
dsl_atoms     its instructions, tiled copies and tiled products
dsl_refused   those of its instructions that have no atom here, with the way out
take          from_cute and tensor_layout, which look at what they are given
give          to_cute, to_module

Importing this loads none of those packages, and neither does from_cute: it reads what is there. Only `to_cute` and
`cute_context` import the DSL, when they are called.
"""

from .cute_reader import from_cute, tensor_layout
from .cute_writer import cute_context, to_cute, to_module
from .dsl_layouts import TensorLayout

__all__ = ["TensorLayout", "cute_context", "from_cute", "tensor_layout", "to_cute", "to_module"]
