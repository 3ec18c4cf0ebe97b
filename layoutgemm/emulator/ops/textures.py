"""tex, tld4, txq, suld, sust, suq. Textures and surfaces of 1 to 3 dimensions, and layers of 1 and 2.

Their objects are arguments (`TextureOf`), as nvcc compiles cudaTextureObject_t and cudaSurfaceObject_t: PTX's unified
mode. A mipmap level or gradients pick the one level that a texture has. A read by tex of what the launch has written is
a race. Surfaces are read and written as global memory is; PTX's proxies of textures and surfaces are not told apart.

PTX ISA, "Texture Instructions", "Surface Instructions".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...errors import EmulatorError
from ..machine.interpreter import Fiber
from ..machine.textures import BoundTexture, Texels, TextureOf
from ..ptx.parser import PtxInstruction, PtxOperand
from ..ptx.program import Program, Reader, Run
from ..ptx.values import Lanes, lanes_among
from .memory import UNSIGNED, assign, elements, lanewise, signed_to, touches_texels
from .registry import operation, taken

GEOMETRIES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2}  # dimensions of a layer
COMPONENTS = "rgba"
QUERIES = ("width", "height", "depth", "array_size", "num_mipmap_levels", "num_samples")


class TextureForm:
    """The words of an instruction: the geometry, and the coordinates' readers.

    geometry  "1d", "2d", "3d", "a1d" or "a2d"; layer: the reader of the layer, or None
    handle    the reader of the object
    """

    def __init__(self, program: Program, ins: PtxInstruction, at: int) -> None:
        found = [word for word in ins.words if word in GEOMETRIES]
        if len(found) != 1:
            raise ValueError(f"{ins.opcode}: textures are {', '.join(GEOMETRIES)} here, without cubes and samples")
        self.geometry = found[0]
        operand = ins.operands[at]
        self.handle, parts = _object(program, operand), list(operand.parts[1:])
        count, layered = GEOMETRIES[self.geometry], self.geometry[0] == "a"
        needed = {"3d": 4, "a2d": 4}.get(self.geometry, count + layered)  # a vector has 1, 2 or 4 elements
        if len(parts) != needed:
            how = "; a sampler of its own (.samplerref) is not emulated" if _names_sampler(operand) else ""
            raise ValueError(f"{len(parts)} coordinates for {self.geometry}, which has {needed}{how}")
        self.layer: Reader | None = program.value(parts.pop(0), "b32") if layered else None
        self.coordinates = [program.value(part, "b32") for part in parts[:count]]

    def object(self, fiber: Fiber, lanes: int) -> BoundTexture:
        """The lanes' object. Raises EmulatorError for numbers that are no objects, several, or another geometry."""
        handles = set(lanewise(self.handle(fiber), lanes).tolist())
        if len(handles) > 1:
            raise EmulatorError(f"lanes of one warp use {len(handles)} texture objects at once")
        bound = bound_at(fiber, int(handles.pop()))
        if bound.texture.geometry != self.geometry:
            raise EmulatorError(
                f"{bound.name} is a texture .{bound.texture.geometry}, the instruction .{self.geometry}"
            )
        return bound

    def layers(self, fiber: Fiber, lanes: int, count: int) -> npt.NDArray[np.int64]:
        """The nearest layer of each lane."""
        if self.layer is None:
            return np.zeros(lanes.bit_count(), np.int64)
        return np.clip(lanewise(self.layer(fiber), lanes).astype(np.int64) & 0xFFFFFFFF, 0, count - 1)


def _object(program: Program, operand: PtxOperand) -> Reader:
    """The reader of an object. Raises ValueError for a `.texref` or `.surfref`, which a module names."""
    if operand.kind != "address" or operand.parts[0].kind != "reg":
        raise ValueError(f"{operand.text} is no register with an object: a .texref or .surfref is not emulated")
    return program.address(operand, "b64")


def _names_sampler(operand: PtxOperand) -> bool:
    return any(part.kind == "vector" for part in operand.parts[2:])


