"""PTX: parser, values and the Python generated from a kernel.

parser, statements, declarations   the text: kernels, statements and labels, variables and functions
constants               constant expressions of integers
forms, coverage         the spellings of scalar instructions; which instructions of a kernel are known
inlining, program       functions inlined; blocks, reconvergence points and live registers
codegen, batching, rules   Python of an instruction, of many at once; the expression of each scalar instruction
values, floats, rounding, video   integer and floating-point arithmetic on raw bits, rounding modes, video instructions
"""

from ...moved import old_names

__getattr__ = old_names(__name__)
