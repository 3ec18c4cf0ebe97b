"""Products as `layoutgemm.tune` measures them: candidates, operands, a call, its error.

product         `matmul`'s own, and what those with functions share with it
epilogue        with an epilogue
prologue        with a prologue
packed          with packed weights
scaled_grouped  with scales, of groups, and gated ones
"""
