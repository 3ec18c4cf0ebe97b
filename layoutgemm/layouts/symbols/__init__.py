"""Layouts whose extents and strides are symbols, and the facts known about them.

dims                        dim, dims: symbols
polynomial, generators      what an extent or a stride is when it is no int; its // and %
facts, solver, conditions   what is known, what follows from it, and which of it was used
symbolic_layout             the Layout with symbols
operations, views           its algebra: composition, divides, products; slices
dispatch                    whether an argument has symbols
sympy_io, sympy_formulas    to and from SymPy
"""
