"""Epilogues: functions of the accumulators that a kernel computes before it stores C.

chain, steps           an Epilogue, and its steps: scales, bias, residual, activations, masks, a user's own function
tracing, places        a Python function as an expression, and the row and column that it is given
reduce, reductions     steps that reduce rows, columns or all of C; what they reduce by
parameters             operands as the words of a launch
text                   steps as JSON
matrix, grouped_matrix, numpy_math   the NumPy reference, with groups of rows, and its functions in f32
arrays                 operands as NumPy arrays
"""
