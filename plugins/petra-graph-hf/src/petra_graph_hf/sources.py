"""Data sets of the library `datasets`: from a folder, from files, or by a name on the Hugging Face Hub, with a training and a test split.

    path    a folder that `save_to_disk` has written; a file, or a folder of files: .parquet, .json, .jsonl, .csv, .tsv
    hub     what load_dataset calls it; the library keeps what it has fetched, and reads that where there is no network

Nothing that a data set holds is run: from version 4 on the library loads no code. It is imported where a data set is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict, frozen

from petra_graph.errors import Problem, SpecError, suggestion
from petra_graph_hf.declared import SourceOptions

_BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv"}
_SAVED = ("state.json", "dataset_dict.json")
_PERMUTATION = 2406
"""Of the rows that are kept for the test; the run's seed does not change the choice."""


@frozen(kw_only=True)
class Rows:
    """The rows of each split, as data sets of the library."""

    train: Any
    test: Any
    validation: Any = None

    def each(self) -> Iterator[tuple[str, Any]]:
        """Yield the splits that there are, by name."""
        yield from ((name, rows) for name, rows in asdict(self, recurse=False).items() if rows is not None)


def open_source(options: SourceOptions) -> Rows:
    """Return the rows of the splits.

    Raises:
        SpecError: the library is not installed; there are no such files, name, splits or columns; or they cannot be read.
    """
    splits = _load(options)
    train = _split(splits, "train", options.train)
    validation = None if options.validation is None else _split(splits, "validation", options.validation)
    if options.test_share is None:
        return Rows(train=train, test=_split(splits, "test", options.test), validation=validation)
    order = np.random.default_rng(_PERMUTATION).permutation(len(train))
    kept = max(1, round(options.test_share * len(train)))
    if kept >= len(train):
        raise _error("test_share", f"a share of {options.test_share} leaves none of {len(train)} rows to train with")
    test = train.select(np.sort(order[:kept]))
    return Rows(train=train.select(np.sort(order[kept:])), test=test, validation=validation)


def column_of(rows: Any, key: str, name: str) -> Any:
    """Return a column; `key` is the option that names it.

    Raises:
        SpecError: there is no such column.
    """
    if name not in rows.column_names:
        raise _error(key, f"the data set has no column {name!r}", suggestion(name, rows.column_names))
    return rows[name]


def _load(options: SourceOptions) -> Mapping[str, Any]:
    try:
        import datasets
    except ImportError as error:
        key = "hub" if options.path is None else "path"
        message = f"data sets of the library `datasets` need it, and it cannot be imported: {error}"
        raise _error(key, message, "pip install 'petra-graph-hf[datasets]'") from None
    with _quiet(datasets, progress=options.path is None):
        if options.path is not None:
            found = _of_path(datasets, Path(options.path).expanduser())
        else:
            found = _of_hub(datasets, options)
    return found if isinstance(found, datasets.DatasetDict) else {options.train: found}


def _of_path(datasets: Any, path: Path) -> Any:
    if not path.exists():
        hint = "give a folder of save_to_disk, a file, or a folder of files; a name on the Hugging Face Hub is the option hub"
        raise _error("path", f"there is no file or folder {path}", hint)
    if path.is_file() and path.suffix.lower() not in _BUILDERS:
        raise _error(
            "path", f"{path} must end in one of {', '.join(_BUILDERS)}", 'a text is read by the data set "text-tokens"'
        )
    try:
        if any((path / name).is_file() for name in _SAVED):
            return datasets.load_from_disk(str(path))
        if path.is_dir():
            return datasets.load_dataset(str(path))
        more = {"sep": "\t"} if path.suffix.lower() == ".tsv" else {}
        return datasets.load_dataset(_BUILDERS[path.suffix.lower()], data_files=str(path), **more)
    except Exception as error:
        raise _error(
            "path", f"{path} cannot be read as a data set: {_reason(error)}", "give one that `datasets` reads"
        ) from error


def _of_hub(datasets: Any, options: SourceOptions) -> Any:
    try:
        return datasets.load_dataset(options.hub, options.config, revision=options.revision)
    except Exception as error:
        message = f"{options.hub} is not among the data sets that were fetched before, and cannot be fetched: {_reason(error)}"
        if isinstance(error, ValueError):  # a configuration is missing or unknown
            raise _error(
                "config", f"{options.hub} cannot be opened: {_reason(error)}", "name one in the option config"
            ) from error
        hint = "see its name and the network, or fetch it elsewhere with save_to_disk, and give that folder as path"
        raise _error("hub", message, hint) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error.__cause__ or error).split()) or type(error).__name__


def _split(splits: Mapping[str, Any], key: str, name: str) -> Any:
    if name not in splits:
        hint = suggestion(name, splits)
        if key == "test":
            hint += "; or set test_share = 0.1, to keep a share of the training rows for the test"
        raise _error(key, f"the data set has no split {name!r}", hint)
    if not len(splits[name]):
        raise _error(key, f"the split {name!r} has no rows", "name another one")
    return splits[name]


@contextmanager
def _quiet(datasets: Any, *, progress: bool) -> Iterator[None]:
    """Say nothing beside what is raised; a download shows how far it is."""
    level, shown = datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity(logging.CRITICAL)
    if not progress:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if not shown:
            datasets.enable_progress_bars()


def _error(key: str, message: str, hint: str = "") -> SpecError:
    return SpecError(Problem(message=message, hint=hint, path=(key,)))
