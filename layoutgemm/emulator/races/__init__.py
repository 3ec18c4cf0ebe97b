"""Race detection by happens-before, between warps and between lanes."""
