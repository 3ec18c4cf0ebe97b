"""Further operands of a Hopper product: several matrices B, a second pair, numbers of tables."""
