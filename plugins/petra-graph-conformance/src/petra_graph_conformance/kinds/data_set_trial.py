"""A data set with options, opened once, and the samples that are fetched from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.kinds.data_facts import DataFacts
from petra_graph.kinds.data_set import DATA_SET, DataSet, Split, Stream, is_stream
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.kinds.tensor_trees import Tree, is_several, leaves
from petra_graph.training.data.stream_split import StreamSplit
from petra_graph_conformance.plugin_trial import PluginTrial

_ROWS, _ROWS_OF_RUN, SCANNED = 6, 2, 256
"""Samples of one call, those in a run, and targets that are looked at."""
_EPOCH = 64
"""Samples that an epoch of a stream has, whatever it is in the run: each promise reads from the stream's beginning."""
Samples = tuple[Tensor, ...]
"""The samples, of several inputs the bytes of each row, and the targets behind them."""


@frozen(kw_only=True, eq=False)
class _WithStream:
    """A data set whose training split is the beginning of its stream."""

    train: Split
    test: Split
    facts: DataFacts


@frozen(kw_only=True)
class DataSetTrial(PluginTrial):
    """A data set with options; it is opened once.

    Attributes:
        plugin: the data set.
        options: an instance of its own options class.
        seed: of the calls that fetch.
        of_run: the data set as a run has opened it, instead of a new one; two samples of each split are then tried.
    """

    seed: int = 0
    of_run: DataSet | None = field(default=None, repr=False, eq=False)
    _opened: list[DataSet] = field(factory=list, init=False, repr=False, eq=False)

    @staticmethod
    def of_kind() -> PluginKind:
        return DATA_SET

    def open(self) -> DataSet:
        """Return the data set, opened at the first call.

        Raises:
            SpecError: its files are missing.
        """
        if not self._opened:
            data = self.build(self.options) if self.of_run is None else self.of_run
            stream = _stream_of(data.train)
            if stream is not None:
                data = _WithStream(train=StreamSplit(stream, _EPOCH), test=data.test, facts=data.facts)
            self._opened.append(data)
        return self._opened[0]

    @property
    def stream(self) -> Stream | None:
        """The stream of the training samples; None: they have an index."""
        return _stream_of(self.open().train)

    @property
    def splits(self) -> Iterator[tuple[str, Split, NDArray[np.intp]]]:
        """The splits by name, each with some indices, out of order."""
        for name, split in (("train", self.open().train), ("test", self.open().test)):
            generator = np.random.default_rng(self.seed)
            if self.of_run is not None:
                yield name, split, generator.choice(len(split), min(_ROWS_OF_RUN, len(split)), replace=False)
            else:
                yield name, split, generator.permutation(len(split))[:_ROWS]

    def facts_of(self, split: Split, indices: NDArray[np.intp]) -> DataFacts:
        """Return the facts of a micro-batch of these samples."""
        return self.open().facts

    def fetch_rows(self, split: Split, indices: NDArray[np.intp]) -> Samples:
        """Load samples in their longest form, with zeros behind the length of each: as they are, whichever are loaded together."""
        return loaded(split, indices, self.seed, 0)

    def fetch(self, split: Split, indices: NDArray[np.intp], *, seed: int | None = None, epoch: int = 0) -> Samples:
        """Load samples."""
        return loaded(split, indices, self.seed if seed is None else seed, epoch)


def _stream_of(split: Any) -> Stream | None:
    inner = getattr(split, "split", split)  # that of a run is checked
    if isinstance(inner, StreamSplit):
        return inner.stream
    return inner if is_stream(inner) else None


def loaded(split: Split, indices: NDArray[np.intp], seed: int, epoch: int) -> Samples:
    samples, targets = split.fetch(indices, seed=seed, epoch=epoch)
    return _in_one(samples), *leaves(targets)


def _in_one(samples: Tree) -> Tensor:
    if not is_several(samples):
        one: Tensor = samples
        return one
    rows = (one.reshape(len(one), -1).contiguous().view(torch.uint8) for one in leaves(samples))
    return torch.cat(list(rows), dim=1)
