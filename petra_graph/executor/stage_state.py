"""All that a stage holds between two operations, as tensors by name and facts in JSON; and back, to the bit.

    parameters/NODE/NAME           gradients/NODE/NAME      the sum of the open window
    buffers/NODE/NAME              optimizer/NODE/NAME/KEY
    evaluated/NODE/NAME            the weights of evaluations, where the optimizer has others than the trained ones; not restored
    versions/V/NODE/NAME           the parameters of version V, which a micro-batch in flight uses
    inputs/NODE/M/I                what the segment that begins with NODE keeps of micro-batch M
    sent/M/I                       sums of what the forward of M sent, for a diagnosis
    callbacks/CALLBACK/NODE/NAME   what a callback keeps beside a parameter

Everything is keyed by node, never by stage, so parameters and optimizer state load under any partition. Tensors are
copied to the host, and noted with their strides: kernels are chosen by strides, and bits by kernels.

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
from petra_graph.executor.encoded_tensors import EncodedTensor, EncodedTensors
from petra_graph.executor.head import HeadRunner
from petra_graph.executor.optimizer_weights import evaluated_weights
from petra_graph.executor.runners import Recompute, SegmentRunner, StashGraph
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.executor.stashed_inputs import HostCopy

_CALLBACKS = "callbacks"
Facts = dict[str, Any]
"""JSON."""


@define
class SavedTensors:
    """Tensors on the host by name, with the facts that make them what they were."""

    tensors: dict[str, Tensor] = field(factory=dict)
    """Dense, none in memory of another."""
    facts: Facts = field(factory=dict)

    def put(self, name: str, value: Tensor | EncodedTensor) -> None:
        """Copy a tensor."""
        if isinstance(value, EncodedTensor):
            self._fact("encoded")[name] = str(value.dtype).removeprefix("torch.")
            self.put(f"{name}/payload", value.payload)
            if value.scale is not None:
                self.put(f"{name}/scale", value.scale)
            return
        if not value.is_contiguous() and _dense(value):
            self._fact("strides")[name] = list(value.stride())
        copy = torch.empty(value.shape, dtype=value.dtype)
        self.tensors[name] = copy.copy_(value.detach())

    def get(self, name: str, device: torch.device) -> Tensor | EncodedTensor:
        """Return a tensor on a device, in the layout that it had."""
        if (dtype := self._fact("encoded").get(name)) is not None:
            scale = self._tensor(f"{name}/scale", device) if f"{name}/scale" in self.tensors else None
            payload = self._tensor(f"{name}/payload", device)
            return EncodedTensor(payload=payload, scale=scale, dtype=getattr(torch, dtype))
        return self._tensor(name, device)

    def put_all(self, name: str, values: EncodedTensors) -> None:
        """Copy several tensors."""
        self._fact("counts")[name] = len(values)
        for index, value in enumerate(values):
            self.put(f"{name}/{index}", value)

    def get_all(self, name: str, device: torch.device) -> EncodedTensors:
        """Return several tensors on a device."""
        return tuple(self.get(f"{name}/{index}", device) for index in range(self._fact("counts")[name]))

    def _tensor(self, name: str, device: torch.device) -> Tensor:
        stored = self.tensors[name]
        strides = self._fact("strides").get(name)
        shaped = (
            torch.empty_like(stored, device=device)
            if strides is None
            else torch.empty_strided(stored.shape, strides, dtype=stored.dtype, device=device)
        )
        return shaped.copy_(stored)

    def _fact(self, name: str) -> Facts:
        found: Facts = self.facts.setdefault(name, {})
        return found


def capture(executor: StageExecutor) -> SavedTensors:
    """Copy what a stage holds between two operations.

    Raises:
        RunFailed: the optimizer holds what is neither a tensor nor a plain value, or a gradient since the last reading was
            not finite.
        PluginError: the optimizer has no evaluated weights, though it says so.
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
    if updater.optimizer is not None:
        _capture_optimizer(saved, executor, updater.optimizer)
    for parameter, weights in evaluated_weights(updater):
        for name, own in _parameters(executor.modules):  # nodes of a stage may share one
            if own is parameter:
                saved.put(f"evaluated/{name}", weights)
    _capture_in_flight(saved, executor)
    for callback, companion in executor.companions.items():
        for name, tensor in companion.state().items():
            saved.put(f"{_CALLBACKS}/{callback}/{name}", tensor)
    return saved


