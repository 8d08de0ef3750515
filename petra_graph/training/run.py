"""A run from its specification to its directory: one path, in one process as in one of several.

given --prepare--> Prepared --build--> Trainer --train--> position --record--> run directory
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

from attrs import frozen
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore

from petra_graph.errors import FailedOnAnotherProcess, Interrupted, RunFailed, SpecError
from petra_graph.executor.delayed_weights import evaluating
from petra_graph.executor.stage import StageExecutor
from petra_graph.planning.place_network import SavedPlan
from petra_graph.plugins.callback import Listener
from petra_graph.plugins.contract import asks_for_stage
from petra_graph.record.run_directory import Metrics, read_json, sha256_of
from petra_graph.record.weights import WEIGHTS, save_weights
from petra_graph.runtime.store import FINAL, HERE, RunStore, launch_name, listen_here, rank_info_from
from petra_graph.runtime.system import LAUNCHER, keep_freed_memory, stop_requests, until
from petra_graph.spec.load_spec import Given
from petra_graph.training.checkpoint import Checkpoints, Resumption
from petra_graph.training.evaluation import Meters
from petra_graph.training.prepare import Prepared, fix_arithmetic, prepare
from petra_graph.training.process import OneOfSeveral, RunProcess
from petra_graph.training.run_record import Summary, measure_process, peak_bytes
from petra_graph.training.trainer import Trainer, TrainingPosition


@frozen(kw_only=True)
class RunResult:
    """The end of a run, done or interrupted; a failed run raises."""

    summary: Summary | None  # None where another process records
    interrupted: Interrupted | None


def run(
    given: Given,
    overrides: Sequence[str],
    listener: Listener,
    resume: Path | None = None,
    saved: SavedPlan | None = None,
) -> RunResult:
    """Train a specification, or go on with a run: all of it, or the stages of one of the processes that torchrun started."""
    rank_info = rank_info_from(os.environ)
    process = RunProcess() if rank_info is None else OneOfSeveral(rank_info)
    with process.control():
        resumption = process.resumption(resume)
        folders = None if resumption is None else read_json(resumption.directory / "env.json").get("folders", ())
        # There are no stages yet that could stop between two micro-batches: a request to stop ends all processes.
        process.supervisor.starting = True
        process.prepared = prepared = prepare(given, overrides, process.size, folders, saved=saved, rank=process.rank)
        _ = prepared.fingerprint  # computed here, as it may take a while
        process.supervisor.starting = False
        process.join(prepared)
        ended = None if resumption is None else resumption.accept(prepared)
        # Before anything is allocated: threads and kernels decide the last bits.
        fix_arithmetic(prepared)
        keep_freed_memory()
        process.open_directory(prepared, resumption)
        if ended is None:
            result = _train(process, prepared, resumption, listener)
        else:
            result = RunResult(summary=ended if process.record else None, interrupted=None)
            if process.record:
                sys.stderr.write("nothing is left to train: raise run.epochs, or change what stopped the run early\n")
        process.leave(interrupted=result.interrupted is not None)
    return result


def _train(process: RunProcess, prepared: Prepared, resumption: Resumption | None, listener: Listener) -> RunResult:
    """Train from the beginning or the checkpoint, test, and write weights and summary; all processes take part in each step."""
    record = process.record
    if record is not None:
        record.write_inputs(resumption)
    since = None if resumption is None else int(resumption.manifest.position["metrics_bytes"])
    with Metrics(record.run.directory, since) if record else nullcontext() as metrics:
        bytes_before = peak_bytes()
        scheduler = process.build(prepared)
        _attach_companions(prepared, scheduler.executors)
        position, meters = TrainingPosition(micro_batches_per_epoch=prepared.opened.length), Meters()
        if resumption is not None:
            position, meters = resumption.restore(prepared, scheduler)
        elif prepared.initial is not None:
            prepared.initial.load(pair for executor in scheduler.executors for pair in executor.modules.items())
        process.trainer = trainer = Trainer(
            prepared=prepared,
            scheduler=scheduler,
            metrics=metrics,
            listener=listener if record else Listener(),
            process=process,
            position=position,
            meters=meters,
        )
        checkpoints = Checkpoints(process, trainer, resumption)
        if record is not None:
            trainer.begin(record.run)

        interrupted = trainer.run()

        # Before the test, which may take the weights of another epoch, or be interrupted.
        files = _gather_files(process, trainer)
        if record is not None:
            for name, weights in files.items():
                save_weights(record.run.directory / name, weights)
                record.digests[name] = sha256_of(record.run.directory / name)
        checkpoints.end(halted=interrupted is not None)
        if interrupted is None and prepared.spec.data.validation is not None:
            interrupted = trainer.test()
            if interrupted is not None:
                checkpoints.end(halted=True)  # a resumed run makes the test
    of_all = process.collect("measured", measure_process(trainer, bytes_before))
    status = "interrupted" if interrupted else "done"
    summary = None if record is None else record.summarise(status, trainer.summary(), of_all)
    return RunResult(summary=summary, interrupted=interrupted)


def _gather_files(process: RunProcess, trainer: Trainer) -> Mapping[str, Mapping[str, Tensor]]:
    """Return the weights that are evaluated, and those that callbacks make of them and of what their companions kept, by file."""
    with evaluating(trainer.executors):
        files = {WEIGHTS: process.gather("weights", trainer.weights())}
    if trainer.prepared.callbacks:
        companions = [pair for executor in trainer.executors for pair in executor.companions.items()]
        states = ((f"{name}/{key}", one) for name, each in companions for key, one in each.state().items())
        kept = process.gather("callbacks", {name: one.detach().cpu().contiguous() for name, one in states})
        for one in trainer.led:
            own = [name for name in kept if name.startswith(f"{one.name}/")]
            of_callback = {name.removeprefix(f"{one.name}/"): kept[name] for name in own}
            files = {**one.call("ended", files[WEIGHTS], of_callback), **files}
    return files


def _attach_companions(prepared: Prepared, executors: Sequence[StageExecutor]) -> None:
    """Give the stages the companions of callbacks, which know parameters by their names in the file of weights; a shared one has several."""
    stages = prepared.stages
    for executor in executors:
        parameters, stage = dict[str, nn.Parameter](), stages[executor.program.index - 1]
        for node, module in executor.modules.items():
            parameters |= {f"{node}/{name}": one for name, one in module.named_parameters(remove_duplicate=False)}
        for one in prepared.callbacks:
            facts = [stage] if asks_for_stage(one.callback.at_stage) else []
            if (companion := one.call("at_stage", parameters, *facts)) is not None:
                executor.companions[one.name] = companion


# Torch's elastic launcher starts them in a thread of this process, where it installs no signal handlers: a request to stop goes through
# the store, and the processes end by themselves. A forwarded signal would reach each of them at another moment, and the launcher would
# kill those that are not done in time. They also check the specification, and one of them reports its problems.

_HEARD_SECONDS = 5.0  # the longest that a user who insists waits for processes that do not hear


def run_on_processes(words: Sequence[str], processes: int, max_restarts: int) -> None:
    """Run `petra-graph run WORDS` in processes, which print and write everything, and start again from the latest checkpoint where the run has failed."""
    if rank_info_from(os.environ) is not None:
        message = "--processes starts processes, and this is already one of several"
        raise SpecError(message, hint="leave --processes out under torchrun")
    if "-" in words:
        raise SpecError("a spec from the standard input cannot be read by several processes", hint="write it to a file")

    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The system chooses the port, and store and gloo listen for processes of this machine alone.
    listening, name = listen_here(0), uuid4().hex
    port = listening.getsockname()[1]
    server = TCPStore(
        HERE[0], port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listening.detach()
    )
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=name,
        rdzv_backend="static",
        rdzv_endpoint=f"{HERE[0]}:{port}",
        rdzv_configs={"rank": 0},
        max_restarts=max_restarts,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    store = RunStore(server, launch_name(name))

    def insist() -> NoReturn:
        """End, once the processes know that they were asked to stop: else the end of their store would be a failure to them."""
        until(lambda: all(store.get(f"heard/{rank}") for rank in range(processes)), _HEARD_SECONDS)
        os._exit(Interrupted.exit_code)

    with ExitStack() as held:
        held.enter_context(stop_requests(lambda signal_name: store.set("asked", signal_name), insist))
        # The launcher is named to the processes, and to none that this one starts later. Its own log is silent: the processes report failures.
        os.environ[LAUNCHER] = str(os.getpid())
        held.callback(os.environ.pop, LAUNCHER, None)
        held.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        thread = held.enter_context(ThreadPoolExecutor(1))
        try:
            # -P: a `random.py` in the current folder must not be taken for the standard library's.
            thread.submit(elastic_launch(config, sys.executable), "-P", "-m", "petra_graph", "run", *words).result()
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in sorted(error.failures.items())}
            code = store.get(FINAL)  # whatever ended a process after that
            if code is None and not (reported := {one for one in codes.values() if one > 0}):
                killed = ", ".join(f"rank {rank} by {signal.Signals(-one).name}" for rank, one in codes.items())
                message = f"the processes were killed: {killed}"
                raise RunFailed(message, "see whether the system ran out of memory") from None
            if code is None:  # that of a failure, if there is one among them
                code = min(reported - {Interrupted.exit_code}, default=Interrupted.exit_code)
            if code:
                raise (Interrupted() if code == Interrupted.exit_code else FailedOnAnotherProcess(code)) from None
