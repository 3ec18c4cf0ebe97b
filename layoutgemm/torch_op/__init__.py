"""The torch operators: matmul, gemm, scaled_matmul and grouped_matmul.

A tensor handed to `matmul` passes through these files, in this order, and returns to none of them:

    api                           the fast path: a prepared launch again, which takes addresses; or all that follows
    own_epilogue.api              with an epilogue: its operands, and an operator under a compiler
    compiled.kept_launches        of gemm, and with an epilogue: the launch of an earlier call again
    kernels.run.operand_checks    kind, layout, device and memory of every tensor
    checks                        types, sizes and derivatives, refused in torch's words
    compute or epilogue           one kernel for the whole product, or for its sums
    reference                     on the CPU, where the path ends: in float64, rounded once
    bias_activation               a bias, and gemm's c: what follows the sums
    prepared                      tensors as a Problem, solved by `solver` and kept for the next call
    launch                        copies, addresses, and the compiled host function

The second call of a kind ends in `compiled.guards`, which finds the third one; both begin in `api`.
Where autograd alone has to see the call, `api` records the result of that path, and `autograd` keeps the launches of
the backward pass. Functorch, modes and other derivatives take a tensor from `checks` to `operators`, which begin at the
second line again.
Under torch.compile, `compiled` calls the checks, and `operators` follows.

    problem, solver, choose       a product as a value; its kernel, copies and launches; which kernel, of those that can
    emulated                      a solution on CPU tensors, in the emulator
    emulated_gpu                  operators within `layoutgemm emulate` and emulated_gpu()
    tuning, tuned_store           layoutgemm.tune and tune_call: candidates measured; the fastest, kept as JSON
    explain, explanation          layoutgemm.explain_matmul, and its text
    types                         torch's types and the plans' names for them

Each folder has a further product or option: `api` is the function that users call, `operators` are its operators in
torch.ops, and `explain` is its part of explain_matmul. `composed` has orders of tiles, two pairs, and several options
together.
"""

from typing import TYPE_CHECKING

from ..lazy_names import named_later

if TYPE_CHECKING:
    from ..kernels.compile.ahead import compile_ahead as compile_ahead
    from .api import gemm as gemm
    from .api import matmul as matmul
    from .explain import explain_matmul as explain_matmul
    from .scaled_grouped import grouped_matmul as grouped_matmul
    from .scaled_grouped import scaled_matmul as scaled_matmul
    from .tuning import tune as tune
    from .tuning import tune_call as tune_call

# Loaded on first use: `problem`, `solver` and `choose` serve frameworks without torch, too.
if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = named_later(__name__)
