"""Provers of layout equivalence, and their verdicts."""