def bound_at(fiber: Fiber, handle: int) -> BoundTexture:
    """The object of a number. Raises EmulatorError for another one."""
    found = fiber.machine.launch.memory.textures.get(handle)
    if found is None:
        raise EmulatorError(f"{handle:#x} is no texture or surface object: pass TextureOf(array) for it")
    return found


def _signed(values: Lanes) -> npt.NDArray[np.int64]:
    return (values.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32).astype(np.int64)


def _read(
    fiber: Fiber, ins: PtxInstruction, bound: BoundTexture, at: list[npt.NDArray[np.int64]],
    layers: npt.NDArray[np.int64], lanes: int,
) -> Texels:  # fmt: skip
    """[lane, four channels] of one texel a lane, checked and recorded."""
    texture = bound.texture
    places, inside = texture.wrapped(at)
    addresses = bound.address + texture.offsets(places, layers)
    mask = lanes_among(lanes, inside)
    if mask:
        touches_texels(fiber, ins, addresses[inside], texture.texel, mask, "samples")
    fiber.machine.counts.bytes["texture read"] += texture.texel * len(addresses)
    return texture.decoded(fiber.machine.launch.memory.read(addresses, texture.texel), inside)


def _finite(fiber: Fiber, form: TextureForm, lanes: int, integers: bool) -> list[npt.NDArray[np.float32]]:
    """The coordinates of each lane. Raises EmulatorError for infinities and NaN."""
    out = []
    for reader in form.coordinates:
        raw = lanewise(reader(fiber), lanes).astype(np.int64) & 0xFFFFFFFF
        found = _signed(raw).astype(np.float32) if integers else raw.astype(np.uint32).view(np.float32)
        if not np.isfinite(found).all():
            lane = int(np.flatnonzero(~np.isfinite(found))[0])
            raise EmulatorError(f"coordinate {found[lane]} of the {lane}th lane: PTX leaves open what it reads")
        out.append(found)
    return out


def _checked(texture: TextureOf, kind: str, name: str) -> None:
    """Refuse a result of another class than the texture's."""
    if texture.floats != (kind in ("f32", "f16")):
        has = f"floats (read={texture.read!r})" if texture.floats else f"elements of {texture.array.dtype}"
        raise EmulatorError(f"the instruction reads {kind}, and {name} has {has}")


def _assign(
    fiber: Fiber, targets: list[int | None], values: Texels, kind: str, lanes: int
) -> None:  # fmt: skip
    """Write [lane, target] of floats or integers to registers of a type."""
    size = 2 if kind == "f16" else 4
    words = values.astype(f"f{size}").view(f"u{size}") if kind[0] == "f" else values.astype(np.int64).astype(np.uint32)
    for n, register in enumerate(targets):
        if register is not None:
            assign(fiber, register, lanes, signed_to(np.ascontiguousarray(words[:, n]), kind, 8 * size))


