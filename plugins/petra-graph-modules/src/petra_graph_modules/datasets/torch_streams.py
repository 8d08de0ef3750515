"""torch IterableDatasets as training splits: samples in an order of their own, of unknown number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import frozen
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset


def is_iterable(dataset: object) -> bool:
    """Whether a Dataset can only be read in its own order; a DataLoader makes batches, which are no samples."""
    if not hasattr(dataset, "__iter__") or isinstance(dataset, DataLoader):
        return False
    return isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"))


@frozen(kw_only=True, eq=False)
class TorchStream:
    """A training split, read by `iterate`."""

    dataset: Any
    read: Callable[[int, Any], tuple[Any, Any]]
    """Makes (x, y) of a sample and its number in the pass; raises RunFailed if it is not like the first one."""

    def iterate(self, *, seed: int, number: int) -> Iterator[tuple[Tensor, Any]]:
        """Yield the samples of a pass, which the Dataset is told if it has `set_epoch`."""
        set_epoch = getattr(self.dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(number)
        for index, sample in enumerate(self.dataset):
            yield self.read(index, sample)
