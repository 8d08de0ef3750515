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
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

from attrs import frozen
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from petra_graph.errors import FailedOnAnotherProcess, Interrupted, RunFailed, SpecError
from petra_graph.executor.delayed_weights import evaluating
from petra_graph.executor.stage import StageExecutor
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.saved_plan import SavedPlan
from petra_graph.plugins.callback import Listener
from petra_graph.plugins.contract import asks_for_stage
from petra_graph.record import checkpoint
from petra_graph.record.run_directory import Metrics
from petra_graph.record.weights import WEIGHTS
from petra_graph.runtime.store import COMPLETE, HERE, RunStore, launch_name, listen_here, rank_info_from
from petra_graph.runtime.system import LAUNCHER, REQUESTS, keep_freed_memory, numbers_of, stop_requests, until
from petra_graph.spec.load_spec import Given
from petra_graph.training.checkpoint import Checkpoints
from petra_graph.training.evaluation import Meters
from petra_graph.training.prepare import Prepared, fix_arithmetic, prepare
from petra_graph.training.process import OneOfSeveral, RunProcess
from petra_graph.training.resume import Resumption
from petra_graph.training.run_record import Summary, measure_process, peak_bytes
from petra_graph.training.trainer import Trainer, TrainingPosition


@frozen(kw_only=True)
class RunResult:
    """The end of a run, done or interrupted; a failed run raises."""

    summary: Summary | None
    """None where another process records."""
    interrupted: Interrupted | None


def run(
    given: Given,
    overrides: Sequence[str],
    listener: Listener,
    resume: Path | None = None,
    saved: SavedPlan | None = None,
) -> RunResult:
    """Train a specification: all of it, or the stages of one of the processes that torchrun started.

    Args:
        given: the specification.
        overrides: values set on the command line.
        resume: the directory of a run, which is resumed there.
        saved: a plan, whose placement the run takes.

    Raises:
        SpecError, PluginError: before anything is written.
        RunFailed: afterwards; the run directory says why, and the error has its summary.
        FailedOnAnotherProcess: another process raises one of these.
    """
    rank_info = rank_info_from(os.environ)
    process = RunProcess() if rank_info is None else OneOfSeveral(rank_info)
    with process.control():
        resumption = process.resumption(resume, given, overrides)
        folders = None if resumption is None else resumption.manifest.folders
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
        with process.stop_requests(numbers_of(prepared.spec.checkpoint.signal)):
            process.open_directory(prepared, resumption)
            if ended is None:
                result = _train(process, prepared, resumption, listener)
            else:  # nothing is left to train, and nothing is written
                if process.record is not None:
                    listener.started(process.record.run)
                    listener.stopped()
                result = RunResult(summary=ended if process.record else None, interrupted=None)
        process.leave(interrupted=result.interrupted is not None)
    return result


def _train(process: RunProcess, prepared: Prepared, resumption: Resumption | None, listener: Listener) -> RunResult:
    """Train from the beginning or the checkpoint, test, and write weights and summary; all processes take part in each step."""
    record = process.record
    if record is not None:
        record.write_inputs(resumption)
    since = None if resumption is None else int(resumption.manifest.position["metrics_bytes"])
    with Metrics(record.run.directory, since) if record else nullcontext() as metrics:
        # The stages of this process, as they are where the training begins.
        bytes_before = peak_bytes()
        scheduler = process.build(prepared)
        if prepared.callbacks:
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
            record.write_weights(files)
        checkpoints.end(halted=interrupted is not None)
        if interrupted is None and prepared.spec.data.validation is not None:
            interrupted = trainer.test()
            if interrupted is not None:
                checkpoints.end(halted=True)  # a resumed run makes the test
    of_all = process.gather_measured(measure_process(trainer, bytes_before))
    status = "interrupted" if interrupted else "done"
    summary = None if record is None else record.summarise(status, trainer.summary(), of_all)
    return RunResult(summary=summary, interrupted=interrupted)


def _gather_files(process: RunProcess, trainer: Trainer) -> Mapping[str, Mapping[str, Tensor]]:
    """Return the weights that are evaluated, and those that callbacks make of them and of what their companions kept, by file."""
    with evaluating(trainer.executors):
        files = {WEIGHTS: process.gather("weights", trainer.weights())}
    if trainer.prepared.callbacks:
        companions = [pair for executor in trainer.executors for pair in executor.companions.items()]
        own = {f"{name}/{key}": one for name, each in companions for key, one in each.state().items()}
        kept = process.gather("callbacks", {name: one.detach().cpu().contiguous() for name, one in own.items()})
        for one in trainer.led:
            prefix = f"{one.name}/"
            of_callback = {name.removeprefix(prefix): kept[name] for name in kept if name.startswith(prefix)}
            files = {**one.call("ended", files[WEIGHTS], of_callback), **files}
    return files


