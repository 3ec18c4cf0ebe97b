"""An emulated GPU's memory as torch counts it, and its random numbers.

The GPU has random numbers of its own: those of the host do not depend on how many it has drawn.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from ..arguments import Place, bytes_at

if TYPE_CHECKING:
    from torch import Tensor, UntypedStorage

ALIGNMENT = 512  # bytes: of what cudaMalloc and torch allocate on a GPU
_OTHER_SEED = 0x9E3779B97F4A7C15  # a seed gives the GPU other numbers than the host, as on hardware
SEEDS = (1 << 64) - 1


def place_of(x: Tensor, address: int) -> Place | None:
    """The storage of a tensor if it holds an address, else None."""
    storage = x.untyped_storage()
    low, size = storage.data_ptr(), storage.nbytes()
    if not low <= address < low + size:
        return None
    return f"a {str(x.dtype).removeprefix('torch.')} tensor {tuple(x.shape)}", low, bytes_at(low, size, storage)


class DeviceUse:
    """Storages that lie on the GPU, and the most bytes that they have had.

    allocated  is told the address of each new one
    """

    def __init__(self, allocated: Callable[[int], object] = lambda address: None) -> None:
        self.allocated = allocated
        self.count = 0  # storages so far
        # By id; a DLPack capsule keeps a storage alive without its tensor.
        self._storages: dict[int, weakref.ref[UntypedStorage]] = {}
        self._sizes: dict[int, tuple[int, int]] = {}  # by id: (address, bytes)
        self._at: dict[int, dict[int, int]] = {}  # address -> id -> bytes: storages may share memory
        self._gone: deque[int] = deque()  # ids of dead storages: a death may interrupt any line here
        self._bytes = self.peak = 0

    def add(self, storage: UntypedStorage) -> None:
        """Count a storage from now on, as long as it lives. Again: it has its size of now."""
        self._forget()
        key, place = id(storage), (storage.data_ptr(), storage.nbytes())
        if key not in self._storages:
            self._storages[key] = weakref.ref(storage, partial(_note_death, self._gone, key))
            self.count += 1
            self.allocated(place[0])
        elif self._sizes[key] == place:
            return
        else:
            self._leave(key)
        address, size = self._sizes[key] = place
        held = self._at.setdefault(address, {})
        self._bytes -= max(held.values(), default=0)
        held[key] = -(-size // ALIGNMENT) * ALIGNMENT
        self._bytes += max(held.values())
        self.peak = max(self.peak, self._bytes)

    def has(self, storage: UntypedStorage) -> bool:
        """True if a storage is counted."""
        self._forget()
        return id(storage) in self._storages

    def storages(self) -> list[UntypedStorage]:
        """Those that live."""
        return [x for one in list(self._storages.values()) if (x := one()) is not None]

    def _forget(self) -> None:
        while self._gone:
            del self._storages[key := self._gone.popleft()]
            self._leave(key)

    def _leave(self, key: int) -> None:
        held = self._at[address := self._sizes.pop(key)[0]]
        self._bytes -= max(held.values())
        del held[key]
        if held:
            self._bytes += max(held.values())
        else:
            del self._at[address]

    def bytes(self) -> int:
        """Bytes in use, each allocation rounded up to ALIGNMENT."""
        self._forget()
        return self._bytes

    def answers(self, memory: int) -> dict[str, Callable[..., object]]:
        """Answers of torch.cuda about its memory, of that many bytes."""

        def forget(*args: object) -> None:
            self.peak = self.bytes()

        def stats(*args: object) -> dict[str, int]:
            now, most = self.bytes(), self.peak
            kinds = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
            found = {f"{kind}.all.{which}": x for kind in kinds for which, x in (("current", now), ("peak", most))}
            return found | {"num_alloc_retries": 0, "num_ooms": 0}

        return {
            "empty_cache": lambda: None, "memory_summary": lambda *x, **more: f"emulated: {self.bytes()} bytes in use",
            "memory_allocated": lambda *x: self.bytes(), "memory_reserved": lambda *x: self.bytes(),
            "max_memory_allocated": lambda *x: self.peak, "max_memory_reserved": lambda *x: self.peak,
            "reset_peak_memory_stats": forget, "reset_max_memory_allocated": forget, "memory_stats": stats,
            "reset_accumulated_memory_stats": lambda *x: None, "reset_max_memory_cached": forget,
            "memory_snapshot": lambda *x, **more: [], "set_per_process_memory_fraction": lambda *x: None,
            "mem_get_info": lambda *x: (max(memory - self.bytes(), 0), memory),
            "get_allocator_backend": lambda: "native",
        }  # fmt: skip


def _note_death(gone: deque[int], key: int, _: object) -> None:
    gone.append(key)


class DeviceNumbers:
    """The generator of random numbers of the GPU."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self.manual_seed(torch.initial_seed())

    def manual_seed(self, seed: int, *args: object) -> None:
        """torch.cuda.manual_seed, which torch.manual_seed calls, too."""
        self.seed, self.offset = int(seed), 0
        self._state: Tensor = self._torch.Generator().manual_seed(self.seed & SEEDS ^ _OTHER_SEED).get_state()

    def reseed(self) -> int:
        """torch.cuda.seed: a seed that is not known before."""
        self.manual_seed(self._torch.Generator().seed())
        return self.seed

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Within it torch draws the GPU's numbers. Not for a tracer, whose tensors have no values."""
        torch = self._torch
        if torch._C._len_torch_dispatch_stack():
            yield
            return
        host = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(host)

    def _put(self, state: Tensor, *args: object) -> None:
        self._state = state.clone()

    def answers(self) -> dict[str, object]:
        """Answers of torch.cuda about random numbers."""
        return {
            "manual_seed": self.manual_seed, "manual_seed_all": self.manual_seed, "seed": self.reseed,
            "seed_all": self.reseed, "initial_seed": lambda: self.seed,
            "get_rng_state": lambda *x: self._state.clone(), "set_rng_state": self._put,
            "get_rng_state_all": lambda: [self._state.clone()],
            "set_rng_state_all": lambda states: self._put(states[0]),
            "default_generators": (DeviceGenerator(self._torch, self),),
        }  # fmt: skip


