"""A run's directory as a value, and what can be done with its network."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from petra_graph.errors import kind_of
from petra_graph.inference.evaluate import Evaluation, evaluate_run
from petra_graph.inference.export import Exported, Format, export_network
from petra_graph.inference.predict import Prediction, continued_text, predict_samples
from petra_graph.inference.samples import Samples, as_samples, read_samples
from petra_graph.inference.saved_run import SavedRun
from petra_graph.record.recorded_run import find_run, read_run
from petra_graph.record.run_directory import read_json
from petra_graph.report.progress import summary_lines
from petra_graph.spec.in_code import assignments
from petra_graph.training.trained_network import Network

Changes = Mapping[str, Any]
"""Values of a spec by key: {"run.epochs": 3}. A plugin's class may be given instead of its name."""
Overrides = tuple[str, ...]
"""The same as of `--set`: ("run.epochs=3",)."""
Weights = str | Mapping[str, torch.Tensor] | None


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=5)


class Run:
    """A run's directory, whatever became of the run.

    What its methods have in common: `changes` are values of the spec to set, `weights` those of a checkpoint, named "latest", "best" or by the forward behind it, or of a file, or
    tensors by their names in `weights.safetensors`; None: those at the run's end. `changed` takes a network that computes something else than in
    its training, with a warning. `device` is where to compute. Each raises SpecError where the run, its weights or the device does not exist,
    or the network has changed, PluginError where a plugin of the run is not installed, and RunFailed where the network cannot be run.
    """

    def __init__(self, directory: str | Path, tell: Callable[[str], None] = _warn) -> None:
        """Name a run; what its methods find changed since the training is told."""
        self.directory = Path(directory)
        self._tell = tell

    @property
    def summary(self) -> Mapping[str, Any]:
        """How the run ended: its status, its latest means, its throughput; empty while it runs."""
        return read_json(self.directory / "summary.json", dict) or {}

    @property
    def status(self) -> str:
        """How the run ended: "done", "interrupted" or "failed"; "under way" without a summary."""
        return str(self.summary.get("status", "under way"))

    def metrics(self, name: str) -> list[tuple[int, float]]:
        """Return what was recorded of a metric, as "test/loss": its steps, counted in micro-batches, with its values."""
        return [(one.step, one.value) for one in read_run(self.directory).metrics.get(name, ())]

    def load(self, *, weights: Weights = None, changed: bool = False) -> Network:
        """Return the network as an ordinary `torch.nn.Module`, in evaluation mode on the CPU.

        It maps samples [n, *shape], as the data set has them, to the head's outputs; images in uint8 are normalised inside.
        """
        return self._open(changed=changed).load(weights)[0]

    def evaluate(
        self,
        changes: Changes | Overrides | None = None,
        *,
        weights: str | None = None,
        split: Literal["test", "validation", "train"] = "test",
        device: str = "cpu",
    ) -> Evaluation:
        """Evaluate the network on the run's data, or on other data that `changes` name, as in {"data.options.root": "other/images"}.

        Where network or data have changed since the training, that is a warning.
        """
        opened = self._open(changes, changed=True)
        with threads_as_before():
            found = evaluate_run(opened, which=weights, split=split, device=device)
        self._tell_all(found.changed[len(opened.changed) :])
        return found

    def predict(
        self,
        samples: Any,
        changes: Changes | Overrides | None = None,
        *,
        top: int = 3,
        folder: str | Path | None = None,
        weights: str | None = None,
        device: str = "cpu",
        changed: bool = False,
    ) -> list[Prediction]:
        """Ask the network about samples; where each has a class at several positions, a prediction is of one position.

        A map of classes is one prediction, with the shares of its most frequent classes.

        Args:
            samples: a file or several (images, .npy, .npz for several inputs, or what the data set reads), or an array [n, *shape] or
                [*shape] in the data set's type, of several inputs a dictionary of them. All that are no samples are named in the error.
            top: the number of classes for each prediction.
            folder: where predictions are written as images, of a network that gives a class, or one or three values, for each pixel.
            changes, weights, device, changed: as of all methods.
        """
        opened = self._open(changes, changed=changed)
        samples = [samples] if isinstance(samples, str | Path) else samples
        if isinstance(samples, Sequence):
            found = read_samples([str(file) for file in samples], opened.network.checked.data, opened.facts)
        else:
            found = [Samples(name="the array", values=as_samples(samples, "the array", opened.facts))]
        images, (network, _) = None if folder is None else Path(folder), opened.load(weights)
        return predict_samples(opened, network, found, top=top, device=device, folder=images)

    def sample(
        self,
        changes: Changes | Overrides | None = None,
        *,
        weights: Weights = None,
        device: str = "cpu",
        changed: bool = False,
        **options: Any,
    ) -> str:
        """Continue a text by a network of next tokens; the same options give the same text.

        Args:
            changes, weights, device, changed: as of all methods.
            options: `prompt`, `tokens`, `temperature`, `top_k` and `seed`, as `petra-graph predict --help` explains them.
        """
        opened = self._open(changes, changed=changed)
        return continued_text(opened, opened.load(weights)[0], device=device, **options)

    def export(
        self, form: Format, file: str | Path | None = None, *, weights: str | None = None, changed: bool = False
    ) -> Exported:
        """Write the network for other programs, and compare what was written with the network.

        Args:
            form: "safetensors", "torch-export" or "onnx".
            file: to write; None: `network` in the run's directory, with the form's suffix.
            weights, changed: as of all methods.
        """
        opened = self._open(changed=changed)
        return export_network(opened, opened.load(weights)[0], form, None if file is None else Path(file))

    def __repr__(self) -> str:
        summary = self.summary
        return "\n".join(summary_lines(summary)) if summary else f"a run under way in {self.directory}"

    def _open(self, changes: Changes | Overrides | None = None, *, changed: bool) -> SavedRun:
        overrides = changes if isinstance(changes, tuple) else assignments(changes)
        opened = SavedRun.open(self.directory, overrides, changed=changed)
        self._tell_all(opened.changed)
        return opened

    def _tell_all(self, changed: Sequence[str]) -> None:
        for text in changed:
            self._tell(f"changed since the training: {text}")


def open_run(run: Run | str | Path) -> Run:
    """Return a run: by the name that `petra-graph runs` prints, by its directory, or the latest one as "latest".

    Raises:
        SpecError: no run has this name.
        TypeError: the value is neither a run, nor a name or path.
    """
    if isinstance(run, Run):
        return run
    if isinstance(run, str | Path):
        return Run(find_run(str(run)))
    raise TypeError(f'a run, its directory or "latest" is wanted (got {kind_of(run)})')


def load(run: Run | str | Path, *, weights: Weights = None, changed: bool = False) -> Network:
    """Return a run's network as an ordinary `torch.nn.Module`, as `Run.load`."""
    return open_run(run).load(weights=weights, changed=changed)


@contextmanager
def threads_as_before() -> Iterator[None]:
    """Restore the process's number of threads afterwards; the bits of a run depend on it."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
