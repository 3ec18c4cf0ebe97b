"""Statuses of CUDA's API that the emulated runtime gives."""

from __future__ import annotations

from enum import IntEnum

from ....errors import EmulatorError


class Status(IntEnum):
    """A status, by its name in cudaError_t without the prefix; driver_types.h. CUresult has the same numbers."""

    SUCCESS = 0
    INVALID_VALUE = 1
    INVALID_CONFIGURATION = 9
    INVALID_RESOURCE_HANDLE = 400
    ILLEGAL_STATE = 401
    ASSERT = 710
    LAUNCH_FAILURE = 719
    COOPERATIVE_LAUNCH_TOO_LARGE = 720
    NOT_SUPPORTED = 801
    STREAM_CAPTURE_UNSUPPORTED = 900
    STREAM_CAPTURE_INVALIDATED = 901
    STREAM_CAPTURE_MERGE = 902
    STREAM_CAPTURE_UNMATCHED = 903
    STREAM_CAPTURE_UNJOINED = 904
    STREAM_CAPTURE_ISOLATION = 905
    STREAM_CAPTURE_IMPLICIT = 906
    CAPTURED_EVENT = 907
    STREAM_CAPTURE_WRONG_THREAD = 908
    GRAPH_EXEC_UPDATE_FAILURE = 910

    @property
    def runtime_name(self) -> str:
        """The name in cudaError_t.

        >>> Status.CAPTURED_EVENT.runtime_name, Status.SUCCESS.runtime_name
        ('cudaErrorCapturedEvent', 'cudaSuccess')
        """
        words = "".join(word.capitalize() for word in self.name.split("_"))
        return f"cuda{'' if self is Status.SUCCESS else 'Error'}{words}"


# As cudaGetErrorString gives them.
TEXTS = {
    Status.SUCCESS: "no error", Status.INVALID_VALUE: "invalid argument",
    Status.INVALID_CONFIGURATION: "invalid configuration argument",
    Status.INVALID_RESOURCE_HANDLE: "invalid resource handle",
    Status.ILLEGAL_STATE: "the operation cannot be performed in the present state",
    Status.ASSERT: "device-side assert triggered", Status.LAUNCH_FAILURE: "unspecified launch failure",
    Status.COOPERATIVE_LAUNCH_TOO_LARGE: "too many blocks in cooperative launch",
    Status.NOT_SUPPORTED: "operation not supported",
    Status.STREAM_CAPTURE_UNSUPPORTED: "operation not permitted when stream is capturing",
    Status.STREAM_CAPTURE_INVALIDATED: "operation failed due to a previous error during capture",
    Status.STREAM_CAPTURE_MERGE: "operation would result in a merge of separate capture sequences",
    Status.STREAM_CAPTURE_UNMATCHED: "capture was not ended in the same stream as it began",
    Status.STREAM_CAPTURE_UNJOINED: "capturing stream has unjoined work",
    Status.STREAM_CAPTURE_ISOLATION: "dependency created on uncaptured work in another stream",
    Status.STREAM_CAPTURE_IMPLICIT: "operation would make the legacy stream depend on a capturing blocking stream",
    Status.CAPTURED_EVENT: "operation not permitted on an event last recorded in a capturing stream",
    Status.STREAM_CAPTURE_WRONG_THREAD:
        "attempt to terminate a thread-local capture sequence from another thread",
    Status.GRAPH_EXEC_UPDATE_FAILURE:
        "the graph update was not performed because it included changes which violated constraints specific to "
        "instantiated graph update",
}  # fmt: skip


class CudaStatusError(EmulatorError, RuntimeError):
    """A call that CUDA's API refuses: a RuntimeError too, as torch raises. `status` is what the API returns."""

    def __init__(self, status: Status, why: str = "") -> None:
        super().__init__(f"CUDA error: {TEXTS[status]}" + (f" ({why})" if why else ""))
        self.status = status