def restore(executor: StageExecutor, saved: SavedTensors) -> None:
    """Put what was captured into a stage of the same nodes, newly built.

    Raises:
        RunFailed: the optimizer groups parameters otherwise than then.
    """
    updater, device = executor.updater, torch.device(executor.program.device)
    restore_nodes(executor, saved)
    updater.updates, updater.window = saved.facts["updates"], saved.facts["window"]
    updater.weight, updater.late = saved.facts["weight"], saved.facts.get("late", 0)
    for name, parameter in _parameters(executor.modules):
        if f"gradients/{name}" in saved.tensors:
            gradient = saved.get(f"gradients/{name}", device)
            assert isinstance(gradient, Tensor)
            parameter.grad = gradient
    if updater.optimizer is not None:
        own, then = len(updater.optimizer.param_groups), len(saved.facts["groups"])
        if own != then:
            message = f"the optimizer {type(updater.optimizer).__name__} has {own} groups of parameters, and had {then}"
            raise RunFailed(message, hint="resume with the version that it had at the checkpoint")
        restore_groups(executor, saved.facts["groups"])
    if executor.versions is not None:
        versions, of = saved.facts["versions"], dict(saved.facts["versions"]["of"])
        copies = {
            int(number): {node: _version(saved, f"versions/{number}/{node}/", device) for node in nodes}
            for number, nodes in versions["copies"].items()
        }
        executor.versions.restore(versions["current"], of, copies)
    for node, runner in _runners(executor):
        for micro_batch in saved.facts["inputs"][node]:
            _restore_input(runner, micro_batch, saved.get_all(f"inputs/{node}/{micro_batch}", device))
    for micro_batch in saved.facts["sent"]:
        sums = saved.get_all(f"sent/{micro_batch}", device)
        executor.sums_in_flight.append((micro_batch, tuple(value for value in sums if isinstance(value, Tensor))))


@torch.no_grad()
def restore_nodes(executor: StageExecutor, saved: SavedTensors) -> None:
    """Give a stage's nodes their parameters, buffers and optimizer state, which may come from several stages."""
    device = torch.device(executor.program.device)
    for name, tensor in _network(executor.modules):
        if (there := saved.tensors[name].shape) != tensor.shape:  # it might be broadcast
            raise ValueError(f"{name} is {list(there)} in the checkpoint, and {list(tensor.shape)} here")
        tensor.copy_(saved.tensors[name])
    _restore_companions(executor, saved)
    optimizer = executor.updater.optimizer
    if optimizer is None:
        return
    optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in _parameters(executor.modules):
        keys = saved.facts["optimizer"].get(name)
        if keys is None or id(parameter) not in optimized:
            continue
        state: dict[str, Any] = {}
        for key, value in keys.items():
            if value not in (_TENSOR_HERE, _TENSOR_ON_HOST):
                state[key] = tuple(value) if isinstance(value, list) else value
                continue
            state[key] = saved.get(f"optimizer/{name}/{key}", device if value == _TENSOR_HERE else torch.device("cpu"))
        optimizer.state[parameter] = state


def restore_window(executor: StageExecutor, parts: Sequence[SavedTensors]) -> None:
    """Continue in a stage the window that is open in all of the stages that its nodes come from.

    Where they had finished different numbers of its micro-batches, the mean of each counts as the fewest: one weight divides all. So does
    the mean delay of each, of which the stage has the mean.
    """
    device = torch.device(executor.program.device)
    weights = [part.facts["weight"] for part in parts]
    common = min(filter(None, weights), default=0.0)
    for part, weight in zip(parts, weights, strict=True):
        for name, parameter in _parameters(executor.modules):
            if weight and f"gradients/{name}" in part.tensors:
                gradient = part.get(f"gradients/{name}", device)
                assert isinstance(gradient, Tensor)
                parameter.grad = (gradient * (common / weight)).to(parameter.dtype)
    updater, delays = executor.updater, [part.facts.get("late", 0) / max(1, part.facts["window"]) for part in parts]
    updater.window, updater.weight = min(part.facts["window"] for part in parts), common
    updater.late = updater.window * sum(delays) / len(delays)


def _restore_companions(executor: StageExecutor, saved: SavedTensors) -> None:
    device = torch.device(executor.program.device)
    for callback, companion in executor.companions.items():
        prefix = f"{_CALLBACKS}/{callback}/"
        names = [name.removeprefix(prefix) for name in saved.tensors if name.startswith(prefix)]
        own = [name for name in names if name.partition("/")[0] in executor.modules]
        found = {name: saved.get(prefix + name, device) for name in own}
        if found:
            companion.restore({name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)})


