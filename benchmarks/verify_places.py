"""Compares the SMs of a launch's clusters with the model `ClusterOccupancy`: count and rounds.

    python benchmarks/verify_places.py --json benchmarks/results/places_h200.json

CTAs with 200 KiB of shared memory, one per SM, store their SM number. SMs of one cluster of up to eight CTAs are on one
graphics processing cluster (GPC). The rounds hold if all clusters that `ClusterOccupancy.gpc_rounds` assigns to one GPC
ran on one, and those of different GPCs on different ones.

`--plant 1` tests the comparison: it moves all rounds by one cluster.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from layoutgemm.kernels.run.occupancy import BLOCK_BYTES, asked, got, launch_of
from layoutgemm.kernels.sm90.choose.occupancy import SIZES, ClusterOccupancy
from layoutgemm.schedule.gpc_order import GpcOrder, Rounds

WAIT_NS = 20_000  # that a block stays, so that all others come meanwhile
WHERE = f"""
.version 7.8
.target sm_90
.address_size 64
.visible .entry where(.param .u64 out)
{{
    .reg .pred %p;
    .reg .u32 %r<3>;
    .reg .u64 %t<3>;
    .reg .u64 %a<3>;
    mov.u64 %t0, %globaltimer;
again:
    mov.u64 %t1, %globaltimer;
    sub.u64 %t2, %t1, %t0;
    setp.lt.u64 %p, %t2, {WAIT_NS};
    @%p bra again;
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p, %r0, 0;
    @%p ret;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %smid;
    ld.param.u64 %a0, [out];
    mul.wide.u32 %a1, %r1, 4;
    add.u64 %a2, %a0, %a1;
    st.global.u32 [%a2], %r2;
    ret;
}}
"""


class Gpu:
    """torch's current GPU, and a program that reports the SMs of its CTAs."""

    def __init__(self) -> None:
        import torch
        from cuda.bindings import driver

        self.torch, self.driver = torch, driver
        torch.zeros(1, device="cuda")
        self.module = got(driver.cuModuleLoadData(WHERE.encode() + b"\0"))
        self.function = got(driver.cuModuleGetFunction(self.module, b"where"))
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        got(driver.cuFuncSetAttribute(self.function, attribute, BLOCK_BYTES))

    def clusters(self, count: int, blocks: int) -> list[tuple[int, ...]]:
        """The SMs of each of `count` clusters, in cluster order."""
        import ctypes

        out = self.torch.full((count * blocks,), -1, dtype=self.torch.int32, device="cuda")
        launch = launch_of(self.driver, blocks, count)
        launch.hStream = self.torch.cuda.current_stream().cuda_stream
        got(self.driver.cuLaunchKernelEx(launch, self.function, ((out.data_ptr(),), (ctypes.c_uint64,)), 0))
        found = out.tolist()
        return [tuple(found[i : i + blocks]) for i in range(0, len(found), blocks)]


def places_of(gpu: Gpu, counts: Sequence[int]) -> dict[int, int]:
    """GPC of each SM: SMs of one cluster are on one GPC."""
    root: dict[int, int] = {}

    def find(x: int) -> int:
        while root.setdefault(x, x) != x:
            x = root[x]
        return x

    for blocks, count in zip(reversed(SIZES), reversed(counts), strict=True):
        for fewer in range(3):
            for cluster in gpu.clusters(count - fewer, blocks):
                for other in cluster:
                    root[find(other)] = find(cluster[0])
    return {x: find(x) for x in sorted(root)}


def held(rounds: Rounds, at: Sequence[int], plant: int = 0) -> str:
    """The reason why clusters were not assigned in such rounds, or an empty text.

    >>> held((((0, 1), 2),), [5, 7, 5, 7, 9]), held((((0, 1), 2),), [5, 5, 5, 5])
    ('', 'clusters 0 and 1 lie in place 5: they were to be in 0 and 1')
    >>> held((((0, 1), 1), ((1,), 2)), [5, 7, 7, 8])
    'clusters 1 and 3 lie in places 7 and 8: both were to be in 1'
    """
    planned = [place for places, times in rounds for _ in range(times) for place in places]
    lies: dict[int, tuple[int, int]] = {}  # what was to be a place: the first cluster there, and where it lies
    said: dict[int, tuple[int, int]] = {}  # the other way round
    for number, (place, seen) in enumerate(zip(planned, at[plant:], strict=False), plant):
        first, its = lies.setdefault(place, (number, seen))
        if its != seen:
            return f"clusters {first} and {number} lie in places {its} and {seen}: both were to be in {place}"
        first, its = said.setdefault(seen, (number, place))
        if its != place:
            return f"clusters {first} and {number} lie in place {seen}: they were to be in {its} and {place}"
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 if the rounds do not hold, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=20, metavar="COUNT", help="launches of each size")
    parser.add_argument("--plant", type=int, default=0, metavar="CLUSTERS", help="move the rounds by so many")
    parser.add_argument("--json", type=Path, help="the record")
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    from layoutgemm.bench import machine

    gpu = Gpu()
    facts: dict[str, Any] = machine.facts()
    known = ClusterOccupancy(int(facts["sms"]), asked(gpu.torch.cuda.current_device()))
    print(f"{facts['gpu']}: {known.multiprocessors} multiprocessors, places for {known.clusters} clusters of {SIZES}")
    place, seen, failed = places_of(gpu, known.clusters), {}, 0
    for blocks in (1, *SIZES):
        rounds, count = known.gpc_rounds(blocks), known.most(blocks)
        launches = [[place.get(c[0], c[0]) for c in gpu.clusters(count, blocks)] for _ in range(options.repeats)]
        faults = [fault for at in launches if (fault := held(rounds, at, options.plant))]
        failed += bool(faults)
        seen[str(blocks)] = {"rounds": rounds, "first": launches[0], "held": len(launches) - len(faults)}
        said = f"rounds of {GpcOrder(rounds)} held in {len(launches) - len(faults)} of {len(launches)} launches"
        print(f"clusters of {blocks}: {'; '.join([said, *faults[:1]]) if rounds else 'no rounds are known'}")
        print("    places: " + " ".join(map(str, launches[0])))
    if options.json:
        record: dict[str, Any] = {"machine": facts, "clusters": known.clusters, "sizes": SIZES, "seen": seen}
        options.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
