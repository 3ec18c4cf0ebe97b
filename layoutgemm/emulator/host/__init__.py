"""The host function of a compiled kernel, run above a stub of the CUDA runtime.

session         emulated_gpu: the context manager that a script runs in
launcher, types the host function of a kernel, and its argument types
arguments       NumPy arrays and CPU tensors as global memory
devices         the GPUs that a script is told about
cuda_calls      stand-ins for cuda.bindings: streams, events, device queries
cuda_programs   programs of CUDA C++, above a runtime of callbacks; textures: their arrays, texture and surface objects
graphs          CUDA graphs and stream capture, of programs of C++, cuda.bindings and torch
libraries       libraries of CUDA C++ that Python loads, by TVM-FFI or ctypes
driver_modules  modules of PTX and their launches, for cuda.bindings
callers         the lines that call helper functions of a kernel
torch_device    torch's "cuda" device
dsl_calls, exported, triton_calls, jax_calls   launches by cute.compile, from an exported file, by Triton, by JAX
ranks, collectives, multicast   ranks as threads, torch.distributed and NVSHMEM among them, multicast addresses
"""

from ...moved import old_names

__getattr__ = old_names(__name__)
