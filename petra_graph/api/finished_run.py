"""A run's directory as a value, and what can be done with its network."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from petra_graph.errors import kind_of
from petra_graph.registry.joints import joint

if TYPE_CHECKING:
    import torch

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
        from petra_graph.record.run_files import read_json

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

    def evaluate(self, changes: Changes | None = None, **options: Any) -> Any:
        """Evaluate the network, as `petra_graph.evaluate`."""
        return joint("evaluate", "Run.evaluate")(self, changes, **options)

    def predict(self, samples: Any, **options: Any) -> list[Any]:
        """Ask the network about samples, as `petra_graph.predict`."""
        return list(joint("predict", "Run.predict")(self, samples, **options))

    def sample(self, **options: Any) -> str:
        """Continue a text, as `petra_graph.sample`."""
        return str(joint("sample", "Run.sample")(self, **options))

    def export(self, form: str, file: str | Path | None = None, **options: Any) -> Any:
        """Write the network for other programs, as `petra_graph.export`."""
        return joint("export", "Run.export")(self, form, file, **options)

    def __repr__(self) -> str:
        from petra_graph.report.progress import summary_lines

        summary = self.summary
        return "\n".join(summary_lines(summary)) if summary else f"a run under way in {self.directory}"


def load(run: Run | str | Path, *, weights: str | Mapping[str, torch.Tensor] | None = None) -> Network:
    """Return a run's network as an ordinary `torch.nn.Module`, in evaluation mode on the CPU.

    It maps samples [n, *shape], as the data set has them, to the head's outputs; images in uint8 are normalised inside.

    Args:
        run: or its directory, or "latest".
        weights: those of a checkpoint, named "latest", "best" or by the forward behind it, or of a file; or a table of
            tensors by their names in `weights.safetensors`, also while the run is training; None: those at the run's end.

    Raises:
        SpecError: the run does not exist, or does not have these weights.
        PluginError: a block of the run is not installed.
    """
    return open_run(run).load(weights)[0]


def open_run(run: Run | str | Path) -> SavedRun:
    """Open a run, and warn of what has changed since its training."""
    from petra_graph.inference.saved_run import SavedRun

    opened = SavedRun.open(directory_of(run))
    warn_of_changes(opened.changed)
    return opened


def warn_of_changes(changed: Sequence[str]) -> None:
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
