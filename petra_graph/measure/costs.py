"""The cost table of a network: the operations of every node's runners and of its optimizer, run once under a meter, without memory.

    compute             device
    float32, float64    the meta device
    bfloat16, attention fake tensors of the CPU, for which autocast works and kernels are chosen as on the CPU
    a block or loss     the CPU, with values
    that needs values

Decision: the executor's own runners and optimizer run, on tensors without values. So the planner's numbers follow the executor, and no
second description of its operations has to be kept.

Decision: parameters have no memory, and those of one node share an optimizer, which goes tensor by tensor; on a GPU torch's own take all tensors of a
kind together, and hold another copy meanwhile. One that knows the delay of its stage is measured in one with a delay of 3 updates, since stages
are not known yet: its first step, which no stage makes late, and a late one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from attrs import evolve, fields, frozen
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from petra_graph.blocks import Block, Head, Reversible, Streams
from petra_graph.blocks.block_kinds import ParameterGroups, parameter_groups
from petra_graph.errors import PluginError, at_path
from petra_graph.executor.head import HeadRunner
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.executor.runners import Recompute, Reconstruct, SegmentRunner, StashGraph
from petra_graph.executor.update import Updater
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.measure.nodes import build_block, each_node, refusing
from petra_graph.measure.tally import NotOnMeta, Tally, distinct_bytes, storages, tensors
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.contract import Plugin
from petra_graph.plugins.data_set import DataFacts, zero_targets
from petra_graph.plugins.loss_and_metric import Loss
from petra_graph.plugins.optimizer import EARLIER, PREDICTED, rate_ratios
from petra_graph.plugins.stage_facts import DELAYED
from petra_graph.plugins.tensor_trees import leaves
from petra_graph.program.node_costs import CostTable, NodeCost, Operation, SharedCost, Work
from petra_graph.spec.model import ClipSpec, PrecisionSpec

T = TypeVar("T", bound=SegmentRunner)
_NORM_BYTES = 16
"""For each value of the gradient whose norm is taken: a float64 of it and one of its square."""


@frozen(kw_only=True)
class Conditions:
    """The conditions on which costs depend, beside the network; `batch` is the samples of a micro-batch."""

    batch: int
    facts: DataFacts
    precision: PrecisionSpec
    loss: Loss
    optimizer: Plugin
    clip: ClipSpec | None = None


@uncompiled()
def measure_costs(graph: NodeGraph, conditions: Conditions) -> CostTable:
    """Run the operations of all nodes; errors as `build_block`, and SpecError where a block can be run neither without values nor on the CPU."""
    meta, facts = torch.device("meta"), conditions.facts
    samples = tuple(
        torch.empty(conditions.batch, *shape, dtype=getattr(torch, dtype), device=meta)
        for shape, dtype in facts.inputs.values()
    )
    return CostTable(
        micro_batch=conditions.batch,
        sample_bytes=tuple(one.nbytes for one in samples),
        target_bytes=sum(one.nbytes for one in leaves(zero_targets(facts, conditions.batch, meta))),
        nodes=dict(each_node(graph, samples, partial(_measure, conditions))),
    )


def _measure(conditions: Conditions, node: Node, inputs: Streams) -> tuple[NodeCost, Streams]:
    """Return the cost of a node, and its outputs."""
    try:
        try:
            ran = _run(node, inputs, conditions, "fake" if conditions.precision.compute == "bfloat16" else "meta")
        except NotOnMeta:
            ran = _run(node, inputs, conditions, "fake")
    except Exception:  # noqa: BLE001  whatever stops a block without memory, the CPU decides
        shapes = [tuple(stream.shape[1:]) for stream in inputs]
        with refusing(node, shapes, "cannot be trained"), torch.random.fork_rng(devices=[]):
            ran = _run(node, inputs, conditions, "cpu")
    module, outputs, work = ran
    with at_path("optimizer", "name"):
        state_bytes, of_optimizer = measure_update(module, conditions)
    parameters, buffers = dict(module.named_parameters()), list(module.buffers())
    gradient_bytes = {name: one.nbytes * one.requires_grad for name, one in parameters.items()}
    cost = NodeCost(
        kind=node.kind,
        parameters=sum(one.numel() for one in parameters.values()),
        parameter_tensors=len(parameters),
        parameter_bytes=distinct_bytes(parameters.values()),
        gradient_bytes=sum(gradient_bytes.values()),
        statistics=sum(buffer.numel() for buffer in buffers if buffer.is_floating_point()),
        statistics_bytes=distinct_bytes(buffers),
        optimizer_bytes=state_bytes,
        input_values=tuple(stream.numel() for stream in inputs),
        input_bytes=tuple(stream.nbytes for stream in inputs),
        output_bytes=tuple(stream.nbytes for stream in outputs),
        work={**work, **of_optimizer},
        shared={
            label: SharedCost(values=one.numel(), parameter_bytes=one.nbytes, gradient_bytes=gradient_bytes[key])
            for key, label in module.shared_parameters.items()
            if (one := parameters.get(key)) is not None
        },
    )
    return cost, outputs


# --- on what a node runs ---


def _run(
    node: Node, inputs: Streams, conditions: Conditions, device: Literal["meta", "fake", "cpu"]
) -> tuple[Block, Streams, Mapping[Operation, Work]]:
    """Return the module, its outputs, and the work of its operations."""

    def numerics(device: str) -> NumericsContext:
        return NumericsContext(
            device=torch.device(device), precision=conditions.precision, seed=0, facts=conditions.facts
        )

    built_on, runs_on = numerics("cpu" if device == "cpu" else "meta"), numerics("meta" if device == "meta" else "cpu")
    with torch.device(built_on.device):
        module = place(build_block(node, [tuple(stream.shape[1:]) for stream in inputs]), built_on)
    with FakeTensorMode() if device == "fake" else nullcontext():
        made = []
        for stream in inputs:  # In the memory format between nodes; most loaders have samples contiguous.
            layout = torch.contiguous_format if INPUT in node.inputs else runs_on.memory_format(stream.dim())
            zeros = torch.zeros(stream.shape, dtype=stream.dtype, device=runs_on.device)
            made.append(zeros.contiguous(memory_format=layout))
        if device == "fake":
            module = _without_values(module)
            if (mean := conditions.facts.mean) is not None:  # of given values, fake tensors import torch's compiler
                vars(runs_on)["mean_and_std"] = [torch.empty(len(mean), dtype=runs_on.dtype) for _ in range(2)]
        returned, work = _measure_operations(node, module, tuple(made), runs_on, conditions)
    outputs = (torch.empty(one.shape, dtype=one.dtype, device="meta") for one in returned)
    return module, tuple(outputs), work


def _without_values(module: Block) -> Block:
    """Move a module from the meta device to the CPU of the active fake tensor mode; tensors that are not buffers stay."""
    made: dict[int, Tensor] = {}
    for part in module.modules():
        for held in (part._parameters, part._buffers):  # noqa: SLF001  torch converts modules so
            for name, tensor in held.items():
                if tensor is not None and id(tensor) not in made:
                    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
                held[name] = None if tensor is None else made[id(tensor)]  # type: ignore[assignment]
    return module


# --- the operations of a node ---


def _measure_operations(
    node: Node, module: Block, inputs: Streams, numerics: NumericsContext, conditions: Conditions
) -> tuple[Streams, Mapping[Operation, Work]]:
    """Return a node's outputs, and the work of all operations that a node of its class may meet in training."""

    def runner(of: type[T], **more: Any) -> T:
        return of({node.name: module}, numerics, reads_samples=INPUT in node.inputs, **more)

    if isinstance(module, Head):
        head = runner(HeadRunner, loss=conditions.loss)
        target = zero_targets(conditions.facts, conditions.batch, numerics.device)

        def forward_backward() -> Streams:
            head.forward(0, inputs, target)
            return head.pending.take(0).gradients

        return (), {"forward_backward": _differentiated(module, forward_backward, inputs)}

    reconstruct, recompute, stash = runner(Reconstruct), runner(Recompute), runner(StashGraph)
    work: dict[Operation, Work] = {}
    outputs, work["forward"] = _measured(lambda: reconstruct.run_without_graph(0, inputs), inputs)
    # The gradient and the activation of a message have memory of their own: they are not the tensors that were sent.
    gradients = tuple(map(torch.zeros_like, outputs))

    def recomputed() -> Streams:
        recompute.buffer.append((0, inputs))
        return recompute.backward(0, None, gradients).gradients

    work["recompute"] = _differentiated(module, recomputed, (*gradients, *inputs))
    _, work["record"] = _measured(lambda: stash.forward(0, inputs), inputs, keeps=True)
    stash.graphs.clear()
    work["replay"] = _differentiated(
        module,
        lambda: stash.backward(0, None, gradients).gradients,
        (*gradients, *inputs),
        before=lambda: stash.forward(0, inputs),
    )
    # Of a node that is not reversible, nobody has seen that its block's inverse returns the inputs.
    if isinstance(module, Reversible) and (node.kind == "reversible" or len(outputs) == len(inputs)):
        returned = tuple(map(torch.zeros_like, outputs))

        def reversed_() -> Streams:
            found = reconstruct.backward(0, returned, gradients)
            return (*found.inputs, *found.gradients)

        _, work["invert"] = _measured(lambda: reconstruct.invert(0, returned), returned)
        work["reverse"] = _differentiated(module, reversed_, (*returned, *gradients))
    return outputs, work


