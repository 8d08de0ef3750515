"""What a network may hold that no part of it could have: refused by name when it is built, before torch fails or drops it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from petra_graph.units import listed
from petra_graph_modules.cutting.cannot_cut import CannotCut


def expect_fit(network: nn.Module) -> None:
    """Expect a network whose modules can be copied with other values.

    Raises:
        CannotCut: it has lazy layers, scripted ones, or parameters with hooks.
    """
    parameters = dict(network.named_parameters(remove_duplicate=False))
    if lazy := [name for name, parameter in parameters.items() if is_lazy(parameter)]:
        hint = "give their sizes: Linear(in_features, out_features) for LazyLinear(out_features), and so on"
        raise CannotCut(f"parameters have no shape before the first forward: {listed(lazy)}", hint)
    if scripted := [name for name, module in network.named_modules() if isinstance(module, torch.jit.ScriptModule)]:
        hint = "leave out torch.jit.script, which compiles no training; run.compile = true compiles nodes"
        raise CannotCut(f"modules are of torch.jit, whose parts cannot be copied: {listed(scripted)}", hint)
    if hooked := [
        name
        for name, one in parameters.items()
        if one._backward_hooks or getattr(one, "_post_accumulate_grad_hooks", None)  # noqa: SLF001  no public way to ask
    ]:
        hint = "change the gradient in the forward: w * mask + (w * (1 - mask)).detach() has the gradient of w times the mask"
        raise CannotCut(f"parameters have hooks for their gradients, which a copy has not: {listed(hooked)}", hint)
