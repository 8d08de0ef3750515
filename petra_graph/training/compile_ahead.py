"""Compiling before the training (`run.compile`): so it counts in no rate, and what cannot be compiled is refused before a run directory is there.

Torch compiles a function when it is called, for the shapes and types that it gets. So a copy of each stage of this process does two
micro-batches with random streams, and the stages that train find the compiled code. Inductor also keeps that on disk, for the next
run and for other processes; what an interruption leaves half written there is not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from attrs import evolve

from petra_graph.errors import Problem
from petra_graph.executor.compiled_functions import DrawsRandomNumbers
from petra_graph.executor.encoded_tensors import EncodedTensors, encode
from petra_graph.executor.stage_executor import BackwardMessage, StageExecutor
from petra_graph.graph.node_graph import INPUT
from petra_graph.kinds.tensor_trees import inputs_of
from petra_graph.planning import cpp_compiler
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.program.channels import Edge
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.scheduler.stage_operations import MicroBatch
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.start_reporter import StartReporter
from petra_graph.units import listed, noun, one_line

_WHOLE = "write it so that torch.compile(fullgraph=True) takes it, or leave out run.compile"
_PATH = ("run", "compile")
_IN_FLIGHT = 2
"""The second backward follows an update, so it uses older parameters where a stage stores them."""


def compile_ahead(prepared: Prepared, programs: Sequence[StageProgram], reporter: StartReporter) -> None:
    """Compile what the stages of this process call in training.

    Args:
        programs: of this process.

    Raises:
        SpecError: what is needed for it is not here, or nodes cannot be compiled: all of them, at `run.compile`.
    """
    from torch._dynamo.exc import TorchDynamoException

    problems = ProblemCollector(loaded=prepared.checked.loaded)
    on_cpu = any(program.device == "cpu" for program in programs)
    if on_cpu and (missing := cpp_compiler.lacking()):
        hint = f"{cpp_compiler.REMEDY}; or leave out run.compile"
        problems.add([Problem(message=f"{missing} is not here", hint=hint, path=_PATH)])
        problems.raise_any()
    # Read here, since a run may not get as far as ending processes that load data.
    first = next(iter(evolve(prepared.opened.epoch(0), loaders=None)), None)
    refused: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    """Nodes that cannot be compiled, by why and what to do."""
    for program in programs:
        with reporter.step(f"compiling stage {program.index} of {len(prepared.programs)}"):
            try:
                _train(prepared, program, first)
            except DrawsRandomNumbers as error:
                refused[error.why, error.remedy].append(error.node)
            except TorchDynamoException as error:
                refused[one_line(str(error).strip().partition("\n\n")[0]), _WHOLE].extend(program.nodes)
    for (fault, hint), nodes in refused.items():
        names = listed(f'"{name}"' for name in nodes)
        message = f"{noun(len(nodes), 'node')} {names} cannot be compiled: {fault}"
        problems.add([Problem(message=message, hint=hint, path=_PATH)])
    problems.raise_any()


def _train(prepared: Prepared, program: StageProgram, first: MicroBatch | None) -> None:
    """Train a copy of a stage for two micro-batches and an update."""
    (executor,) = prepared.executors([program])
    targets = first[1] if first is not None and program.holds_head else None
    sent = []
    for micro_batch in range(in_flight := min(program.depth, _IN_FLIGHT)):
        received = {edge: _received(prepared, executor, edge, first) for edge in program.receives}
        sent.append(executor.forward(micro_batch, received, targets).sent)
    for micro_batch in range(in_flight):
        messages = {
            edge: BackwardMessage(gradients=tensors, activation=tensors, weight=1.0)
            for edge, tensors in sent[micro_batch].items()
        }
        executor.backward(micro_batch, messages)
        executor.update()


def _received(prepared: Prepared, executor: StageExecutor, edge: Edge, first: MicroBatch | None) -> EncodedTensors:
    """Return samples of the data set, or random streams such as another stage sends."""
    numerics = executor.runners[0][1].numerics
    if edge.producer == INPUT:
        assert first is not None
        return tuple(one.to(numerics.device) for one in inputs_of(first[0]))
    batch, streams = prepared.spec.data.batch, prepared.network.shapes[edge.producer]
    drawn = [
        torch.randn(batch, *shape, device=numerics.device)
        if dtype.is_floating_point
        else torch.zeros(batch, *shape, dtype=dtype, device=numerics.device)
        for shape, dtype in zip(streams.outputs, streams.dtypes, strict=True)
    ]
    return encode(numerics.canonicalize(drawn), numerics.precision.channel_dtype)