def _measured(run: Callable[[], Streams], arguments: Streams, *, keeps: bool = False) -> tuple[Streams, Work]:
    """Run an operation that makes no gradients; with `keeps`, what it leaves beyond its results counts as kept."""
    with Tally() as tally:
        results = run()
        work = tally.lap()
    shares = _shares(results, arguments)
    own = distinct_bytes(one for one, share in zip(results, shares, strict=True) if share is None)
    return results, evolve(work, kept_bytes=work.kept_bytes - own if keeps else 0, shares=shares)


def _differentiated(
    module: nn.Module, run: Callable[[], Streams], arguments: Streams, before: Callable[[], object] = lambda: None
) -> Work:
    """Run twice: the first run allocates parameter gradients, the second one adds to them; `before` each, what does not count."""
    module.zero_grad(set_to_none=True)
    laps: list[Work] = []
    with Tally() as tally:
        for _ in range(2):
            before()
            tally.lap()
            results = run()
            laps.append(tally.lap())
            shares = _shares(results, arguments)
            del results
    module.zero_grad(set_to_none=True)
    allocating, adding = laps
    return evolve(allocating, accumulating_bytes=adding.working_bytes, kept_bytes=0, shares=shares)


def _shares(results: Streams, arguments: Streams) -> tuple[int | None, ...]:
    """Return the place, among arguments and results, of the first tensor in whose memory each result lies; else None."""
    place = {id(storage): index for index, storage in enumerate(storages(arguments))}
    first: dict[object, int] = {}
    shares = []
    for index, (result, storage) in enumerate(zip(results, storages(results), strict=True), len(arguments)):
        # Parts of one storage are tensors of their own, which take its bytes together.
        same = first.setdefault((id(storage), result.storage_offset(), result.shape), index)
        shares.append(place.get(id(storage), same if same < index else None))
    return tuple(shares)