def restore_groups(executor: StageExecutor, groups: Sequence[Facts]) -> None:
    """Give the groups of a stage's optimizer back what the run had changed there: rates, and whatever the optimizer counts.

    What was as it had been built is as it is built now, from the options and for the stage of now.

    Args:
        groups: as captured; of other groups than the optimizer's, nothing is restored.
    """
    optimizer = executor.updater.optimizer
    if optimizer is None or len(optimizer.param_groups) != len(groups):
        return
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        group |= {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _capture_in_flight(saved: SavedTensors, executor: StageExecutor) -> None:
    if executor.versions is not None:
        current, version_of, copies = executor.versions.state()
        saved.facts["versions"] = {
            "current": current,
            "of": [list(pair) for pair in version_of.items()],
            "copies": {str(version): list(nodes) for version, nodes in copies.items()},
        }
        for version, nodes in copies.items():
            for node, parameters in nodes.items():
                for key, tensor in parameters.items():
                    saved.put(f"versions/{version}/{node}/{key}", tensor)
    saved.facts["inputs"] = {}
    for node, runner in _runners(executor):
        in_flight = _kept(runner)
        saved.facts["inputs"][node] = [micro_batch for micro_batch, _ in in_flight]
        for micro_batch, kept in in_flight:
            saved.put_all(f"inputs/{node}/{micro_batch}", kept)
    saved.facts["sent"] = [micro_batch for micro_batch, _ in executor.sums_in_flight]
    for micro_batch, sums in executor.sums_in_flight:
        saved.put_all(f"sent/{micro_batch}", sums)


_TENSOR_HERE, _TENSOR_ON_HOST = {"tensor": "on the stage's device"}, {"tensor": "on the host"}


def _capture_optimizer(saved: SavedTensors, executor: StageExecutor, optimizer: torch.optim.Optimizer) -> None:
    own = {id(parameter) for _, parameter in _parameters(executor.modules)}
    if others := [key for key in optimizer.state if id(key) not in own]:
        message = f"the optimizer {type(optimizer).__name__} cannot be written to a checkpoint: it keeps state of {others[0]!r}"
        raise RunFailed(message, hint="optimizers keep state of parameters, and plain values in their groups")
    states: Facts = {}
    for name, parameter in _parameters(executor.modules):
        if parameter not in optimizer.state:
            continue
        states[name] = {}
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                saved.put(f"optimizer/{name}/{key}", value)
                states[name][key] = _TENSOR_HERE if value.device == parameter.device else _TENSOR_ON_HOST
            else:
                states[name][key] = _plain(value, f"its state {key!r} of {name}", optimizer)
    saved.facts["optimizer"] = states
    if executor.updater.stage is not None:
        saved.facts["late"] = executor.updater.late
    saved.facts["groups"] = []
    for group, built in zip_longest(optimizer.param_groups, executor.updater.built, fillvalue=dict[str, Any]()):
        values = {key: _plain(one, f"its group's {key!r}", optimizer) for key, one in group.items() if key != "params"}
        changed = {key: value for key, value in values.items() if repr(group[key]) != built.get(key)}
        saved.facts["groups"].append(changed)


def _plain(value: Any, what: str, optimizer: torch.optim.Optimizer) -> Any:
    """Return a value as JSON holds it.

    Raises:
        RunFailed: JSON cannot.
    """
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        message = f"the optimizer {type(optimizer).__name__} cannot be written to a checkpoint: {what} is {type(value).__name__}"
        raise RunFailed(message, hint="optimizers keep tensors, numbers, texts and lists of them") from None


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


def _runners(executor: StageExecutor) -> Iterator[tuple[str, SegmentRunner]]:
    """Yield the runners that hold something between operations, each by its segment's first node."""
    for segment, runner in executor.runners:
        yield segment.nodes[0], runner


def _kept(runner: SegmentRunner) -> list[tuple[int, EncodedTensors]]:
    """Return what a runner keeps of each micro-batch in flight."""
    match runner:
        case Recompute():
            return [(m, _on_host(kept) if isinstance(kept, HostCopy) else kept) for m, kept in runner.buffer]
        case StashGraph():
            return [(m, graph.inputs) for m, graph in runner.graphs]
        case HeadRunner():
            assert not runner.pending, "a cut falls where the head has nothing in flight"
    return []


def _on_host(kept: HostCopy) -> EncodedTensors:
    kept.copies.synchronize()
    return kept.host


def _restore_input(runner: SegmentRunner, micro_batch: int, kept: EncodedTensors) -> None:
    match runner:
        case Recompute():
            runner.buffer.append((micro_batch, runner.store.keep_encoded(kept)))
        case StashGraph():
            runner.rebuild(micro_batch, tuple(value for value in kept if isinstance(value, Tensor)))


def _version(saved: SavedTensors, prefix: str, device: torch.device) -> Mapping[str, Tensor]:
    """Return the parameters of one node in one version."""
    found: dict[str, Tensor] = {}
    for name in [name for name in saved.tensors if name.startswith(prefix)]:
        tensor = saved.get(name, device)
        assert isinstance(tensor, Tensor)
        found[name.removeprefix(prefix)] = tensor
    return found


def _dense(tensor: Tensor) -> bool:
    """Whether a tensor's elements fill a piece of memory, each once, in some order of dimensions."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True
