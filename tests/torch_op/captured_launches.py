"""CUDA's driver as packed launches ask it, without a GPU: a capture notes the launch that a host function makes.

Structures are CUDA's own, as `packed_launch` has them: the stand-in fills them in, and reads them back at a launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from layoutgemm.kernels.compile import packed_launch
from layoutgemm.kernels.compile.packed_launch import Attribute, Launch, NodeParameters

Kernel = Callable[[Any], None]  # what a launch with these arguments computes
_CAPTURES, _KERNEL = 4242, 99  # handles of a stream and of a kernel
_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


class Driver:
    """A driver whose kernels take 64-bit numbers.

    launched  streams of the packed launches
    refuses   the error of later launches, or 0
    """

    def __init__(self, patch: Any) -> None:
        patch.setattr(packed_launch, "cuda_driver", lambda: self)
        self.launched: list[int] = []
        self.refuses = 0
        self.kernel: Kernel | None = None
        self._capturing, self._nodes, self._count = False, 0, 0
        self._arguments = (ctypes.c_uint64 * 0)()
        self._pointers = (ctypes.c_void_p * 0)()

    def takes(self, kernel: Kernel, arguments: Sequence[int], stream: int) -> bool:
        """True for a launch that is captured, and computes nothing. A host function says it of each launch."""
        if not self._capturing:
            return False
        assert stream == _CAPTURES
        self.kernel, self._nodes, self._count = kernel, self._nodes + 1, len(arguments)
        self._arguments = (ctypes.c_uint64 * len(arguments))(*arguments)
        first = ctypes.addressof(self._arguments)
        self._pointers = (ctypes.c_void_p * len(arguments))(*[first + 8 * i for i in range(len(arguments))])
        return True

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = 7
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        return 0

    def cuStreamCreate(self, stream: Any, flags: Any) -> int:
        stream._obj.value = _CAPTURES
        return 0

    def cuStreamBeginCapture_v2(self, stream: Any, mode: Any) -> int:
        self._capturing, self._nodes = True, 0
        return 0

    def cuStreamEndCapture(self, stream: Any, graph: Any) -> int:
        self._capturing = False
        graph._obj.value = 1
        return 0

    def cuGraphDestroy(self, graph: Any) -> int:
        self._arguments = (ctypes.c_uint64 * 0)()  # as the driver frees them
        return 0

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        count._obj.value = self._nodes
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        kind._obj.value = 0
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: Any, found: Any) -> int:
        made: NodeParameters = found._obj
        made.kernel, made.grid_x, made.grid_y, made.grid_z, made.block_x = _KERNEL, 3, 2, 1, 128
        made.parameters = ctypes.cast(self._pointers, ctypes.POINTER(ctypes.c_void_p))
        return 0

    def cuKernelGetParamInfo(self, kernel: Any, index: Any, offset: Any, size: Any) -> int:
        if index.value >= len(self._arguments):
            return 1
        offset._obj.value, size._obj.value = 8 * index.value, 8
        return 0

    def cuGraphKernelNodeGetAttribute(self, node: Any, kind: Any, value: Any) -> int:
        if kind.value == _CLUSTER:
            value._obj.value[:3] = (2, 1, 1)
        return 0

    def cuLaunchKernelEx(self, config: Any, kernel: Any, pointers: Any, extra: None) -> int:
        if self.refuses:
            return self.refuses
        given: Launch = config._obj
        attribute = Attribute.from_address(given.attributes)
        assert (repr(kernel), given.grid_x, given.grid_y, given.block_x, given.count) == (f"<cparam 'P' ({_KERNEL:#x})>", 3, 2, 128, 1)
        assert (attribute.kind, attribute.value[0]) == (_CLUSTER, 2)
        values = [ctypes.c_int64.from_address(at).value for at in pointers._obj]
        self.launched.append(given.stream or 0)
        assert self.kernel is not None
        self.kernel(values)
        return 0
