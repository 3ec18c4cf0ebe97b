"""Tables of text for a terminal, a log or a docstring."""