def _attach_companions(prepared: Prepared, executors: Sequence[StageExecutor]) -> None:
    """Give the stages the companions of callbacks, which know parameters by their names in the file of weights; a shared one has several."""
    for executor in executors:
        parameters = {
            f"{node}/{name}": one
            for node, module in executor.modules.items()
            for name, one in module.named_parameters(remove_duplicate=False)
        }
        for one in prepared.callbacks:
            facts = [prepared.stages[executor.program.index - 1]] if asks_for_stage(one.callback.at_stage) else []
            if (companion := one.call("at_stage", parameters, *facts)) is not None:
                executor.companions[one.name] = companion


# --- on several processes of this machine: the specification is checked here, the processes do the rest
#
# Decision: only the check step runs before processes start. They prepare as every run does, and one of them reports the
# problems; preparing here first would make every correct run wait for it twice.
#
# Decision: torch's elastic launcher starts them, in this process. It makes the store for the rendezvous, on a port that the system chooses,
# so no port can be in use. The store and gloo listen for processes of this machine alone.
#
# A request to stop goes through the store, and the processes end by themselves: a forwarded signal would reach each of
# them at another moment, and the launcher would kill those that are not done in time. So the launcher runs in a thread,
# where torch installs no signal handlers, whatever its version: this process keeps its own.

_HEARD_SECONDS = 5.0
"""The longest that a user who insists waits for processes that do not hear."""


def run_on_processes(
    path: str,
    overrides: Sequence[str],
    processes: int,
    flags: Sequence[str] = (),
    *,
    resume: Path | None = None,
    max_restarts: int = 0,
    plan: str | None = None,
) -> None:
    """Train a specification; the processes print and write everything.

    Args are those of `run`, and:
        processes: how many, at least 2.
        flags: of the command line, to be passed on.
        max_restarts: how often the processes are started again, from the latest checkpoint, where the run has failed.

    Raises:
        SpecError, PluginError: before anything is started.
        Interrupted: a request to stop has arrived.
        FailedOnAnotherProcess: the run failed, and one of its processes has reported it.
        RunFailed: the run failed, and none of its processes could report it.
    """
    if rank_info_from(os.environ) is not None:
        message = "--processes starts processes, and this is already one of several"
        raise SpecError(message, hint="leave --processes out under torchrun")
    if path == "-":
        raise SpecError("a spec from the standard input cannot be read by several processes", hint="write it to a file")
    folders: Sequence[str] = ()
    if resume is not None:  # of its latest checkpoint that can be read; the processes compare its digests
        for at in reversed(checkpoint.numbers(resume)):
            with suppress(checkpoint.Damaged):
                folders = checkpoint.read_manifest(resume, at).folders
    spec = check_spec(path, overrides, folders=folders).spec
    options = [part for override in overrides for part in ("--set", override)]
    options += [] if plan is None else ["--plan", plan]
    words = ["run", path if resume is None else f"--resume={resume}", *options, *flags]

    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

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

    # A request goes through the store; the launcher ends at a second SIGINT, and the processes follow.
    heard = (*REQUESTS, *numbers_of(spec.checkpoint.signal))
    with ExitStack() as held:
        held.enter_context(stop_requests(lambda signal_name: store.set("asked", signal_name), insist, heard=heard))
        # The launcher is named to the processes, and to none that this one starts later. Its own log is silent: the processes report failures.
        os.environ[LAUNCHER] = str(os.getpid())
        held.callback(os.environ.pop, LAUNCHER, None)
        held.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        thread = held.enter_context(ThreadPoolExecutor(1))
        try:
            # -P: a `random.py` in the current folder must not be taken for the standard library's.
            thread.submit(elastic_launch(config, sys.executable), "-P", "-m", "petra_graph", *words).result()
        except ChildFailedError as error:
            code = store.get(COMPLETE)  # whatever ended a process after that
            codes = {rank: failure.exitcode for rank, failure in sorted(error.failures.items())}
            if code is None and not (agreed := {one for one in codes.values() if one > 0}):
                killed = ", ".join(f"rank {rank} by {signal.Signals(-one).name}" for rank, one in codes.items())
                message = f"the processes were killed: {killed}"
                raise RunFailed(message, "see whether the system ran out of memory") from None
            if code is None:  # that of a failure, if there is one among them
                code = min(agreed - {Interrupted.exit_code}, default=Interrupted.exit_code)
            if code:
                raise (Interrupted() if code == Interrupted.exit_code else FailedOnAnotherProcess(code)) from None
