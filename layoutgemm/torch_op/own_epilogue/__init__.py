"""matmul with an epilogue of the caller's own: epilogue=, given=.

operators   torch.ops.layoutgemm.epilogue_matmul, as compilers and functorch see it
api         what `matmul` calls
"""
