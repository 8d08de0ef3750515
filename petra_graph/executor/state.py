"""All that a stage holds between two operations, as tensors by name on the host and facts in JSON; and back, to the bit.

    parameters/NODE/NAME           gradients/NODE/NAME      the sum of the open window
    buffers/NODE/NAME              optimizer/NODE/NAME/KEY
    evaluated/NODE/NAME            the weights of evaluations, where the optimizer has others than the trained ones; not restored
    versions/V/NODE/NAME           the parameters of version V, which a micro-batch in flight uses
    inputs/NODE/M/I                what the segment that begins with NODE keeps of micro-batch M
    callbacks/CALLBACK/NODE/NAME   what a callback keeps beside a parameter

Everything is keyed by node, never by stage, so parameters and optimizer state load under any partition. What is no tensor of an
optimizer's state is among the facts; of its groups, they have what has changed since the optimizer was built: what was as it had been built
is as it is built now, from the options and for the stage of now.

Tensors are noted with their strides: kernels are chosen by strides, and bits by kernels.

Decision: a graph that waits for its backward is not stored. Its inputs are, with the version of the parameters; it is built
again by the same forward, with running statistics frozen, since the first one has updated them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn

from petra_graph.errors import RunFailed
from petra_graph.executor.delayed_weights import evaluated_weights
from petra_graph.executor.encoded import EncodedTensor, EncodedTensors
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.update import Updater
from petra_graph.plugins.author_code import noted

Facts = dict[str, Any]
"""JSON."""


@define
class SavedTensors:
    """Tensors on the host by name, with the facts that make them what they were."""

    tensors: dict[str, Tensor] = field(factory=dict)
    """Dense, none in memory of another."""
    facts: Facts = field(factory=dict)

    def put(self, name: str, value: Tensor) -> None:
        """Copy a tensor."""
        # Where a tensor's elements fill a piece of memory in some order of dimensions, torch makes others like it.
        if not value.is_contiguous() and torch.empty_like(value, device="meta").stride() == value.stride():
            self._fact("strides")[name] = list(value.stride())
        self.tensors[name] = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())

    def put_all(self, name: str, values: EncodedTensors) -> None:
        """Copy several tensors, as they are encoded."""
        self._fact("counts")[name] = len(values)
        for own, value in ((f"{name}/{index}", value) for index, value in enumerate(values)):
            if isinstance(value, Tensor):
                self.put(own, value)
                continue
            self._fact("encoded")[own] = str(value.dtype).removeprefix("torch.")
            self.put(f"{own}/payload", value.payload)
            if value.scale is not None:
                self.put(f"{own}/scale", value.scale)

    def get_all(self, name: str, device: torch.device) -> EncodedTensors:
        """Return several tensors on a device, each in the layout that it had."""
        found: list[Tensor | EncodedTensor] = []
        for own in (f"{name}/{index}" for index in range(self._fact("counts")[name])):
            if (dtype := self._fact("encoded").get(own)) is None:
                found.append(self.tensor(own, device))
                continue
            scale = self.tensor(f"{own}/scale", device) if f"{own}/scale" in self.tensors else None
            payload = self.tensor(f"{own}/payload", device)
            found.append(EncodedTensor(payload=payload, scale=scale, dtype=getattr(torch, dtype)))
        return tuple(found)

    def tensor(self, name: str, device: torch.device) -> Tensor:
        """Return a tensor on a device, in the layout that it had."""
        stored = self.tensors[name]
        strides = self._fact("strides").get(name, stored.stride())
        return torch.empty_strided(stored.shape, strides, dtype=stored.dtype, device=device).copy_(stored)

    def below(self, prefix: str, device: torch.device) -> dict[str, Tensor]:
        """Return the tensors whose names begin so, by the rest of their names."""
        names = [name for name in self.tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.tensor(name, device) for name in names}

    def _fact(self, name: str) -> Facts:
        found: Facts = self.facts.setdefault(name, {})
        return found


_HERE, _ON_HOST = {"tensor": "on the stage's device"}, {"tensor": "on the host"}


def capture(executor: StageExecutor) -> SavedTensors:
    """Copy what a stage holds between two operations.

    RunFailed: the optimizer holds what is neither a tensor nor a plain value, or a gradient since the last reading was not finite.
    """
    executor.check()
    saved, updater = SavedTensors(), executor.updater
    saved.facts |= {
        "index": executor.program.index,
        "nodes": list(executor.program.nodes),
        "depth": executor.program.depth,
        "updates": updater.updates,
        "window": updater.window,
        "weight": updater.weight,
    }
    for name, tensor in _network(executor.modules):
        saved.put(name, tensor)
    for name, parameter in _parameters(executor.modules):
        if parameter.grad is not None:
            saved.put(f"gradients/{name}", parameter.grad)
    capture_optimizer(saved, updater, dict(_parameters(executor.modules)))
    for parameter, weights in evaluated_weights(updater):
        for name, own in _parameters(executor.modules):  # nodes of a stage may share one
            if own is parameter:
                saved.put(f"evaluated/{name}", weights)
    _capture_in_flight(saved, executor)
    for callback, companion in executor.companions.items():
        with noted(f'callback "{callback}"'):
            for name, tensor in companion.state().items():
                saved.put(f"callbacks/{callback}/{name}", tensor)
    return saved


def restore(executor: StageExecutor, saved: SavedTensors) -> None:
    """Put what was captured into a stage of the same nodes, newly built; RunFailed: the optimizer groups parameters otherwise than then."""
    updater, device = executor.updater, torch.device(executor.program.device)
    restore_nodes(executor, saved)
    updater.updates, updater.window = saved.facts["updates"], saved.facts["window"]
    updater.weight, updater.late = saved.facts["weight"], saved.facts.get("late", 0)
    for name, parameter in _parameters(executor.modules):
        if f"gradients/{name}" in saved.tensors:
            parameter.grad = saved.tensor(f"gradients/{name}", device)
    if updater.optimizer is not None:
        own, then = len(updater.optimizer.param_groups), len(saved.facts["groups"])
        if own != then:
            message = f"the optimizer {type(updater.optimizer).__name__} has {own} groups of parameters, and had {then}"
            raise RunFailed(message, hint="resume with the version that it had at the checkpoint")
        restore_groups(updater, saved.facts["groups"])
    if (versions := executor.versions) is not None:
        known = saved.facts["versions"]
        versions.current, versions.version_of = known["current"], dict(known["of"])
        versions.copies = {
            int(number): {node: saved.below(f"versions/{number}/{node}/", device) for node in nodes}
            for number, nodes in known["copies"].items()
        }
    for segment, runner in executor.runners:
        node = segment.nodes[0]
        for micro_batch in saved.facts["inputs"][node]:
            runner.put_back(micro_batch, saved.get_all(f"inputs/{node}/{micro_batch}", device))


@torch.no_grad()
def restore_nodes(executor: StageExecutor, saved: SavedTensors) -> None:
    """Give a stage's nodes their parameters, buffers and optimizer state, which may come from several stages."""
    device = torch.device(executor.program.device)
    for name, tensor in _network(executor.modules):
        if (there := saved.tensors[name].shape) != tensor.shape:  # it might be broadcast
            raise ValueError(f"{name} is {list(there)} in the checkpoint, and {list(tensor.shape)} here")
        tensor.copy_(saved.tensors[name])
    for callback, companion in executor.companions.items():
        kept = saved.below(f"callbacks/{callback}/", device)
        if own := {name: tensor for name, tensor in kept.items() if name.partition("/")[0] in executor.modules}:
            with noted(f'callback "{callback}"'):
                companion.restore(own)
    restore_optimizer(saved, executor.updater, dict(_parameters(executor.modules)), device)


