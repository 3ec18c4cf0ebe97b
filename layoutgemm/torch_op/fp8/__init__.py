"""layoutgemm.quantize: a tensor as 8-bit floats and scales, in one kernel.

api         a kept launch, or checks and then the launch, or torch's dispatcher
operators   torch.ops.layoutgemm.quantize; checks
launch      plans, results, and launches, kept for the next call
reference   the same bits by torch's operators, on any device
"""
