"""Tensors with nothing mapped before or behind them: what reaches there is an illegal access, which a GPU reports."""

from __future__ import annotations

from typing import Any

import torch

from layoutgemm.kernels.run.occupancy import got

_MAPPED: list[Any] = []  # for the process's life: a kernel may still run


class _Bytes:
    """Mapped bytes between unmapped ones, as torch takes them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


def guarded(values: torch.Tensor, side: str) -> torch.Tensor:
    """A contiguous copy of `values` that begins, or ends, where its mapped memory does.

    side  "start" or "end"
    """
    from cuda.bindings import driver

    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = values.get_device()
    granule = int(
        got(
            driver.cuMemGetAllocationGranularity(
                prop, driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
            )
        )
    )
    size = values.numel() * values.element_size()
    mapped = -(-size // granule) * granule
    reserved = int(got(driver.cuMemAddressReserve(mapped + 2 * granule, 0, 0, 0)))
    handle = got(driver.cuMemCreate(mapped, prop, 0))
    got(driver.cuMemMap(reserved + granule, mapped, 0, handle, 0))
    access = driver.CUmemAccessDesc()
    access.location = prop.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    got(driver.cuMemSetAccess(reserved + granule, mapped, [access], 1))
    first = reserved + granule + (mapped - size if side == "end" else 0)
    holder = _Bytes(first, size)
    _MAPPED.append(holder)
    made = torch.as_tensor(holder, device=values.device).view(values.dtype).view(values.shape)
    made.copy_(values)
    return made
