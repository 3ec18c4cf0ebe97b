"""One fetch from a texture by each lane: the kernel, random textures, and the same texture on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from layoutgemm.emulator.machine.textures import MODES, TextureOf
from tests.micro.cuda_driver import Device

LANES = 32
# Elements and how they are read, of which linear filters make floats.
FLOATS = [("f4", "element"), ("f2", "element"), ("u1", "normalized"), ("i1", "normalized"), ("u2", "normalized"),
          ("i2", "normalized")]  # fmt: skip
# CUarray_format, CUaddress_mode and flags of a texture, in CUDA's numbers.
_FORMATS = {"u1": 1, "u2": 2, "u4": 3, "i1": 8, "i2": 9, "i4": 10, "f2": 16, "f4": 32}
_ADDRESS = {"wrap": 0, "clamp": 1, "mirror": 2, "border": 3}
_AS_INTEGER, _NORMALIZED, _LAYERED, _HOST, _ARRAY = 1, 2, 1, 1, 3


def kernel_of(texture: TextureOf, kind: str, of: str = "f32", what: str = "tex.{}.v4") -> str:
    """The module of a kernel `fetch(t, o, x[, y, z][, layer])`: o[lane] = four channels at the lane's coordinates.

    kind, of  types of the result and of the coordinates; what: the opcode without them, {} for the geometry
    """
    names = [*"xyz"[: len(texture.extents)], *["layer"] * texture.layered]
    lines = ["mov.u32 %i, %tid.x; mul.wide.u32 %d0, %i, 16; ld.param.u64 %t, [t]; ld.param.u64 %o, [o];"]
    for n, name in enumerate(names):
        lines.append(f"ld.param.u64 %d1, [{name}]; mul.wide.u32 %d2, %i, 4; add.u64 %d1, %d1, %d2;")
        lines.append(f"ld.global.b32 %r{n}, [%d1]; mov.b32 %f{n}, %r{n};")
    at = [f"{'%f' if of == 'f32' else '%r'}{n}" for n in range(len(texture.extents))]
    at = ([f"%r{len(at)}"] if texture.layered else []) + at
    at += at[-1:] * (len(at) == 3)
    out = ", ".join([f"{'%f' if kind == 'f32' else '%r'}1{n}" for n in range(4)])
    lines.append(f"{what.format(texture.geometry)}.{kind}.{of} {{{out}}}, [%t, {{{', '.join(at)}}}];")
    lines.append(f"add.u64 %o, %o, %d0; st.global.v4.b32 [%o], {{{out}}}; ret;")
    parameters = ", ".join([f".param .u64 {name}" for name in ("t", "o", *names)])
    registers = ".reg .b32 %i, %r<16>; .reg .f32 %f<16>; .reg .b64 %d<4>, %t, %o;"
    head = f".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry fetch({parameters})\n{{\n{registers}\n"
    return head + "\n".join(lines) + "\n}\n"


def array_of(rng: np.random.Generator, kind: str, axes: int, channels: int, layered: bool) -> npt.NDArray[Any]:
    """A random array of a texture."""
    shape = (*rng.integers(2, 7, axes + layered), *((channels,) if channels > 1 else ()))
    if kind[0] == "f":
        return rng.integers(-8, 9, shape).astype(kind)
    return rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, np.dtype(kind), endpoint=True)


def drawn(rng: np.random.Generator, number: int) -> tuple[TextureOf, npt.NDArray[np.float64], npt.NDArray[np.int32]]:
    """A texture of floats, points and layers; numbers one after the other go through formats, filters and shapes.

    Points are odd multiples of 1/2048, so that none is a texel's edge where extents are powers of two.
    """
    kind, read = FLOATS[number % 6]
    layered, channels = number % 5 == 0, (1, 2, 4)[number // 8 % 3]
    axes = 1 + number % (2 if layered else 3)
    address = tuple(str(rng.choice(MODES)) for _ in range(axes))
    texture = TextureOf(array_of(rng, kind, axes, channels, layered), channels, layered, address,
                        ("linear", "point")[number // 2 % 2], bool(number % 2), read, (1.0, 2.0, 3.0, 4.0))  # fmt: skip
    points = rng.integers(-128, 320, (LANES, axes)) / 64 + 1 / 2048
    return texture, points, rng.integers(-1, 8, LANES).astype(np.int32)


class _Copy(ctypes.Structure):
    _fields_ = [
        *[(f"src{name}", ctypes.c_size_t) for name in ("X", "Y", "Z", "LOD")], ("src_type", ctypes.c_int),
        ("src_host", ctypes.c_void_p), ("src_device", ctypes.c_uint64), ("src_array", ctypes.c_void_p),
        ("src_0", ctypes.c_void_p), ("src_pitch", ctypes.c_size_t), ("src_height", ctypes.c_size_t),
        *[(f"dst{name}", ctypes.c_size_t) for name in ("X", "Y", "Z", "LOD")], ("dst_type", ctypes.c_int),
        ("dst_host", ctypes.c_void_p), ("dst_device", ctypes.c_uint64), ("dst_array", ctypes.c_void_p),
        ("dst_0", ctypes.c_void_p), ("dst_pitch", ctypes.c_size_t), ("dst_height", ctypes.c_size_t),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t),
    ]  # fmt: skip


class _Array(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_size_t) for name in ("width", "height", "depth")], ("format", ctypes.c_int),
        ("channels", ctypes.c_uint), ("flags", ctypes.c_uint),
    ]  # fmt: skip


class _Resource(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("array", ctypes.c_void_p),
        ("rest", ctypes.c_int * 30),
        ("flags", ctypes.c_uint),
    ]


class _Texture(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_int * 3), ("filter", ctypes.c_int), ("flags", ctypes.c_uint),
        ("anisotropy", ctypes.c_uint), ("mip", ctypes.c_int), ("bias", ctypes.c_float * 3),
        ("border", ctypes.c_float * 4), ("rest", ctypes.c_int * 12),
    ]  # fmt: skip


@contextmanager
def bound(device: Device, texture: TextureOf) -> Iterator[int]:
    """The texture object of a CUDA array with a texture's content."""
    width, *more = texture.extents
    height, depth = (*more, 0, 0)[:2]
    depth = texture.layers if texture.layered else depth
    made, handle = ctypes.c_void_p(), ctypes.c_uint64()
    layout = _Array(
        width, height, depth, _FORMATS[texture.array.dtype.str[1:]], texture.channels, _LAYERED * texture.layered
    )
    device.call("cuArray3DCreate_v2", ctypes.byref(made), ctypes.byref(layout))
    try:
        host = np.ascontiguousarray(texture.array)
        row = width * texture.texel
        source = {"src_type": _HOST, "src_host": host.ctypes.data, "src_pitch": row, "src_height": max(height, 1)}
        size = {"width": row, "height": max(height, 1), "depth": max(depth, 1)}
        copy = _Copy(dst_type=_ARRAY, dst_array=made, **source, **size)
        device.call("cuMemcpy3D_v2", ctypes.byref(copy))
        integers = texture.array.dtype.kind != "f" and texture.read == "element"
        sampler = _Texture(
            filter=int(texture.filter == "linear"), flags=_AS_INTEGER * integers | _NORMALIZED * texture.normalized
        )
        sampler.address[:] = [_ADDRESS[mode] for mode in (*texture.modes, "clamp", "clamp")[:3]]
        sampler.border[:] = texture.border
        resource = _Resource(type=0, array=made)
        device.call("cuTexObjectCreate", ctypes.byref(handle), ctypes.byref(resource), ctypes.byref(sampler), None)
        yield handle.value
        device.call("cuTexObjectDestroy", handle)
    finally:
        device.lib.cuArrayDestroy(made)


def on_gpu(device: Device, text: str, texture: TextureOf, given: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.uint32]:
    """[lane, channel] of bits that the kernel of `kernel_of` stores on a GPU."""
    module, function = device.load(text), ctypes.c_void_p()
    device.call("cuModuleGetFunction", ctypes.byref(function), module, b"fetch")
    out = np.zeros((LANES, 4), np.uint32)
    pointers = [ctypes.c_uint64() for _ in range(1 + len(given))]
    with bound(device, texture) as handle:
        for pointer, array in zip(pointers, (out, *given), strict=True):
            device.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(array.nbytes))
            device.call(
                "cuMemcpyHtoD_v2", pointer, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes)
            )
        values = [ctypes.c_uint64(handle), *pointers]
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        device.call("cuLaunchKernel", function, 1, 1, 1, LANES, 1, 1, 0, None, arguments, None)
        device.call("cuCtxSynchronize")
        device.call("cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), pointers[0], ctypes.c_size_t(out.nbytes))
    for pointer in pointers:
        device.lib.cuMemFree_v2(pointer)
    device.unload(module)
    return out
