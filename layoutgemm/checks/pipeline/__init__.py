"""Producer-consumer pipelines: a model of barriers, and proofs over every interleaving."""

from ...moved import old_names

__getattr__ = old_names(__name__)
