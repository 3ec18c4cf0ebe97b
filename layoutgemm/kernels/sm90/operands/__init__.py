"""Further operands of a Hopper product: a prologue, sums of rows, numbers of tables."""
