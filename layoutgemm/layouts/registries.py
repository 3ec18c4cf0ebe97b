"""Registries of the functions that layouts take from the files above them."""

from __future__ import annotations

from .registry import Registry

# of a shape and a stride: the Layout, for those who compute on pairs
layout_of = Registry("layout", "layoutgemm.layouts.layout")
# of a layout and an offset: the layout that adds it
offset_by = Registry("offset", "layoutgemm.layouts.swizzle")
# of a layout of coordinates and the first of them: the tensor that begins there
coordinates_from = Registry("first coordinate", "layoutgemm.layouts.coordinates")
# of a text: the atom that a name of CUTLASS denotes, None for another text
atom_named = Registry("atom", "layoutgemm.atoms.cutlass_names")
# of a text: the layout or swizzle that it denotes
parsed = Registry("notation", "layoutgemm.layouts.notation")
# of a layout and names: its closed form; of a formula: its layout
expression_of = Registry("closed form", "layoutgemm.layouts.formulas")
layout_of_formula = Registry("layout", "layoutgemm.layouts.formulas")
# of a layout, swizzled or not: its matrix over GF(2)
matrix_of = Registry("matrix over GF(2)", "layoutgemm.layouts.linear")
# of a shape and a stride with symbols: the layout, with the conditions of others; of a plain layout: one with symbols
symbolic = Registry("layout with symbols", "layoutgemm.layouts.symbols.symbolic_layout")
lifted = Registry("layout with symbols", "layoutgemm.layouts.symbols.symbolic_layout")
# of a layout and a function: the layout of the function's entries
applied = Registry("entries", "layoutgemm.layouts.symbols.symbolic_layout")
# statements at every size
proven = Registry("proof", "layoutgemm.layouts.proofs.prove")
covering = Registry("proof", "layoutgemm.layouts.proofs.prove")
apart = Registry("proof", "layoutgemm.layouts.proofs.prove")
injective = Registry("proof", "layoutgemm.layouts.proofs.prove")
bijective = Registry("proof", "layoutgemm.layouts.proofs.prove")
# SymPy, which need not be installed
to_sympy = Registry("SymPy expression", "layoutgemm.layouts.symbols.sympy_io")
from_sympy = Registry("entry", "layoutgemm.layouts.symbols.sympy_io")
closed_form = Registry("closed form", "layoutgemm.layouts.symbols.sympy_formulas")
evaluator = Registry("function", "layoutgemm.layouts.symbols.sympy_formulas")
