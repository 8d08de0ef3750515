"""The names that `import petra_graph` has of this distribution; the methods of `petra_graph.Run` call the same functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from petra_graph.api.finished_run import (
    Changes,
    Run,
    directory_of,
    open_run,
    threads_as_before,
    warn_of_changes,
)
from petra_graph.errors import SpecError, suggestion
from petra_graph.inference.saved_run import SavedRun
from petra_graph.spec.overrides import assignments
from petra_graph_export.continued_text import continued_text
from petra_graph_export.evaluate_run import Evaluation, evaluate_run
from petra_graph_export.export_network import SUFFIXES, Exported, Format, export_network
from petra_graph_export.predict_samples import Prediction, predict_samples
from petra_graph_export.sample_files import read_samples, samples_from_array
from petra_graph_export.sampling_options import read_sampling_options


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
        run: or its directory, or "latest".
        changes: values to set, as in {"data.options.root": "other/images"}.
        weights: as for `load`.
        split: which split of the data.
        device: where to compute.

    Raises:
        SpecError: the run, its data or the device does not exist.
        RunFailed: the network cannot be run, or a sample cannot be read.
    """
    splits = ("test", "validation", "train")
    if split not in splits:
        raise SpecError(f"split cannot be {split!r}", suggestion(str(split), splits))
    with threads_as_before():
        opened = SavedRun.open(directory_of(run), assignments(changes))
        found = evaluate_run(opened, which=weights, split=split, device=device)
    warn_of_changes(found.changed)
    return found


def predict(
    run: Run | str | Path,
    samples: str | Path | Sequence[str | Path] | np.ndarray | Tensor,
    *,
    top: int = 3,
    weights: str | None = None,
    device: str = "cpu",
) -> list[Prediction]:
    """Ask a run's network about samples; where each has a class at several positions, a prediction is of one position.

    Args:
        run: or its directory, or "latest".
        samples: a file or several (images, .npy, .npz for several inputs, or what the data set reads), or an array [n, *shape] or [*shape] in the data set's type,
            of several inputs a dictionary of them.
        top: the number of classes for each prediction.
        weights: as for `petra_graph.load`.
        device: where to compute.

    Raises:
        SpecError: the run or the device does not exist, or files or arrays are not samples; the error names all of them.
    """
    opened = open_run(run)
    if isinstance(samples, str | Path):
        samples = [samples]
    if isinstance(samples, Sequence):
        found = read_samples([str(file) for file in samples], opened.network.checked.data, opened.facts)
    else:
        found = [samples_from_array(samples, opened.facts)]
    return predict_samples(opened, opened.load(weights)[0], found, top=top, device=device)


def sample(
    run: Run | str | Path,
    *,
    weights: str | Mapping[str, Tensor] | None = None,
    device: str = "cpu",
    **options: object,
) -> str:
    """Continue a text by a network of next tokens; the same options give the same text.

    Args:
        run: trained on a data set of text, or its directory, or "latest".
        weights: as for `petra_graph.load`.
        device: where to compute.
        options: `prompt`, `tokens`, `temperature`, `top_k` and `seed`, as `petra-graph predict --help` explains them.

    Raises:
        SpecError: the run does not exist or was not trained on text, an option is wrong, or some of the prompt has no token.
        RunFailed: the network cannot be run.
    """
    chosen = read_sampling_options(options)
    opened = open_run(run)
    return continued_text(opened, opened.load(weights)[0], chosen, device)


def export(
    run: Run | str | Path, form: Format, file: str | Path | None = None, *, weights: str | None = None
) -> Exported:
    """Write a run's network for other programs, and compare what was written with the network.

    Args:
        run: or its directory, or "latest".
        form: "safetensors", "torch-export" or "onnx".
        file: to write; None: `network` in the run's directory, with the form's suffix.
        weights: as for `petra_graph.load`.

    Raises:
        SpecError: the run does not exist, or a package is not installed.
        RunFailed: the network cannot be written in this form, or what was written has other outputs.
    """
    if form not in SUFFIXES:
        raise SpecError(f"form cannot be {form!r}", suggestion(str(form), list(SUFFIXES)))
    opened = open_run(run)
    target = opened.directory / f"network{SUFFIXES[form]}" if file is None else Path(file)
    return export_network(opened, opened.load(weights)[0], form, target)
