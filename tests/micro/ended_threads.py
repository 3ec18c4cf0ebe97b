"""PTX text of a block whose second warp ends early; its first warp uses a named barrier of 64 threads.

    python -m tests.micro.ended_threads arrive      # the first warp arrives and ends: a barrier left in a phase
    python -m tests.micro.ended_threads sync        # the first warp waits: it hangs unless ended threads count

Each prints "done" where the kernel ends. Run it with a time limit.
"""

from __future__ import annotations

import sys

import numpy as np

from tests.micro.cuda_driver import Device

USES = {"arrive": "bar.arrive 1, 64;", "sync": "bar.sync 1, 64;"}


def text(use: str, target: str, version: str = "8.0") -> str:
    """The module; kernel `ended` writes 1 to its one parameter's memory at the end of warp 0."""
    return f"""
.version {version}
.target {target}
.address_size 64
.visible .entry ended(.param .u64 out)
{{
  .reg .b32 %r<3>; .reg .b64 %d<2>; .reg .pred %p<2>;
  ld.param.u64 %d0, [out];
  cvta.to.global.u64 %d0, %d0;
  mov.u32 %r0, %tid.x;
  setp.ge.u32 %p0, %r0, 32;
  @%p0 bra END;
  {USES[use]}
  setp.ne.u32 %p1, %r0, 0;
  @%p1 bra END;
  mov.u32 %r1, 1;
  st.global.u32 [%d0], %r1;
END:
  ret;
}}
"""


def main() -> None:
    """Run one form on GPU 0, twice: the later blocks of an SM find what the earlier ones left."""
    with Device() as device:
        module = device.load(text(sys.argv[1], device.target))
        for _ in range(2):
            (out,) = device.launch(module, "ended", 4096, 64, [], [4])
    print("done" if out.view(np.uint32)[0] == 1 else "not written")


if __name__ == "__main__":
    main()
