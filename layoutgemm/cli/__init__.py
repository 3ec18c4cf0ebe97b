"""The subcommands of `layoutgemm`, one file a group.

main         the parser, and the command that is run
commands     the table of the subcommands: their files, and their lines in the help
arguments    what they share: one-line errors, examples in the help, sizes as text, pictures, JSON
texts        layouts and tiles as text
object_names atoms, copies, orders of tiles and swizzles by name
pages        --html: interactive pages
show         show: a layout, a tile, an atom, a copy or an order of tiles as text or as a picture
banks        swizzle, banks: which swizzle is free of conflicts, and what conflicts
descriptors  desc, box: the matrix descriptor and the tensor copies of a tile
prove        prove: two layouts equal at every size, or the first difference
plan         plan: the derivation of a GEMM and its checks
emulate, compile, tune, bench, doctor, demo, completion    the command of that name
"""