def _capture_in_flight(saved: SavedTensors, executor: StageExecutor) -> None:
    if (versions := executor.versions) is not None:
        saved.facts["versions"] = {
            "current": versions.current,
            "of": [list(pair) for pair in versions.version_of.items()],
            "copies": {str(version): list(nodes) for version, nodes in versions.copies.items()},
        }
        for version, nodes in versions.copies.items():
            for node, parameters in nodes.items():
                for key, tensor in parameters.items():
                    saved.put(f"versions/{version}/{node}/{key}", tensor)
    saved.facts["inputs"] = {}
    for segment, runner in executor.runners:
        node, in_flight = segment.nodes[0], runner.kept()
        saved.facts["inputs"][node] = [micro_batch for micro_batch, _ in in_flight]
        for micro_batch, kept in in_flight:
            saved.put_all(f"inputs/{node}/{micro_batch}", kept)


def capture_optimizer(saved: SavedTensors, updater: Updater, named: Mapping[str, nn.Parameter]) -> None:
    """Copy what an optimizer holds; RunFailed: it is neither a tensor nor a plain value."""
    if (optimizer := updater.optimizer) is None:
        return
    own = set(map(id, named.values()))
    for other in (key for key in optimizer.state if id(key) not in own):
        raise _unfit(optimizer, f"it keeps state of {other!r}")
    states: Facts = {}
    for name, parameter in named.items():
        if parameter not in optimizer.state:
            continue
        own_state = states[name] = {}
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                saved.put(f"optimizer/{name}/{key}", value)
                own_state[key] = _HERE if value.device == parameter.device else _ON_HOST
            else:
                own_state[key] = _plain(value, f"its state {key!r} of {name}", optimizer)
    saved.facts["optimizer"] = states
    if updater.stage is not None:
        saved.facts["late"] = updater.late
    saved.facts["groups"] = []
    for group, built in zip_longest(optimizer.param_groups, updater.built, fillvalue=dict[str, Any]()):
        values = {key: _plain(one, f"its group's {key!r}", optimizer) for key, one in group.items() if key != "params"}
        changed = {key: value for key, value in values.items() if repr(group[key]) != built.get(key)}
        saved.facts["groups"].append(changed)


