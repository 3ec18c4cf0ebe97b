"""layoutgemm.quantize: a tensor as 8-bit floats and scales, in one kernel; and the layers that call it.

api         a kept launch, or checks and then the launch, or torch's dispatcher
operators   torch.ops.layoutgemm.quantize; checks
layer       both launches of a float8 layer, kept
launch      plans, results, and launches, kept for the next call
reference   the same bits by torch's operators, on any device
"""
