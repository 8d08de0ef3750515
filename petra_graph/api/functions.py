"""Everything that the command line does, as functions; `import petra_graph` has these names.

Decision: the functions take the way of the command line, from the same modules, so a run through either has the same
bits. They put back what they set in the process: torch's number of threads, and handlers of signals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from petra_graph.api import given
from petra_graph.api.views import PlanView, Run

if TYPE_CHECKING:
    import numpy as np
    import torch

    from petra_graph.inference.evaluate import Evaluation
    from petra_graph.inference.export import Exported, Format
    from petra_graph.inference.network import Network
    from petra_graph.inference.predict import Prediction
    from petra_graph.registry.listener import Listener
    from petra_graph.spec.model import Spec

Changes = Mapping[str, Any]
"""Values of a spec by key: {"run.epochs": 3}. A class may stand for the name of a plugin."""


def load_spec(path: str | Path, changes: Changes | None = None) -> Spec:
    """Return a TOML file's specification, with all that it extends, checked.

    Args:
        path: of the file.
        changes: values to set.

    Raises:
        SpecError: it is wrong; all problems, with file, line and what to do.
        PluginError: only plugins are at fault.
    """
    from petra_graph.planning.check import check_spec
    from petra_graph.spec.overrides import assignments

    return check_spec(given.specification(path), assignments(changes)).spec


def make_spec(nodes: Sequence[Mapping[str, Any]] | None = None, **tables: Any) -> Spec:
    """Return a specification made in code, with the keys and values of a TOML file.

    A class or function may stand for the name of a plugin of any kind. It is found again by its module and its name, so it must
    be at the top level of a module or of a notebook.

    Args:
        nodes: the network, node by node: the tables `[[graph.node]]`. Without them, `architecture` names one.
        tables: all others, as in data={"name": "digits", "batch": 32}, run={"epochs": 3}.

    Raises:
        SpecError: keys or values are wrong; all problems. Plugins are checked when the specification is planned or run.
    """
    from petra_graph.errors import SpecError
    from petra_graph.spec.load import load_values

    if nodes is not None:
        tables = {**tables, "graph": {**tables.get("graph", {}), "node": given.tables(nodes)}}
    loaded = load_values(tables)
    if loaded.spec is None:
        raise SpecError(loaded.problems)
    return loaded.spec


def plan(spec: Spec | str | Path, changes: Changes | None = None, *, overlap: bool = False) -> PlanView:
    """Plan a specification: stages, devices, memory, staleness, traffic and speed, before anything runs.

    Args:
        spec: or the name of its file.
        changes: values to set.
        overlap: devices run forwards and backwards at once.

    Raises:
        SpecError, PluginError: as `load_spec`.
        NoFeasiblePlan: no placement keeps the devices' memory limits; the message names changes that would help.
    """
    from petra_graph.planning.plan import Planner
    from petra_graph.spec.overrides import assignments

    planner = Planner(given.specification(spec), assignments(changes), overlap=overlap)
    return PlanView(planner.plan().document(with_timeline=True))


def train(
    spec: Spec | str | Path | None = None,
    changes: Changes | None = None,
    *,
    resume: Run | str | Path | None = None,
    processes: int = 1,
    listener: Listener | None = None,
) -> Run:
    """Train a specification, as `petra-graph run` does, to the bit.

    An interruption (Ctrl-C, or a notebook's stop button) ends the run between two micro-batches, with a checkpoint: the
    status in its summary is "interrupted", and `resume` goes on with it.

    Args:
        spec: or the name of its file; None with `resume`.
        changes: values to set.
        resume: a run to go on with, or its directory, or "latest".
        processes: how many share the stages; more than one are started anew, and import the specification's classes.
        listener: observes the training, in place of the progress on stderr; of this process alone.

    Raises:
        SpecError, PluginError, NoFeasiblePlan: before anything is written.
        RunFailed: afterwards; the run directory has the details.
    """
    from petra_graph.report.progress import progress
    from petra_graph.spec.overrides import assignments
    from petra_graph.training.checkpoints.resumption import directory_of
    from petra_graph.training.training_run import run

    if (spec is None) == (resume is None):
        raise TypeError("give a specification, or `resume`: a run that goes on has the specification that it had")
    if not isinstance(processes, int) or processes < 1:
        raise TypeError(f"processes are a number from 1 on (got {processes!r})")
    if resume is None:
        chosen, directory = given.specification(spec), None
        overrides = assignments(changes)
    else:
        overrides = assignments(changes)
        directory = directory_of(str(given.directory(resume)), overrides)
        chosen = str(directory / "resolved.toml")
    if processes > 1:
        return Run(_on_processes(chosen, overrides, processes, directory))
    with _threads_as_before():
        result = run(chosen, overrides, listener or progress(), directory)
    assert result.summary is not None, "this process records"
    return Run(result.summary["directory"])


def load(run: Run | str | Path, *, weights: str | Mapping[str, torch.Tensor] | None = None) -> Network:
    """Return a run's network as an ordinary `torch.nn.Module`, in evaluation mode on the CPU.

    It maps samples [n, *shape], as the data set has them, to the head's outputs; images in uint8 are normalised inside.

    Args:
        run: or its directory, or "latest".
        weights: a checkpoint's, "latest", "best" or the forward behind it, or a file's; or themselves, by their names in
            `weights.safetensors`, also while the run goes on; None: those at the run's end.

    Raises:
        SpecError: there is no such run, or it has no such weights.
        PluginError: a block of the run is not here.
    """
    from petra_graph.inference.saved_run import SavedRun

    return SavedRun.open(given.directory(run)).load(weights)[0]


def evaluate(
    run: Run | str | Path,
    changes: Changes | None = None,
    *,
    weights: str | None = None,
    split: Literal["test", "train"] = "test",
    device: str = "cpu",
) -> Evaluation:
    """Evaluate a run's network on its data, or on other data that `changes` name.

    Args:
        run: or its directory, or "latest".
        changes: values to set, as in {"data.options.root": "other/images"}.
        weights: as for `load`.
        split: of the data.
        device: where to compute.

    Raises:
        SpecError: there is no such run, data or device.
        RunFailed: the network cannot be run, or a sample cannot be read.
    """
    from petra_graph.inference.evaluate import evaluate as evaluated
    from petra_graph.inference.saved_run import SavedRun
    from petra_graph.spec.overrides import assignments

    given.choice("split", split, ("test", "train"))
    with _threads_as_before():
        opened = SavedRun.open(given.directory(run), assignments(changes))
        return evaluated(opened, which=weights, split=split, device=device)


def predict(
    run: Run | str | Path,
    samples: str | Path | Sequence[str | Path] | np.ndarray | torch.Tensor,
    *,
    top: int = 3,
    weights: str | None = None,
    device: str = "cpu",
) -> list[Prediction]:
    """Ask a run's network about samples; where each has a class at several positions, a prediction is of one position.

    Args:
        run: or its directory, or "latest".
        samples: a file or several (images, .npy, or what the data set reads), or an array [n, *shape] or [*shape] in the data set's type.
        top: how many classes of each.
        weights: as for `load`.
        device: where to compute.

    Raises:
        SpecError: there is no such run or device, or files or arrays are no samples; all of them.
    """
    from petra_graph.inference.predict import predict as predicted
    from petra_graph.inference.samples import read_samples, samples_of
    from petra_graph.inference.saved_run import SavedRun

    opened = SavedRun.open(given.directory(run))
    if isinstance(samples, str | Path):
        samples = [samples]
    if isinstance(samples, Sequence):
        found = read_samples([str(file) for file in samples], opened.checked.data, opened.facts)
    else:
        found = [samples_of(samples, opened.facts)]
    return predicted(opened, opened.load(weights)[0], found, top=top, device=device)


def export(
    run: Run | str | Path, form: Format, file: str | Path | None = None, *, weights: str | None = None
) -> Exported:
    """Write a run's network for other programs, and compare what was written with the network.

    Args:
        run: or its directory, or "latest".
        form: "safetensors", "torch-export" or "onnx".
        file: to write; None: `network` in the run's directory, with the form's suffix.
        weights: as for `load`.

    Raises:
        SpecError: there is no such run, or a package is not installed.
        RunFailed: the network cannot be written so, or what was written has other outputs.
    """
    from petra_graph.inference.export import SUFFIXES
    from petra_graph.inference.export import export as exported
    from petra_graph.inference.saved_run import SavedRun

    given.choice("form", form, list(SUFFIXES))
    opened = SavedRun.open(given.directory(run))
    target = Path(file) if file is not None else opened.directory / f"network{SUFFIXES[form]}"
    return exported(opened, opened.load(weights)[0], form, target)


def _on_processes(chosen: Spec | str, overrides: Sequence[str], processes: int, directory: Path | None) -> Path:
    import os
    import tempfile

    from petra_graph.errors import FailedOnAnotherProcess, Interrupted, RunFailed, SpecError
    from petra_graph.spec.load import dump
    from petra_graph.training.processes.launched_processes import run_on_processes

    with tempfile.TemporaryDirectory() as folder:
        if not isinstance(chosen, str):
            if '"__main__:' in (text := dump(chosen)):
                raise SpecError(
                    "a class of this notebook or script cannot be found by other processes",
                    "put it into a module, or train in one process",
                )
            path = Path(folder) / f"{chosen.name}.toml"
            path.write_text(text, encoding="utf-8")
            chosen = str(path)
        try:
            found = run_on_processes(chosen, overrides, processes, [], dict(os.environ), resume=directory)
        except Interrupted as request:
            found = request.directory
        except FailedOnAnotherProcess:
            raise RunFailed("the run has failed; one of its processes has said why, above") from None
    if found is None:
        raise RunFailed("the processes have left no run directory")
    return found


@contextmanager
def _threads_as_before() -> Iterator[None]:
    """Let the process have its number of threads again, which the bits of a run depend on."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
