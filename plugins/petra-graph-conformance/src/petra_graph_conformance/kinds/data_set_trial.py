"""A data set with options, opened once, and the samples that are fetched from it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.kinds.data_set import (
    DATA_SET,
    DataSet,
    Split,
)
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.kinds.tensor_trees import Tree, is_several, leaves
from petra_graph_conformance.plugin_trial import PluginTrial

_ROWS, _ROWS_OF_RUN, SCANNED = 6, 2, 256
"""Samples of one call, those in a run, and targets that are looked at."""
Samples = tuple[Tensor, ...]
"""The samples, of several inputs the bytes of each row, and the targets behind them."""


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
        if self.of_run is not None:
            return self.of_run
        if not self._opened:
            self._opened.append(self.build(self.options))
        return self._opened[0]

    @property
    def splits(self) -> Iterator[tuple[str, Split, NDArray[np.intp]]]:
        """The splits by name, each with some indices, out of order."""
        for name, split in (("train", self.open().train), ("test", self.open().test)):
            generator = np.random.default_rng(self.seed)
            if self.of_run is not None:
                yield name, split, generator.choice(len(split), min(_ROWS_OF_RUN, len(split)), replace=False)
            else:
                yield name, split, generator.permutation(len(split))[:_ROWS]

    def fetch(self, split: Split, indices: NDArray[np.intp], *, seed: int | None = None, epoch: int = 0) -> Samples:
        """Load samples."""
        return loaded(split, indices, self.seed if seed is None else seed, epoch)


def loaded(split: Split, indices: NDArray[np.intp], seed: int, epoch: int) -> Samples:
    samples, targets = split.fetch(indices, seed=seed, epoch=epoch)
    return _in_one(samples), *leaves(targets)


def _in_one(samples: Tree) -> Tensor:
    if not is_several(samples):
        one: Tensor = samples
        return one
    rows = (one.reshape(len(one), -1).contiguous().view(torch.uint8) for one in leaves(samples))
    return torch.cat(list(rows), dim=1)
