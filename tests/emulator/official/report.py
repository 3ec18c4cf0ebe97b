"""Print the emulator's findings for one official example at one shape:

    python -m tests.emulator.official.report geforce_f16 256x128x128
    python -m tests.emulator.official.report hopper_fp8_2xacc 128x128x256 --register-strict
    python -m tests.emulator.official.report blackwell_alpha_beta 128x128x64 --lanes strict

exit status: 0 nothing was found and the results are right, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys

from layoutgemm.emulator.machine.interpreter import Policy, PtxMachine
from layoutgemm.emulator.ops import build
from layoutgemm.emulator.ptx.program import Program
from layoutgemm.errors import EmulatorError
from tests.emulator.official.compiled import missing
from tests.emulator.official.examples import EXAMPLES, Shape
from tests.emulator.official.running import case, kernel


def shape_of(text: str) -> Shape:
    """m x n x k, and x l where it is not 1."""
    m, n, k, *rest = (int(part) for part in text.split("x"))
    return m, n, k, rest[0] if rest else 1


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", choices=sorted(EXAMPLES), metavar="NAME")
    parser.add_argument("shape", type=shape_of, help="MxNxK or MxNxKxL")
    parser.add_argument("--register-strict", action="store_true", help="hold wgmma.fence to the word of PTX")
    parser.add_argument("--lanes", choices=("strict", "converged", "off"), default="converged", help="of one warp")
    chosen = parser.parse_args()
    example = EXAMPLES[chosen.name]
    if (reason := missing(example)) is not None:
        print(reason, file=sys.stderr)
        return 1
    one = case(example, chosen.shape)
    launch = one.launch()
    policy = Policy(register_strict=chosen.register_strict, lanes=chosen.lanes)
    machine = PtxMachine(Program(kernel(example), build), launch, policy)
    wrong = None
    try:
        machine.run()
        wrong = one.check(launch)
    except EmulatorError as error:
        wrong = str(error)
    found = [finding for finding in machine.findings.found if finding.kind != "lint"]
    for finding in found:
        print(finding)
    print(f"{one.name}: {len(found)} findings; results {wrong or 'right'}")
    return 1 if found or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
