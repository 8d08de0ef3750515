"""torch Datasets as splits: samples by index, or, of an IterableDataset, in an order of their own.

Decision: Python's, numpy's and torch's generators are seeded with (seed, epoch, index) around each `__getitem__`, a test or
validation sample's with its index alone, and restored afterwards. So whatever a transform draws is the same on any number of loader
processes, on any number of processes, and after a resume. Those of a stream are seeded by the core, for each sample in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from petra_graph.blocks import random_key
from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.plugins import DataFacts, fork_generators, seed_generators
from petra_graph_modules.datasets.sample_tensors import PAIR_HINT, describe, name_tensors, read_sample


@frozen(kw_only=True, eq=False)
class TorchSplit:
    """A map-style Dataset."""

    dataset: Any
    facts: DataFacts
    part: str
    """ "training", "validation" or "test"."""
    unaugmented: TorchSplit | None = None
    """The same samples, of the Dataset that `plain` names."""

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def plain(self) -> TorchSplit:
        """The training samples without augmentation.

        Raises:
            SpecError: the specification names no Dataset of them.
        """
        if self.unaugmented is None:
            message = "a share of the training Dataset is to be the validation samples, which must not be augmented"
            hint = (
                "name the training Dataset without augmentation in data.options.plain (the same as `train` if that augments nothing), or "
                'a Dataset of its own in data.options.validation, with data.validation = "validation"'
            )
            raise SpecError(Problem(message=message, hint=hint, path=("data", "validation")))
        return self.unaugmented

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Any, Any]:
        """Load samples.

        Raises:
            RunFailed: one is not like the first sample of the training data.
        """
        at = (seed, epoch) if self.part == "training" else (self.part,)
        with fork_generators():
            rows = [self._load(int(index), random_key(*at, index)) for index in indices]
        samples, targets = zip(*rows, strict=True)
        return _stack(samples), _stack(targets)

    def _load(self, index: int, key: int) -> tuple[Any, Any]:
        seed_generators(key)
        return self.read(index, self.dataset[index])

    def read(self, index: int, sample: Any) -> tuple[Any, Any]:
        """Return the tensors of a sample that the Dataset has given; errors as of `fetch`."""
        try:
            x, y = read_sample(sample)
        except ValueError as error:
            raise RunFailed(f"sample {index} of the {self.part} data: {error}", PAIR_HINT) from None
        facts = self.facts
        inputs = {f'x["{name}"]' if name else "x": one for name, one in facts.inputs.items()}
        declared = inputs | {f"y{place}": one for place, one in facts.targets.items()}
        given = name_tensors("x", x) | name_tensors("y", y)
        hint = "let every sample have one shape and type: crop, resize or pad"
        if given.keys() != declared.keys():
            message = f"sample {index} of the {self.part} data has {', '.join(given)}"
            raise RunFailed(f"{message}, and training sample 0 has {', '.join(declared)}", hint)
        for name, (shape, dtype) in declared.items():
            tensor = given[name]
            if (tuple(tensor.shape), tensor.dtype) != (shape, getattr(torch, dtype)):
                message = f"{name} of sample {index} of the {self.part} data is {describe(tensor)}"
                raise RunFailed(f"{message}, and that of training sample 0 is {dtype} {list(shape)}", hint)
        return x, y


@frozen(kw_only=True, eq=False)
class TorchStream:
    """An IterableDataset as a training split, whose samples are of unknown number."""

    dataset: Any
    read: Callable[[int, Any], tuple[Any, Any]]
    """Makes (x, y) of a sample and its number in the pass; raises RunFailed if it is not like the first one."""

    def iterate(self, *, seed: int, number: int) -> Iterator[tuple[Any, Any]]:
        """Yield the samples of a pass, which the Dataset is told if it has `set_epoch`."""
        set_epoch = getattr(self.dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(number)
        for index, sample in enumerate(self.dataset):
            yield self.read(index, sample)


def is_iterable(dataset: object) -> bool:
    """Whether a Dataset can only be read in its own order; a DataLoader makes batches, which are no samples."""
    if not hasattr(dataset, "__iter__") or isinstance(dataset, DataLoader):
        return False
    return isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"))


def _stack(rows: Sequence[Any]) -> Any:
    first = rows[0]
    if isinstance(first, Tensor):
        return torch.stack(tuple(rows))
    if isinstance(first, Mapping):
        return {key: torch.stack([one[key] for one in rows]) for key in first}
    return tuple(map(torch.stack, zip(*rows, strict=True)))
