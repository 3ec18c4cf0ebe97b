"""cuBLASLt through ctypes: layouts of structures, numbers of the headers, descriptors of a row-major product."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import peers
from layoutgemm.bench import cublaslt
from layoutgemm.bench.contenders import cublaslt as proposals
from layoutgemm.bench.method import BenchProblem


def test_structures_have_the_sizes_of_the_header() -> None:
    """cublasLt.h: cublasLtMatmulAlgo_t is uint64_t[8]; the heuristic's result adds size_t, int, float and int[4]."""
    result = cublaslt.HeuristicResult
    assert ctypes.sizeof(cublaslt.MatmulAlgo) == 64
    assert ctypes.sizeof(result) == 96
    offsets = [getattr(result, name).offset for name in ("algo", "workspaceSize", "state", "wavesCount", "reserved")]
    assert offsets == [0, 64, 72, 76, 80]


def headers() -> list[Path]:
    """Folders that may hold cublasLt.h: NVIDIA's Python packages, the toolkit."""
    found = [Path("/usr/local/cuda/include")]
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or [] if spec else []:
        found += [path.parent for path in Path(place).glob("*/include/cublasLt.h")]
    return [folder for folder in found if (folder / "cublasLt.h").is_file()]


ENUMERATORS = [
    *("CUDA_R_32F", "CUDA_R_16BF", "CUBLAS_COMPUTE_32F", "CUBLAS_OP_N", "CUBLAS_OP_T"),
    *("CUBLASLT_MATMUL_DESC_TRANSA", "CUBLASLT_MATMUL_DESC_TRANSB", "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES"),
]


@pytest.mark.skipif(not headers(), reason="cublasLt.h is not installed: pip install nvidia-cublas")
def test_numbers_are_those_of_the_installed_headers() -> None:
    folder = headers()[0]
    text = "".join(
        path.read_text(errors="replace")
        for name in ("cublasLt.h", "cublas_api.h", "library_types.h")
        for path in (folder / name, *folder.parent.parent.glob(f"*/include/{name}"))
        if path.is_file()
    )
    want = {name: getattr(cublaslt, name) for name in ENUMERATORS}
    want |= {name: number for name, (number, _) in cublaslt.ALGO_CONFIG.items()}
    for name, number in want.items():
        match = re.search(rf"\b{name}\s*=\s*(\d+)", text)
        assert match and int(match[1]) == number, name


def multiplied(m: int, n: int, k: int, b_major: str) -> Any:
    """The product by cuBLASLt's definition, from the descriptors and the flat memory."""
    a, b = torch.randn(m, k), torch.randn(n, k)
    stored_b = b if b_major == "k" else b.T.contiguous()
    operands = cublaslt.column_major(m, n, k, b_major)

    def factor(memory: Any, o: cublaslt.CublasLtMatrix) -> Any:
        stored = torch.as_strided(memory.reshape(-1), (o.rows, o.columns), (1, o.leading))
        return stored.T if o.op == cublaslt.CUBLAS_OP_T else stored

    c = torch.empty(m * n)
    torch.as_strided(c, (operands[2].rows, operands[2].columns), (1, operands[2].leading)).copy_(
        factor(stored_b, operands[0]) @ factor(a, operands[1])
    )
    return c.view(m, n), a @ b.T


@pytest.mark.parametrize("b_major", ["k", "n"])
def test_descriptors_describe_the_row_major_product(b_major: str) -> None:
    got, want = multiplied(5, 7, 3, b_major)
    torch.testing.assert_close(got, want)


class FakeLibrary:
    """Records calls; the heuristic proposes two usable algorithms and one that is not."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cublasLt"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            if name == "cublasLtMatmulAlgoGetHeuristic":
                results, found = arguments[8], arguments[9]._obj
                for i, state in enumerate((0, 15, 0)):
                    results[i].state, results[i].algo.data[0] = state, 100 + i
                found.value = 3
            if name == "cublasLtMatmulAlgoConfigGetAttribute":
                if arguments[1] == 8:
                    return 7  # an attribute that this version does not know
                arguments[2]._obj.value = arguments[1] * 10
            return 0

        return call


@pytest.fixture
def lt() -> cublaslt.CublasLt:
    made = object.__new__(cublaslt.CublasLt)
    made.library = FakeLibrary()
    made.workspace, made.handle = torch.empty(64, dtype=torch.uint8), ctypes.c_void_p(1)
    made.one, made.zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    return made


def test_usable_algorithms_are_described_and_launched(lt: cublaslt.CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        cuda_stream = 77

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    product = lt.product(5, 7, 3, "k")
    found = product.algorithms(12)
    assert [result.algo.data[0] for result in found] == [100, 102]
    assert product.describe(found[0]) == "algo 0 tile 10 splitk 20 stages 60 cluster_shape ?"
    a, b, c = torch.empty(5, 3), torch.empty(7, 3), torch.empty(5, 7)
    product.launch(found[1], a, b, c)()
    name, arguments = lt.library.calls[-1]
    assert name == "cublasLtMatmul"
    assert [arguments[i] for i in (3, 5, 8, 10)] == [b.data_ptr(), a.data_ptr(), c.data_ptr(), c.data_ptr()]
    assert arguments[12]._obj.data[0] == 102 and arguments[-1] == 77
    assert len(arguments) == len(cublaslt.SIGNATURES["cublasLtMatmul"]) == 16


def test_every_call_has_as_many_arguments_as_its_signature(lt: cublaslt.CublasLt) -> None:
    lt.product(5, 7, 3, "n").algorithms(4)
    for name, arguments in lt.library.calls:
        assert len(arguments) == len(cublaslt.SIGNATURES[name]), name


def test_a_status_that_is_no_success_raises(lt: cublaslt.CublasLt) -> None:
    lt.library.cublasLtCreate = lambda handle: 1
    with pytest.raises(cublaslt.CublasLtError, match="cublasLtCreate returned status 1"):
        lt._made("cublasLtCreate")


def test_without_a_gpu_the_peer_fails_by_name() -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU: it tests the error there")
    (contender,) = proposals(BenchProblem(64, 64, 64))
    assert contender.name == "cublasLt"
    with pytest.raises(Exception, match=r"CUDA|cuda|NVIDIA"):
        contender.prepare([])


def test_quack_configurations_fit_what_its_kernel_takes() -> None:
    """quack 0.6.5, gemm_sm90.py: M of a tile 64 to 256, N a multiple of 16; pingpong at most 208 wide at 128 rows."""
    for m in (16, 32, 33, 64, 128, 512, 1024, 2048, 4096, 16384):
        configs = peers.quack_configs(m)
        assert configs[0] == peers.QUACK_DEFAULT and len(set(configs)) == len(configs)
        for config in configs:
            rows, columns = config.tile
            assert rows in (64, 128, 256) and columns % 16 == 0 and columns <= 256
            assert not config.pingpong or (rows < 256 and columns <= (256 if rows == 64 else 208))
            assert not config.swapped or m <= 128
