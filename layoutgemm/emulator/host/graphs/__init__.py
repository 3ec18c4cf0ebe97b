"""CUDA graphs on an emulated GPU.

graph      nodes, their edges, and executable graphs; statuses: the statuses of CUDA
capture    streams that capture, and the events that join them
cpp_calls  the functions of CUDA's runtime for a program of C++; bindings: those of cuda.bindings
"""
