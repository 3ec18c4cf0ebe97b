"""Products whose rows of A are gathered, and whose rows of C are scattered, through vectors of row indices."""