@operation("tex", "tld4", guards=True)
def fetch_texture(program: Program, ins: PtxInstruction) -> Run:
    """tex: a filtered texel of each lane. tld4: one component of the four around it."""
    words, gathers = ins.words[1:], ins.words[0] == "tld4"
    kind, of = words[-2:]
    level = next((word for word in words if word in ("level", "grad", "base")), "")
    component = next((word for word in words if word in COMPONENTS), "")
    known = {*GEOMETRIES, "v4", kind, of, level, component}
    if (kind not in ("f32", "f16", "u32", "s32") or of not in ("f32", "s32") or "v4" not in words
            or [word for word in words if word not in known] or bool(component) != gathers):  # fmt: skip
        raise ValueError(
            f"{ins.opcode} is not emulated: .v4 of .f32, .f16, .u32 or .s32 at .f32 or .s32 coordinates is, of "
            f"textures {', '.join(GEOMETRIES)}"
        )
    form = TextureForm(program, ins, 1)
    if gathers and (form.geometry not in ("2d", "a2d") or of != "f32"):
        raise ValueError(f"tld4 of .{form.geometry}: it is of .2d and .a2d, at .f32 coordinates")
    extra = {"level": 1, "grad": 2}.get(level, 0)
    if len(ins.operands) != 2 + extra:
        raise ValueError(f"{ins.opcode} with an offset or a depth to compare is not emulated")
    targets, lanes_of, after = program.targets(ins.operands[0], kind), taken(program, ins), ins.pc + 1
    if len(targets) != 4:
        raise ValueError(f"{ins.opcode} has four results")
    for operand in ins.operands[2:]:
        program.sources(operand, "b32")

    def go(fiber: Fiber) -> int | None:
        lanes = lanes_of(fiber)
        if not lanes:
            return after
        bound = form.object(fiber, lanes)
        texture = bound.texture
        _checked(texture, kind, bound.name)
        at = _finite(fiber, form, lanes, of == "s32")
        layers = form.layers(fiber, lanes, texture.layers)
        if gathers:
            n = COMPONENTS.index(component)
            four = [_read(fiber, ins, bound, one, layers, lanes)[:, n] for one in texture.footprint(at)]
            stacked: Texels = np.stack(four, axis=1)  # type: ignore[assignment]  # of one of two types
            _assign(fiber, targets, stacked, kind, lanes)
            return None
        if of == "s32":
            values = _by_number(fiber, ins, bound, [x.astype(np.int64) for x in at], layers, lanes)
        else:
            values = _filtered(fiber, ins, bound, at, layers, lanes)
        _assign(fiber, targets, values, kind, lanes)
        return None

    return go


def _filtered(
    fiber: Fiber, ins: PtxInstruction, bound: BoundTexture, at: list[npt.NDArray[np.float32]],
    layers: npt.NDArray[np.int64], lanes: int,
) -> Texels:  # fmt: skip
    """[lane, four channels] of each point, by the texture's filter."""
    samples = bound.texture.samples(at)
    texels = [_read(fiber, ins, bound, places, layers, lanes) for places, _ in samples]
    if bound.texture.filter == "point":
        return texels[0]
    total = np.zeros(texels[0].shape, np.float32)
    for (_, weight), one in zip(samples, texels, strict=True):
        total += weight[:, None] * one.astype(np.float32)
    return total


def _by_number(
    fiber: Fiber, ins: PtxInstruction, bound: BoundTexture, at: list[npt.NDArray[np.int64]],
    layers: npt.NDArray[np.int64], lanes: int,
) -> Texels:  # fmt: skip
    """[lane, four channels] of the texels of these numbers, as tex1Dfetch; zeros outside."""
    texels = _read(fiber, ins, bound, at, layers, lanes)
    inside = np.ones(len(at[0]), bool)
    for place, extent in zip(at, bound.texture.extents, strict=True):
        inside &= (place >= 0) & (place < extent)
    return np.where(inside[:, None], texels, np.zeros_like(texels))


@operation("txq", "suq", guards=True)
def query(program: Program, ins: PtxInstruction) -> Run:
    """txq, suq: the extents of a texture or surface."""
    asked = [word for word in ins.words[1:] if word in QUERIES]
    if len(asked) != 1 or len(ins.words) - len(asked) not in (2, 3) or ins.words[-1] != "b32":
        raise ValueError(f"{ins.opcode} is not emulated: {', '.join(QUERIES)} are")
    target, handle = program.result(ins.operands[0], "b32"), _object(program, ins.operands[1])
    lanes_of, after = taken(program, ins), ins.pc + 1
    for operand in ins.operands[2:]:
        program.value(operand, "b32")

    def go(fiber: Fiber) -> int | None:
        lanes = lanes_of(fiber)
        if not lanes:
            return after
        textures = [bound_at(fiber, int(one)).texture for one in lanewise(handle(fiber), lanes).tolist()]
        found = []
        for one in textures:
            width, height, depth = (*one.extents, 0, 0)[:3]
            sizes = width, height, depth, one.layers * one.layered, 1, 1
            found.append(sizes[QUERIES.index(asked[0])])
        assign(fiber, target, lanes, np.array(found, np.int64))
        return None

    return go


