"""A run's directory as a value, and what can be done with its network."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from petra_graph.errors import kind_of

if TYPE_CHECKING:
    import torch

    from petra_graph.inference.evaluate import Evaluation
    from petra_graph.inference.export import Exported, Format
    from petra_graph.inference.predict import Prediction
    from petra_graph.inference.saved_run import SavedRun
    from petra_graph.inference.trained_network import Network

Changes = Mapping[str, Any]
"""Values of a spec by key: {"run.epochs": 3}. A plugin's class may be given instead of its name."""


class Run:
    """A run's directory, whatever became of the run."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    @property
    def summary(self) -> Mapping[str, Any]:
        """How the run ended: its status, its latest means, its throughput; empty while it runs."""
        from petra_graph.record.run_directory import read_json

        return read_json(self.directory / "summary.json", dict) or {}

    @property
    def status(self) -> str:
        """How the run ended: "done", "interrupted" or "failed"; "under way" without a summary."""
        return str(self.summary.get("status", "under way"))

    @property
    def names(self) -> list[str]:
        """The names of all metrics that were recorded."""
        from petra_graph.record.metrics import read_events

        return sorted({event["name"] for event in read_events(self.directory)})

    def metrics(self, name: str) -> list[tuple[int, float]]:
        """Return what was recorded of a metric, as "test/loss": its steps, counted in micro-batches, with its values."""
        from petra_graph.record.metrics import read_events

        return [(event["step"], event["value"]) for event in read_events(self.directory) if event["name"] == name]

    def load(self, *, weights: str | Mapping[str, torch.Tensor] | None = None) -> Network:
        """Return the network as an ordinary module, as `petra_graph.load`."""
        return load(self, weights=weights)

    def evaluate(self, changes: Changes | None = None, **options: Any) -> Evaluation:
        """Evaluate the network, as `petra_graph.evaluate`."""
        return evaluate(self, changes, **options)

    def predict(self, samples: Any, **options: Any) -> list[Prediction]:
        """Ask the network about samples, as `petra_graph.predict`."""
        return predict(self, samples, **options)

    def sample(self, **options: Any) -> str:
        """Continue a text, as `petra_graph.sample`."""
        return sample(self, **options)

    def export(self, form: Format, file: str | Path | None = None, **options: Any) -> Exported:
        """Write the network for other programs, as `petra_graph.export`."""
        return export(self, form, file, **options)

    def __repr__(self) -> str:
        from petra_graph.report.progress import summary_lines

        summary = self.summary
        return "\n".join(summary_lines(summary)) if summary else f"a run under way in {self.directory}"


def load(run: Run | str | Path, *, weights: str | Mapping[str, torch.Tensor] | None = None) -> Network:
    """Return a run's network as an ordinary `torch.nn.Module`, in evaluation mode on the CPU.

    It maps samples [n, *shape], as the data set has them, to the head's outputs; images in uint8 are normalised inside.

    Args:
        weights: those of a checkpoint, named "latest", "best" or by the forward behind it, or of a file; or a table of
            tensors by their names in `weights.safetensors`, also while the run is training; None: those at the run's end.

    Raises:
        SpecError: the run does not exist, or does not have these weights.
        PluginError: a block of the run is not installed.
    """
    return open_run(run).load(weights)[0]


def evaluate(
    run: Run | str | Path,
    changes: Changes | None = None,
    *,
    weights: str | None = None,
    split: Literal["test", "validation", "train"] = "test",
    device: str = "cpu",
) -> Evaluation:
    """Evaluate a run's network on its data, or on other data that `changes` name.

    Args:
        changes: values to set, as in {"data.options.root": "other/images"}.
        split: which split of the data.
        device: where to compute.

    Raises:
        SpecError: the run, its data or the device does not exist.
        RunFailed: the network cannot be run, or a sample cannot be read.
    """
    from petra_graph.errors import SpecError, suggestion
    from petra_graph.inference.evaluate import evaluate_run
    from petra_graph.inference.saved_run import SavedRun
    from petra_graph.spec.class_names import assignments

    splits = ("test", "validation", "train")
    if split not in splits:
        raise SpecError(f"split cannot be {split!r}", suggestion(str(split), splits))
    with threads_as_before():
        opened = SavedRun.open(directory_of(run), assignments(changes))
        found = evaluate_run(opened, which=weights, split=split, device=device)
    _warn_of_changes(found.changed)
    return found


def predict(
    run: Run | str | Path, samples: Any, *, top: int = 3, weights: str | None = None, device: str = "cpu"
) -> list[Prediction]:
    """Ask a run's network about samples; where each has a class at several positions, a prediction is of one position.

    Args:
        samples: a file or several (images, .npy, .npz for several inputs, or what the data set reads), or an array [n, *shape] or
            [*shape] in the data set's type, of several inputs a dictionary of them.
        top: the number of classes for each prediction.
        weights, device: as for `load`; where to compute.

    Raises:
        SpecError: the run or the device does not exist, or files or arrays are not samples; the error names all of them.
    """
    from petra_graph.inference.predict import predict_samples
    from petra_graph.inference.samples import Samples, as_samples, read_samples

    opened = open_run(run)
    if isinstance(samples, str | Path):
        samples = [samples]
    if isinstance(samples, Sequence):
        found = read_samples([str(file) for file in samples], opened.network.checked.data, opened.facts)
    else:
        found = [Samples(name="the array", values=as_samples(samples, "the array", opened.facts))]
    return predict_samples(opened, opened.load(weights)[0], found, top=top, device=device)


def sample(
    run: Run | str | Path,
    *,
    weights: str | Mapping[str, torch.Tensor] | None = None,
    device: str = "cpu",
    **options: object,
) -> str:
    """Continue a text by a network of next tokens; the same options give the same text.

    Args:
        run: trained on a data set of text, or its directory, or "latest".
        weights, device: as for `load`; where to compute.
        options: `prompt`, `tokens`, `temperature`, `top_k` and `seed`, as `petra-graph predict --help` explains them.

    Raises:
        SpecError: the run does not exist or was not trained on text, an option is wrong, or some of the prompt has no token.
        RunFailed: the network cannot be run.
    """
    from petra_graph.inference.continued_text import continued_text, read_sampling_options

    chosen = read_sampling_options(options)
    opened = open_run(run)
    return continued_text(opened, opened.load(weights)[0], chosen, device)


def export(
    run: Run | str | Path, form: Format, file: str | Path | None = None, *, weights: str | None = None
) -> Exported:
    """Write a run's network for other programs, and compare what was written with the network.

    Args:
        form: "safetensors", "torch-export" or "onnx".
        file: to write; None: `network` in the run's directory, with the form's suffix.

    Raises:
        SpecError: the run does not exist, or a package is not installed.
        RunFailed: the network cannot be written in this form, or what was written has other outputs.
    """
    from petra_graph.errors import SpecError, suggestion
    from petra_graph.inference.export import SUFFIXES, export_network

    if form not in SUFFIXES:
        raise SpecError(f"form cannot be {form!r}", suggestion(str(form), list(SUFFIXES)))
    opened = open_run(run)
    target = opened.directory / f"network{SUFFIXES[form]}" if file is None else Path(file)
    return export_network(opened, opened.load(weights)[0], form, target)


def open_run(run: Run | str | Path) -> SavedRun:
    """Open a run, and warn of what has changed since its training."""
    from petra_graph.inference.saved_run import SavedRun

    opened = SavedRun.open(directory_of(run))
    _warn_of_changes(opened.changed)
    return opened


def _warn_of_changes(changed: Sequence[str]) -> None:
    """Warn of code and data of a run that are not as they were in its training."""
    for text in changed:
        warnings.warn(f"changed since the training: {text}", stacklevel=2)


def directory_of(run: Run | str | Path) -> str | Path:
    """Return a run's directory, or "latest".

    Raises:
        TypeError: the value is not a run.
    """
    if isinstance(run, Run):
        return run.directory
    if isinstance(run, str | Path):
        return run
    raise TypeError(f'a run, its directory or "latest" is wanted (got {kind_of(run)})')


@contextmanager
def threads_as_before() -> Iterator[None]:
    """Restore the process's number of threads afterwards; the bits of a run depend on it."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
