"""Calls under torch.compile: their checks while they are traced, and their launches in Inductor's code.

traced     checks, whose refusals the compiler reports with their text
lowering   what Inductor writes for an operator: a call of a function of `direct`
direct     these functions: products into a given tensor, without torch's dispatcher
"""