# --- the optimizer ---


def measure_update(module: Block, conditions: Conditions) -> tuple[int, Mapping[Operation, Work]]:
    """Return the bytes of state that an optimizer's first step over a module's parameters makes, and the work of its operations.

    Those are "first_update", "update", which is the second step, and "predict" and "estimate" if it has a method for them.
    PluginError: the optimizer fails on the CPU as well.
    """
    groups = parameter_groups([module])
    parameters = (*groups.decayed, *groups.undecayed)
    if not parameters:
        return 0, dict.fromkeys(("first_update", "update"), Work())
    try:
        state_bytes, work = _stepped(groups, "meta", conditions)
    except (RuntimeError, NotImplementedError, PluginError):  # it reads values
        state_bytes, work = _stepped(groups, "cpu", conditions)
    if conditions.clip is not None and conditions.clip.by != "value":
        of_norm = _NORM_BYTES * max(parameter.numel() for parameter in parameters)
        for step in ("first_update", "update"):
            working = max(work[step].working_bytes, of_norm)
            work[step] = evolve(work[step], working_bytes=working, accumulating_bytes=working)
    return state_bytes, work


def _stepped(given: ParameterGroups, device: str, conditions: Conditions) -> tuple[int, dict[Operation, Work]]:
    """Measure the steps on a device, over parameters without the values of those that are given."""
    copies = {
        id(one): nn.Parameter(torch.zeros(one.shape, dtype=one.dtype, device=device), requires_grad=one.requires_grad)
        for one in (*given.decayed, *given.undecayed)
    }
    # Optimizers may tell more kinds of parameters apart.
    kinds = {field.name: getattr(given, field.name) for field in fields(ParameterGroups)}
    groups = ParameterGroups(**{name: [copies[id(one)] for one in own] for name, own in kinds.items()})
    plugin, lr = conditions.optimizer, conditions.optimizer.options.lr
    optimizer = plugin.build(groups, stage=DELAYED)
    updater = Updater(
        [*copies.values()],
        optimizer,
        lambda _: lr,
        None,
        owner=plugin.owned,
        ratios=rate_ratios(optimizer, lr),
        stage=DELAYED,
    )

    def metered(run: Callable[[], object], failed: str) -> Work:
        """Run it; what its answer takes counts as kept."""
        with Tally() as tally, author_code(f"{plugin.owned} {failed}"):
            answer = run()
            found: Work = tally.lap()
            del answer
        return found

    def step(micro_batch: int) -> Work:
        """Step with the gradients of a micro-batch of the run, the first of which are not late."""
        for parameter in updater.parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        updater.accumulated(micro_batch)
        return evolve(metered(updater.step, "cannot be measured"), kept_bytes=0)

    work: dict[Operation, Work] = {"first_update": step(0)}
    state_bytes = distinct_bytes(tensors(list(optimizer.state.values())))
    asked: Mapping[Operation, str] = {"predict": PREDICTED, "estimate": EARLIER}
    for operation, method in asked.items():
        if hasattr(optimizer, method):
            work[operation] = metered(torch.no_grad()(partial(getattr(optimizer, method), 1)), f"failed at {method}(1)")
    work["update"] = step(DELAYED.depth)
    return state_bytes, work
