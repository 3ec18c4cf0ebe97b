"""The official CuTe DSL GEMM examples as cases: how each is compiled, what goes in, and what has to come out.

Each `Example` names a file of NVIDIA/cutlass (`fetch.py`), makes its kernel object, and lists the arguments of the
host function in order. `compiled.py` turns one into PTX and a host function, without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, int, int, int]  # m, n, k, l


@dataclass(frozen=True)
class Matrix:
    """A tensor argument.

    name   "a", "b", "c", ...
    dtype  by this library's name
    modes  in the order of the host function, of the letters m, n, k, l; "" for a vector of one element
    major  the mode whose stride is 1
    """

    name: str
    dtype: str
    modes: str
    major: str


@dataclass(frozen=True)
class Scales:
    """The scale factors of a block-scaled operand: one for `vector` elements of k, in the order of tcgen05's tiles.

    rows  "m" or "n"
    """

    name: str
    dtype: str
    rows: str
    vector: int


@dataclass(frozen=True)
class Pointer:
    """An address of a matrix or of scales, where the host function takes no tensor."""

    of: Matrix | Scales
    align: int


@dataclass(frozen=True)
class Sizes:
    """The tuple (m, n, k, l) as one argument."""


@dataclass(frozen=True)
class Number:
    """A float32 argument."""

    name: str
    value: float


@dataclass(frozen=True)
class Constant:
    """Something that is fixed when the kernel is compiled: a function of the module `cutlass`."""

    make: Callable[[Any], Any]


@dataclass(frozen=True)
class Stream:
    """The CUDA stream."""


Argument = Matrix | Scales | Pointer | Sizes | Number | Constant | Stream


@dataclass(frozen=True)
class Example:
    """One kernel of one file.

    path       below `fetch.ROOT`
    kernel     (module of the file, module cutlass) -> the callable that is compiled
    tile       rows, columns and k of the tile of one block, or of the pair of blocks that make one
    stages     of the ring of loaded tiles, where the kernel has one; it decides which k are looked at
    shapes     (m, n, k, l) that are run; one tile, fewer tiles than stages, more, ragged
    scale      what multiplies the product
    note       why it is not run, where it is compiled only
    """

    name: str
    path: str
    arch: str
    kernel: Callable[[Any, Any], Any]
    arguments: tuple[Argument, ...]
    tile: tuple[int, int, int]
    stages: int = 0
    shapes: tuple[Shape, ...] = ()
    scale: float = 1.0
    note: str = ""
    tags: tuple[str, ...] = field(default=())

    @property
    def matrices(self) -> list[Matrix]:
        """The tensors among the arguments."""
        found = [a.of if isinstance(a, Pointer) else a for a in self.arguments]
        return [a for a in found if isinstance(a, Matrix)]


EXAMPLES: dict[str, Example] = {}


def add(example: Example) -> None:
    """Register an example."""
    assert example.name not in EXAMPLES, example.name
    EXAMPLES[example.name] = example


def abc(
    ab: str, c: str, majors: str = "kkn", modes: tuple[str, str, str] = ("mkl", "nkl", "mnl")
) -> tuple[Matrix, ...]:
    """The three matrices; majors: the contiguous mode of each."""
    return tuple(
        Matrix(name, dtype, mode, major)
        for name, dtype, mode, major in zip("abc", (ab, ab, c), modes, majors, strict=True)
    )


def constant(value: Any) -> Constant:
    """A constant argument."""
    return Constant(lambda cutlass: value)


def shapes_of(
    tile: tuple[int, int, int], stages: int, align: int = 8, tiles: tuple[int, int] = (2, 2), ragged: bool = True
) -> tuple[Shape, ...]:
    """The shapes at which a kernel's loops differ.

    They have 1, stages - 1, stages, stages + 1, and 4n + r k tiles, more tiles than clusters, and batches of two tiles
    along N. The others are ragged, to the alignment of the contiguous modes; they are left out if `ragged` is False.
    """
    bm, bn, bk = tile
    big = (tiles[0] * bm, tiles[1] * bn)
    counts = sorted({1, 2, max(1, stages - 1), max(1, stages), stages + 1, 2 * stages + 3})
    out: list[Shape] = [(bm, bn, bk, 1)]
    out += [(*big, count * bk, 1) for count in counts[:-1]]
    out += [(bm, bn, counts[-1] * bk, 1), (bm, 2 * bn, counts[-1] * bk, 2)]
    if ragged:
        out += [(bm + 8 * align, bn + align, bk + align, 1), (big[0] - 5 * align, big[1] - align, 3 * bk - align, 1)]
    out += [(bm, bn, bk, 3)]
    return tuple(dict.fromkeys(out))


AMPERE = "cute/ampere/kernel/dense_gemm/"
HOPPER = "cute/hopper/kernel/dense_gemm/"
BLACKWELL = "cute/blackwell/kernel/"
GEFORCE = "cute/blackwell_geforce/kernel/"
STREAM = Stream()

# ---------------------------------------------------------------------------------------------------------------- sm_80


def _ampere(name: str, kind: str, majors: str, c: str = "f16") -> None:
    types = {"f16": "Float16", "bf16": "BFloat16", "f32": "Float32"}

    def kernel(module: Any, cutlass: Any) -> Any:
        ab, out = getattr(cutlass, types[kind]), getattr(cutlass, types[c])
        return module.TensorOpGemm(ab, out, cutlass.Float32, (2, 2, 1), majors[2] == "m")

    matrices = abc(kind, c, majors)
    tile = (128, 128, 32)
    add(
        Example(
            name, AMPERE + "tensorop_gemm.py", "sm_80", kernel, (*matrices, STREAM), tile, 3,
            # Edges of fewer rows than one copy instruction loads, in the ring's first tiles and in later ones.
            (*shapes_of(tile, 3, tiles=(1, 2)), (136, 136, 160, 1)),
        )
    )  # fmt: skip


_ampere("ampere_tensorop_f16_kkn", "f16", "kkn")
_ampere("ampere_tensorop_f16_mnn", "f16", "mnn")
_ampere("ampere_tensorop_f16_mkm", "f16", "mkm")
_ampere("ampere_tensorop_bf16_kkn", "bf16", "kkn", "bf16")

add(
    Example(
        "ampere_sgemm",
        AMPERE + "sgemm.py",
        "sm_80",
        lambda module, cutlass: module.SGemm(),
        (
            Matrix("a", "f32", "mk", "m"),
            Matrix("b", "f32", "nk", "n"),
            Matrix("c", "f32", "mn", "n"),
            constant(lambda x: x),
            STREAM,
        ),
        (128, 128, 8),
        3,
        ((128, 128, 24, 1), (132, 136, 36, 1)),
    )
)

# --------------------------------------------------------------------------------------------------------------- sm_90a


def _hopper(
    name: str,
    ab: str,
    c: str,
    acc: str,
    majors: str,
    tile: tuple[int, int],
    cluster: tuple[int, int],
    persistent: bool,
    stages: int,
) -> None:
    def kernel(module: Any, cutlass: Any) -> Any:
        accumulator = getattr(cutlass, acc)
        if persistent:
            return module.HopperWgmmaGemmPersistentKernel(accumulator, tile, cluster, 1, True)
        return module.HopperWgmmaGemmKernel(accumulator, tile, cluster)

    width = {"f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "tf32": 32}[ab]
    k = 1024 // width
    whole = (tile[0] * cluster[0], tile[1] * cluster[1], k)
    arguments: tuple[Argument, ...] = abc(ab, c, majors)
    add(
        Example(
            name,
            HOPPER + ("dense_gemm_persistent.py" if persistent else "dense_gemm.py"),
            "sm_90a",
            kernel,
            (*arguments, constant(1), STREAM) if persistent else (*arguments, STREAM),
            whole,
            stages,
            shapes_of(whole, stages, align=128 // width, tiles=(2, 1)),
        )
    )


_hopper("hopper_dense_f16", "f16", "f16", "Float32", "kkn", (128, 128), (1, 1), False, 7)
_hopper("hopper_dense_f16_2x1", "f16", "f16", "Float32", "kkn", (128, 256), (2, 1), False, 4)
_hopper("hopper_dense_f16_1x2_mnm", "f16", "f16", "Float32", "mnm", (128, 128), (1, 2), False, 7)
_hopper("hopper_dense_f16_acc16", "f16", "f16", "Float16", "kkn", (64, 128), (1, 1), False, 9)
_hopper("hopper_dense_e4m3", "e4m3", "f16", "Float32", "kkn", (128, 128), (1, 1), False, 7)
_hopper("hopper_dense_e5m2_e5m2out", "e5m2", "e5m2", "Float32", "kkm", (64, 64), (1, 1), False, 14)
_hopper("hopper_dense_s8", "s8", "s32", "Int32", "kkn", (128, 128), (1, 1), False, 7)
_hopper("hopper_dense_u8", "u8", "u8", "Int32", "kkn", (128, 128), (1, 1), False, 7)
_hopper("hopper_persistent_f16_2x1", "f16", "f16", "Float32", "kkn", (128, 256), (2, 1), True, 4)
_hopper("hopper_persistent_f16_1x1_mnn", "f16", "f16", "Float32", "mnn", (128, 128), (1, 1), True, 6)
_hopper("hopper_persistent_f16_2x2", "f16", "f32", "Float32", "kkn", (64, 128), (2, 2), True, 8)
_hopper("hopper_persistent_e4m3", "e4m3", "e4m3", "Float32", "kkn", (128, 128), (1, 1), True, 6)

add(
    Example(
        "hopper_fp8_2xacc",
        HOPPER + "dense_gemm_fp8_2xacc.py",
        "sm_90a",
        lambda module, cutlass: module.HopperFP8WarpSpecialized2xAccGemmKernel((128, 128), (1, 1), 1, True, 4),
        (
            *abc("e4m3", "bf16"),
            Matrix("scale_a", "f32", "", ""),
            Matrix("scale_b", "f32", "", ""),
            constant(1),
            STREAM,
        ),
        (128, 128, 128),
        6,
        shapes_of((128, 128, 128), 6, align=16, tiles=(2, 1)),
        scale=0.5,
    )
)
add(
    Example(
        "hopper_fp8_gelu",
        HOPPER + "dense_gemm_fp8_gelu_persistent.py",
        "sm_90a",
        lambda module, cutlass: module.HopperFP8GeluPersistentGemmKernel(cutlass.Float32, (128, 128), (1, 1), 1, True),
        (*abc("e4m3", "f16"), Number("scale", 0.125), constant(True), constant(1), STREAM),
        (128, 128, 128),
        6,
        shapes_of((128, 128, 128), 6, align=16, tiles=(2, 1)),
        scale=0.125,
        tags=("gelu",),
    )
)

# -------------------------------------------------------------------------------------------------------------- sm_100a


def _blackwell(
    name: str,
    path: str,
    two: bool,
    tile: tuple[int, int],
    cluster: tuple[int, int],
    store: bool,
    ab: str = "f16",
    c: str = "f16",
    majors: str = "kkn",
    acc: str = "Float32",
    stages: int = 6,
) -> None:
    file = {
        "dense": "dense_gemm", "persistent": "dense_gemm_persistent", "dynamic": "dense_gemm_persistent_dynamic",
        "prefetch": "dense_gemm_persistent_prefetch", "pipeline": "dense_gemm_software_pipeline",
    }[path]  # fmt: skip
    owner = {
        "dense": "DenseGemmKernel", "persistent": "PersistentDenseGemmKernel", "dynamic": "PersistentDenseGemmKernel",
        "prefetch": "PersistentDenseGemmKernel", "pipeline": "DenseGemmKernel",
    }[path]  # fmt: skip

    def kernel(module: Any, cutlass: Any) -> Any:
        kind = getattr(module, owner)
        return kind(getattr(cutlass, acc), two, tile, cluster, store)

    width = {"f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "tf32": 32}[ab]
    k = 1024 // width
    rows = max(1, cluster[0] // (2 if two else 1))
    whole = (tile[0] * rows, tile[1] * cluster[1], k)
    persistent = path in ("persistent", "prefetch")
    clusters = (constant(1),) if persistent else ()
    add(
        Example(
            name,
            BLACKWELL + f"dense_gemm/{file}.py",
            "sm_100a",
            kernel,
            (*abc(ab, c, majors), *clusters, STREAM),
            whole,
            stages,
            # Without tensor stores the example writes whole tiles.
            shapes_of(whole, stages, align=128 // width, tiles=(2, 1), ragged=store),
            tags=("clc",) if path == "dynamic" else (),
        )
    )


for _path in ("dense", "persistent", "dynamic", "prefetch", "pipeline"):
    _blackwell(f"blackwell_{_path}_1sm", _path, False, (128, 128), (1, 1), True)
    _blackwell(f"blackwell_{_path}_2sm", _path, True, (256, 128), (2, 1), True)
for _path in ("dense", "persistent"):
    _blackwell(f"blackwell_{_path}_1sm_plain_store", _path, False, (128, 64), (1, 1), False, stages=9)
    _blackwell(f"blackwell_{_path}_2sm_plain_store", _path, True, (256, 64), (2, 1), False, stages=9)
_blackwell("blackwell_dense_1sm_m64", "dense", False, (64, 128), (1, 1), True, stages=8)
_blackwell("blackwell_persistent_2sm_m128_4x2", "persistent", True, (128, 128), (4, 2), True, stages=11)
_blackwell("blackwell_persistent_1sm_mnm", "persistent", False, (128, 128), (1, 2), True, majors="mnm")
_blackwell(
    "blackwell_persistent_1sm_bf16_f32out", "persistent", False, (128, 256), (1, 1), True, "bf16", "f32", stages=4
)
_blackwell("blackwell_persistent_1sm_tf32", "persistent", False, (128, 128), (1, 1), True, "tf32", "f32")
_blackwell("blackwell_persistent_2sm_tf32_mn", "persistent", True, (256, 128), (2, 1), True, "tf32", "f32", "mnn")
_blackwell("blackwell_persistent_1sm_e4m3", "persistent", False, (128, 128), (1, 1), True, "e4m3", "f16")
_blackwell("blackwell_persistent_1sm_s8", "persistent", False, (128, 128), (1, 1), True, "s8", "s32", acc="Int32")
_blackwell("blackwell_persistent_1sm_acc16", "persistent", False, (128, 128), (1, 1), True, acc="Float16")

add(
    Example(
        "blackwell_alpha_beta",
        BLACKWELL + "dense_gemm/dense_gemm_alpha_beta_persistent.py",
        "sm_100a",
        lambda module, cutlass: module.SM100PersistentDenseGemmAlphaBetaKernel(
            cutlass.Float32, cutlass.Float32, False, (128, 128), (1, 1)
        ),
        (
            *abc("f16", "f32"),
            Matrix("d", "f32", "mnl", "n"),
            Number("alpha", 0.5),
            Number("beta", 2.0),
            constant(1),
            STREAM,
        ),
        (128, 128, 64),
        6,
        shapes_of((128, 128, 64), 6, tiles=(2, 1)),
    )
)


def _blockscaled(
    name: str, ab: str, sf: str, vector: int, tile: tuple[int, int], cluster: tuple[int, int], stages: int
) -> None:
    k = 256 if ab == "e2m1" else 128

    def layouts(cutlass: Any) -> Any:
        import cutlass.utils as utils
        from cutlass.cute.nvgpu import OperandMajorMode

        return (OperandMajorMode.K, OperandMajorMode.K, utils.LayoutEnum.ROW_MAJOR)

    a, b, c = abc(ab, "f16")
    whole = (tile[0] * max(1, cluster[0] // (2 if tile[0] == 256 else 1)), tile[1] * cluster[1], k)
    add(
        Example(
            name,
            BLACKWELL + "blockscaled_gemm/dense_blockscaled_gemm_persistent.py",
            "sm_100a",
            lambda module, cutlass: module.Sm100BlockScaledPersistentDenseGemmKernel(vector, tile, cluster),
            (
                Pointer(a, 16), Pointer(b, 16), Pointer(Scales("sfa", sf, "m", vector), 32),
                Pointer(Scales("sfb", sf, "n", vector), 32), Pointer(c, 16), Constant(layouts), Sizes(), constant(1),
                STREAM,
            ),
            whole,
            stages,
            shapes_of(whole, stages, align=32, tiles=(2, 1)),
        )
    )  # fmt: skip


_blockscaled("blackwell_nvf4", "e2m1", "e4m3", 16, (128, 128), (1, 1), 5)
_blockscaled("blackwell_nvf4_2sm", "e2m1", "e4m3", 16, (256, 128), (2, 1), 5)
_blockscaled("blackwell_nvf4_2sm_n64", "e2m1", "e4m3", 16, (256, 64), (2, 1), 6)
_blockscaled("blackwell_nvf4_n192", "e2m1", "e4m3", 16, (128, 192), (1, 1), 4)
_blockscaled("blackwell_mxf4", "e2m1", "ue8m0", 32, (128, 128), (1, 1), 6)
_blockscaled("blackwell_mxf8", "e4m3", "ue8m0", 32, (128, 128), (1, 1), 6)
_blockscaled("blackwell_mxf8_2sm", "e5m2", "ue8m0", 32, (256, 128), (2, 1), 6)

add(
    Example(
        "blackwell_blockwise",
        BLACKWELL + "blockwise_gemm/blockwise_gemm.py",
        "sm_100a",
        lambda module, cutlass: module.BlockwiseGemmKernel(cutlass.Float32, False, (128, 128), (1, 1)),
        (
            *abc("e4m3", "bf16"),
            Matrix("sfa", "f32", "mKl", "m"),
            Matrix("sfb", "f32", "NKl", "K"),
            constant(1),
            STREAM,
        ),
        (128, 128, 128),
        4,
        # The scales of A are for whole blocks of 128 rows.
        shapes_of((128, 128, 128), 4, align=16, tiles=(2, 1)),
    )
)

for _name in ("prefetch", "amax"):
    _a, _b, _c = abc("e4m3", "f16")
    add(
        Example(
            f"blackwell_mxf8_{_name}",
            BLACKWELL + f"blockscaled_gemm/dense_blockscaled_gemm_persistent_{_name}.py",
            "sm_100a",
            lambda module, cutlass: module.Sm100BlockScaledPersistentDenseGemmKernel(32, (128, 128), (1, 1)),
            (
                _a, _b, Scales("sfa", "ue8m0", "m", 32), Scales("sfb", "ue8m0", "n", 32), _c,
                *((Matrix("amax", "f32", "1", "1"),) if _name == "amax" else ()), constant(1), STREAM,
            ),
            (128, 128, 128),
            6,
            shapes_of((128, 128, 128), 6, align=32, tiles=(2, 1)),
            tags=("amax",) if _name == "amax" else (),
        )
    )  # fmt: skip

add(
    Example(
        "blackwell_mixed_s8_bf16",
        BLACKWELL + "mixed_input_gemm/mixed_input_gemm.py",
        "sm_100a",
        lambda module, cutlass: module.MixedInputGemmKernel(
            0, 0, cutlass.Float32, False, (128, 128, 128), (1, 1), True, False
        ),
        (
            Matrix("a", "s8", "mkl", "m"),
            constant(None),
            Matrix("b", "bf16", "nkl", "k"),
            Matrix("c", "bf16", "mnl", "n"),
            constant(1),
            STREAM,
        ),
        (128, 128, 128),
        4,
        shapes_of((128, 128, 128), 4, align=16, tiles=(2, 1)),
    )
)

for _number in ("0", "1", "2", "3", "3_1", "4"):
    _limits = (constant(1),) * {"0": 0, "1": 0, "2": 0, "4": 2}.get(_number, 1)
    _rows, _stages = (128, 4) if _number == "0" else (256, 6)
    add(
        Example(
            f"blackwell_tutorial_{_number}",
            f"cute/blackwell/tutorial/tutorial_gemm/fp16_gemm_{_number}.py",
            "sm_100a",
            lambda module, cutlass: module.host_function,
            (*abc("f16", "f16", modes=("mk", "nk", "mn")), *_limits),
            (_rows, 256, 64),
            _stages,
            shapes_of((_rows, 256, 64), _stages, tiles=(2, 1), ragged=_number not in ("0", "1", "2")),
        )
    )

# -------------------------------------------------------------------------------------------------------------- sm_120a


def _geforce(name: str, kind: str, tile: tuple[int, int, int], stages: int, majors: str = "kkn") -> None:
    add(
        Example(
            name,
            GEFORCE + "dense_gemm/dense_gemm.py",
            "sm_120a",
            lambda module, cutlass: module.Sm120GemmKernel(cutlass.Float32, tile),
            (*abc(kind, kind, majors), constant(1), STREAM),
            tile,
            stages,
            shapes_of(tile, stages, tiles=(2, 1)),
        )
    )


_geforce("geforce_f16", "f16", (128, 128, 64), 2)
_geforce("geforce_bf16_mnn", "bf16", (64, 64, 64), 4, "mnn")

for _name in ("cooperative", "pingpong"):
    _a, _b, _c = abc("e2m1", "f16")
    add(
        Example(
            f"geforce_nvf4_{_name}",
            GEFORCE + f"blockscaled_gemm/dense_blockscaled_gemm_persistent_{_name}.py",
            "sm_120a",
            lambda module, cutlass: module.Sm120BlockScaledGemmKernel(cutlass.Float32, 16, (128, 128, 128), (128, 128)),
            (_a, _b, Scales("sfa", "e4m3", "m", 16), Scales("sfb", "e4m3", "n", 16), _c, constant(1), STREAM),
            (128, 128, 128),
            3,
            shapes_of((128, 128, 128), 3, align=32, tiles=(2, 1)),
        )
    )
