"""The functions of blocks as torch's compiler makes them (`run.compile`).

A coupling's residual functions are compiled, and of other blocks `forward` and `inverse`: so each evaluation of the executor calls compiled
code once. Only training calls it: evaluations are those of whoever loads the weights, and no last batch of another size is compiled.

A function is compiled whole, for the shapes that it gets, or not at all: else bits would depend on how many stages a process has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from petra_graph.blocks import Block, Reversible
from petra_graph.blocks.couplings import Coupling
from petra_graph.blocks.randomness import current_states
from petra_graph.errors import RunFailed


def compile_functions(node: str, block: Block) -> None:
    """Compile what a node's block computes in training; each function when it is first called with some shapes and types.

    Its functions become attributes of this one object, which is on its device and is not to be copied afterwards.
    """
    import torch._functorch.config as differentiating
    import torch._inductor.config as generating
    from torch._dynamo import convert_frame

    tracing = vars(convert_frame)["config"]  # `torch._dynamo.config` may be another copy of it
    # One code object serves all blocks of a class, and the compiler would give up after 8 shapes of them.
    tracing.recompile_limit = tracing.accumulated_recompile_limit = 2**16
    generating.compile_threads = 1  # processes of its own would outlive an interruption
    if hasattr(generating, "deterministic"):  # torch 2.10
        generating.deterministic = True
    if hasattr(differentiating, "backward_pass_autocast"):  # torch 2.9; `backpropagate` says why
        differentiating.backward_pass_autocast = "off"  # noqa: S105  "pass" is no password here
    names: tuple[str, ...] = ("forward",)
    if isinstance(block, Coupling):
        names = block.functions
    elif isinstance(block, Reversible):
        # One with a backward of its own, such as a permutation of channels, calls neither to go back.
        names = ("forward", "inverse") if type(block).reverse_vjp is Reversible.reverse_vjp else ()
    for name in names:
        setattr(block, name, _compiled(node, block, getattr(block, name)))


def _compiled(node: str, block: Block, function: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(function, dynamic=False, fullgraph=True)
    examined = False

    @wraps(function)
    def call(*streams: Any, **more: Any) -> Any:
        nonlocal examined
        if not block.training:
            return function(*streams, **more)
        if examined:
            return compiled(*streams, **more)
        before = current_states()
        found = compiled(*streams, **more)
        if any(not torch.equal(*states) for states in zip(before, current_states(), strict=True)):
            message = "it draws random numbers, and compiled code does not promise those of a forward to its backward"
            raise RunFailed(
                f'node "{node}" cannot be compiled: {message}', hint="set dropout to 0, or leave out run.compile"
            )
        examined = True
        return found

    return call
