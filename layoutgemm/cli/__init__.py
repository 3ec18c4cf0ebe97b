"""The subcommands of `layoutgemm`, one file a group.

arguments    what they share: one-line errors, examples in the help, layouts and tiles as text, JSON
named        atoms, copies, orders of tiles and swizzles by name
show         show: a layout, a tile, an atom, a copy or an order of tiles as text or as a picture
banks        swizzle, banks: which swizzle is free of conflicts, and what conflicts
shared       desc, box: the matrix descriptor and the tensor copies of a tile
plans        plan: the derivation of a GEMM and its checks
"""
