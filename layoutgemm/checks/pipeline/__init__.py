"""Producer-consumer pipelines: a model of barriers, and proofs over every interleaving.

model, actions, barriers   a pipeline as a value: roles and buffers; what a role does; arrive counts, bytes and phases
patterns                   the pipelines of our kernels
prove, symmetry            proven for any number of tiles, or refuted; warps that stand for each other
program, machine           roles as flat code, and the meaning of each action
happens_before, trace      who knows of which access; the steps of a run that breaks it
table                      a pipeline as a table
"""
