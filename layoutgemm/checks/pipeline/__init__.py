"""Producer-consumer pipelines: a model of barriers, and proofs over every interleaving."""
