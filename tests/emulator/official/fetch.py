"""Get the examples of the CuTe DSL that the emulator is judged by: NVIDIA/cutlass, one pinned commit, read only.

They are NVIDIA's and are not copied into this repository, and no package on PyPI carries them. So they are downloaded
once into the user's cache folder:

    python -m tests.emulator.official.fetch                   # from GitHub
    python -m tests.emulator.official.fetch --clone DIR       # from a clone of NVIDIA/cutlass, bare ones too

Each file has to have the hash that is written here. Tests that need them skip when they are absent.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import urllib.request
from pathlib import Path

from layoutgemm.kernels.compile.cache import cache_dir

COMMIT = "7107b05535f8977f5ecb9d01ee203205b1fd9bc4"
ROOT = "examples/python/CuTeDSL/"
# Folder below ROOT -> file -> first 16 hexadecimal digits of its SHA-256.
_FOLDERS = {
    "cute/ampere/kernel/dense_gemm": {
        "sgemm.py": "9ffd17a60fb78ed2",
        "tensorop_gemm.py": "ed7eca473c66a3a3",
    },
    "cute/hopper/kernel/dense_gemm": {
        "dense_gemm.py": "bb7b76d893219757",
        "dense_gemm_fp8_2xacc.py": "1cd88f82d2e65442",
        "dense_gemm_fp8_gelu_persistent.py": "fa379811cda500e3",
        "dense_gemm_persistent.py": "65088a1fd7655ed4",
    },
    "cute/hopper/kernel/grouped_gemm": {
        "grouped_gemm.py": "57e5e6d56c0cb4c6",
    },
    "cute/blackwell/kernel/dense_gemm": {
        "dense_gemm.py": "f99bc4cc1e0aea89",
        "dense_gemm_alpha_beta_persistent.py": "0c56020660288037",
        "dense_gemm_persistent.py": "d59344faf902cb21",
        "dense_gemm_persistent_dynamic.py": "98a8a73321ee3267",
        "dense_gemm_persistent_prefetch.py": "e167e53469c18247",
        "dense_gemm_software_pipeline.py": "a15d603729428681",
    },
    "cute/blackwell/kernel/blockscaled_gemm": {
        "dense_blockscaled_gemm_persistent.py": "1517d4cde6b7988d",
        "dense_blockscaled_gemm_persistent_amax.py": "983b7a20ee01ea31",
        "dense_blockscaled_gemm_persistent_prefetch.py": "288d9dbe39952081",
        "sm103_dense_blockscaled_gemm_persistent.py": "ae48c7eb4d99ac7a",
    },
    "cute/blackwell/kernel/blockwise_gemm": {
        "blockwise_gemm.py": "a9044badfa951e50",
    },
    "cute/blackwell/kernel/mixed_input_gemm": {
        "mixed_input_gemm.py": "e84bda38a26f6c3d",
        "mixed_input_host_utils.py": "8f24d3e65f9b3d45",
    },
    "cute/blackwell/kernel/grouped_gemm": {
        "grouped_gemm.py": "05b74a05682c0245",
    },
    "cute/blackwell_geforce/kernel/blockscaled_gemm": {
        "blockscaled_gemm_dispatch.py": "2d4ab5d6c150d938",
        "dense_blockscaled_gemm_persistent_cooperative.py": "e3e8503239716b4d",
        "dense_blockscaled_gemm_persistent_pingpong.py": "bc671486b19c4bbc",
    },
    "cute/blackwell_geforce/kernel/dense_gemm": {
        "dense_gemm.py": "613052799aff35d5",
    },
    "cute/blackwell/tutorial/tutorial_gemm": {
        "fp16_gemm_0.py": "a15471df9a2a9c80",
        "fp16_gemm_1.py": "6d9c135226438d79",
        "fp16_gemm_2.py": "3c4d62da6d592c17",
        "fp16_gemm_3.py": "0da1be85839c8dd4",
        "fp16_gemm_3_1.py": "e9d7c85d2129832b",
        "fp16_gemm_4.py": "5cb827c9e53ca9fc",
        "fp16_gemm_5.py": "5e009bd22eecfe6f",
        "fp16_gemm_6.py": "7b490ff3ccac19f7",
        "nvfp4_gemm_0.py": "a8071a558a71e635",
        "nvfp4_gemm_1.py": "d4df6c07e5c19725",
        "utils.py": "51df70d07e105d02",
    },
}
FILES = {f"{folder}/{name}": digest for folder, files in _FOLDERS.items() for name, digest in files.items()}

MISSING = "the official examples are absent: python -m tests.emulator.official.fetch"


def folder() -> Path | None:
    """The folder of the files, or None when the cache is switched off."""
    cache = cache_dir()
    return None if cache is None else cache / "cutlass-examples" / COMMIT[:12]


def path_of(name: str) -> Path | None:
    """The file of an example, by its path below ROOT, or None if not fetched."""
    base = folder()
    path = None if base is None else base / name
    return path if path is not None and path.is_file() else None


def _bytes(name: str, clone: str | None) -> bytes:
    if clone is not None:
        return subprocess.run(["git", "-C", clone, "show", f"{COMMIT}:{ROOT}{name}"], check=True,
                              capture_output=True).stdout  # fmt: skip
    url = f"https://raw.githubusercontent.com/NVIDIA/cutlass/{COMMIT}/{ROOT}{name}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def fetch(clone: str | None = None) -> int:
    """Put every file into the cache; gives how many were new. Raises ValueError for one with another hash."""
    base = folder()
    if base is None:
        raise ValueError("LAYOUTGEMM_CACHE_DIR switches the cache off: there is nowhere to put the examples")
    new = 0
    for name, digest in FILES.items():
        if path_of(name) is not None:
            continue
        content = _bytes(name, clone)
        found = hashlib.sha256(content).hexdigest()[:16]
        if found != digest:
            raise ValueError(f"{name}: its hash is {found}, not {digest}")
        target = base / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        new += 1
    return new


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clone", help="a clone of NVIDIA/cutlass to take the files from, instead of GitHub")
    arguments = parser.parse_args()
    try:
        new = fetch(arguments.clone)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"cannot fetch the examples: {error}", file=sys.stderr)
        return 1
    print(f"{len(FILES)} files, {new} of them new, in {folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