def restore_optimizer(
    saved: SavedTensors, updater: Updater, named: Mapping[str, nn.Parameter], device: torch.device
) -> None:
    """Give the parameters that the optimizer steps the state that it had of them, which may come from several stages."""
    if (optimizer := updater.optimizer) is None:
        return
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in named.items():
        if name not in saved.facts["optimizer"] or id(parameter) not in stepped:
            continue
        state = optimizer.state[parameter] = {}
        for key, value in saved.facts["optimizer"][name].items():
            if value in (_HERE, _ON_HOST):
                on = device if value == _HERE else torch.device("cpu")
                state[key] = saved.tensor(f"optimizer/{name}/{key}", on)
            else:
                state[key] = _from_json(value)


def restore_groups(updater: Updater, groups: Sequence[Facts]) -> None:
    """Give an optimizer's groups back what the run had changed there; of other groups than the optimizer's, nothing is restored."""
    if (optimizer := updater.optimizer) is None or len(optimizer.param_groups) != len(groups):
        return
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        group |= {key: _from_json(value) for key, value in values.items()}


def _from_json(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any, what: str, optimizer: torch.optim.Optimizer) -> Any:
    """Return a value as JSON holds it."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise _unfit(optimizer, f"{what}: {error}") from None


def _unfit(optimizer: torch.optim.Optimizer, why: str) -> RunFailed:
    hint = "optimizers keep tensors, numbers, texts and lists of them, of parameters and in their groups"
    return RunFailed(f"the optimizer {type(optimizer).__name__} cannot be written to a checkpoint: {why}", hint=hint)


def _network(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in _parameters(modules):
        yield f"parameters/{name}", parameter
    for node, module in modules.items():
        for key, buffer in module.named_buffers():
            yield f"buffers/{node}/{key}", buffer


def _parameters(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    for node, module in modules.items():
        for key, parameter in module.named_parameters():
            yield f"{node}/{key}", parameter