@operation("suld", "sust", guards=True)
def surface(program: Program, ins: PtxInstruction) -> Run:
    """suld.b, sust.b: bytes of a surface; x counts bytes, y and z texels."""
    loads = ins.words[0] == "suld"
    words = ins.words[1:]
    kind = next((word for word in words if word in ("b8", "b16", "b32", "b64")), "")
    count = next((int(word[1:]) for word in words if word in ("v2", "v4")), 1)
    modes = [word for word in words if word in ("trap", "clamp", "zero")]
    known = {"b", kind, f"v{count}", *modes, *GEOMETRIES, "ca", "cg", "cs", "cv", "wb", "wt"}
    if words[0] != "b" or not kind or len(modes) != 1 or [word for word in words if word not in known]:
        raise ValueError(f"{ins.opcode} is not emulated: {ins.words[0]}.b with .trap, .clamp or .zero is")
    form = TextureForm(program, ins, loads)
    targets = program.targets(ins.operands[0], kind) if loads else []
    sources = [] if loads else program.sources(ins.operands[1], kind)
    size, each = int(kind[1:]) // 8 * count, int(kind[1:]) // 8
    if len(targets or sources) != count:
        raise ValueError(f"{ins.opcode} with another number of registers than {count}")
    lanes_of, after = taken(program, ins), ins.pc + 1

    def go(fiber: Fiber) -> int | None:
        lanes = lanes_of(fiber)
        if not lanes:
            return after
        bound = form.object(fiber, lanes)
        at = [_signed(lanewise(reader(fiber), lanes)) for reader in form.coordinates]
        addresses, inside = _surface_places(bound, at, form.layers(fiber, lanes, bound.texture.layers), size, modes[0])
        mask = lanes_among(lanes, inside)
        memory = fiber.machine.launch.memory
        if mask:
            touches_texels(fiber, ins, addresses[inside], size, mask, "reads" if loads else "writes")
        if loads:
            raw = np.where(inside[:, None], memory.read(addresses, size), np.uint8(0))
            columns = elements(np.ascontiguousarray(raw), each).reshape(-1, count)
            for n, register in enumerate(targets):
                if register is not None:
                    assign(fiber, register, lanes, signed_to(columns[:, n], kind, max(8 * each, 16)))
            return None
        given = np.stack([lanewise(one(fiber), lanes).astype(UNSIGNED[each]) for one in sources], axis=1)
        memory.write(addresses[inside], given.view(np.uint8).reshape(len(given), size)[inside])
        return None

    return go


def _surface_places(
    bound: BoundTexture, at: list[npt.NDArray[np.int64]], layers: npt.NDArray[np.int64], size: int, mode: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The address of each lane, and whether it is inside. Raises EmulatorError outside of a surface that traps."""
    texture = bound.texture
    x, *rest = at
    if (x % size).any():
        raise EmulatorError(
            f"byte {int(x[x % size != 0][0])} along x of {bound.name}: no multiple of the {size} accessed"
        )
    most = texture.extents[0] * texture.texel - size
    inside = (x >= 0) & (x <= most)
    for place, extent in zip(rest, texture.extents[1:], strict=True):
        inside &= (place >= 0) & (place < extent)
    if mode == "trap" and not inside.all():
        lane = int(np.flatnonzero(~inside)[0])
        where = tuple(int(one[lane]) for one in at)
        raise EmulatorError(f"{where} (x in bytes) is outside of {bound.name}, whose extents are {texture.extents}")
    rest = [np.clip(place, 0, extent - 1) for place, extent in zip(rest, texture.extents[1:], strict=True)]
    found = texture.offsets([np.zeros_like(x), *rest], layers) + np.clip(x, 0, most) // size * size
    return bound.address + found, inside if mode == "zero" else np.ones_like(inside)


@operation("istypep", "sured")
def left_out(program: Program, ins: PtxInstruction) -> Run:
    """Refuse reductions on surfaces, and questions for the type of an object."""
    raise ValueError(
        f"{ins.words[0]} is not emulated: atom.global of the surface's array is, as an argument of its own"
    )