class DeviceGenerator:
    """The generator in torch.cuda.default_generators: a seed and an offset, from which kernels draw.

    Its state has 16 bytes, as on a GPU. torch's own draws take the seed alone.
    """

    def __init__(self, torch: ModuleType, numbers: DeviceNumbers) -> None:
        self._torch, self._numbers, self.device = torch, numbers, torch.device("cuda", 0)

    def get_state(self) -> Tensor:
        """The seed and the offset, as bytes of two int64."""
        seed = (self._numbers.seed + (1 << 63)) % (1 << 64) - (1 << 63)
        return self._torch.tensor([seed, self._numbers.offset], dtype=self._torch.int64).view(self._torch.uint8)

    def set_state(self, state: Tensor) -> DeviceGenerator:
        """Take a seed, where it is another one, and an offset."""
        seed, offset = state.view(self._torch.int64).tolist()
        if (seed - self._numbers.seed) % (1 << 64):
            self._numbers.manual_seed(seed)
        self._numbers.offset = offset
        return self

    def get_offset(self) -> int:
        """Numbers that have been drawn."""
        return self._numbers.offset

    def set_offset(self, offset: int) -> None:
        """Draw from that number on."""
        self._numbers.offset = int(offset)

    def manual_seed(self, seed: int) -> DeviceGenerator:
        """torch.cuda.manual_seed."""
        self._numbers.manual_seed(seed)
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return self._numbers.seed

    def seed(self) -> int:
        """A seed that is not known before."""
        return self._numbers.reseed()
