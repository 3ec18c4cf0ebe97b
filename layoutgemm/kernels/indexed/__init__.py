"""Row indices: the rows of A that are gathered, and those of C that are scattered, of several architectures."""
