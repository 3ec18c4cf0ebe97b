"""matmul with an epilogue of the caller's own: epilogue=, given=.

names       its operands in the four lists that operators take
formula     its steps by torch, which torch derives
derivatives the product's: the formula's, and products by kernels
operators   torch.ops.layoutgemm.epilogue_matmul, as compilers and functorch see it
api         what `matmul` calls

scaled_operators and scaled_api are these of `scaled_matmul` and `grouped_matmul`.
"""
