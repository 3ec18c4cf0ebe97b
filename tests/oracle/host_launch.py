"""Run the compiled host half of exported kernels against a recording CUDA runtime. It needs no GPU. A program:

    python host_launch.py RECORDER.so < requests.json > records.json

Requests: `[{"object": path, "symbol": name, "arguments": [int, ...]}, ...]`; records: for each the calls that the host
function made, as recorder.c writes them, and its status. A process of its own, since the recorder's symbols must not
meet the real runtime's.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any


def main(recorder_path: str) -> None:
    import cutlass.cute.runtime  # noqa: F401  # registers how exported objects are read
    from cutlass._mlir._mlir_libs._cutlass_ir._execution_engine import BinaryExecutionEngine
    from cutlass.base_dsl.export.export import decode_metadata_from_execution_engine
    from cutlass.base_dsl.export.external_binary_module import ExternalBinaryModule

    recorder = ctypes.CDLL(recorder_path)
    recorder.recorded.restype = ctypes.c_char_p
    answers: list[Any] = []
    keep_alive = []
    for request in json.load(sys.stdin):
        with open(request["object"], "rb") as stream:
            engine = BinaryExecutionEngine(stream.read(), [recorder_path], True)
        keep_alive.append(engine)
        signature, name, _, _ = decode_metadata_from_execution_engine(
            request["symbol"], engine, ExternalBinaryModule.load_provider.signature_processor
        )
        values = []
        for parameter, value in zip(signature.parameters.values(), request["arguments"], strict=True):
            narrow = "Int32" in str(parameter.annotation)
            values.append((ctypes.c_int32 if narrow else ctypes.c_int64)(value))
        status = ctypes.c_int32(-1)
        pointers = (ctypes.c_void_p * (len(values) + 1))(*(ctypes.addressof(v) for v in (*values, status)))
        recorder.forget()
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)(engine.lookup(name))(pointers, len(pointers))
        calls = [json.loads(line) for line in recorder.recorded().decode().splitlines()]
        answers.append({"status": status.value, "calls": calls})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
