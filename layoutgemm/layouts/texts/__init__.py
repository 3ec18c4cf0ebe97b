"""Layouts from texts of other notations than CuTe's: C++ and calls, Triton, torch, NumPy, MLIR.

spelled        CuTe's types in C++, and the calls that make a layout
sized          sizes and strides of torch, Inductor, NumPy, DLPack, MLIR
encodings, bases, padded, views, amd   Triton's attributes, linear layouts, padded layouts, views, AMD's matrix layouts
operations, parts   lines of IR; shared parts of the readers of Triton's attributes
mappings       Tilus, Hidet, Composable Kernel, TileLang
tilings        XLA and JAX's Mosaic GPU
tensor_maps    boxes of MLIR's nvgpu dialect
surroundings   the text around a layout
"""
