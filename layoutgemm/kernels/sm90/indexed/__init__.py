"""Products that gather rows of A, or scatter rows of C, through row indices."""
