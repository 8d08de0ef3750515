"""A data set of which every micro-batch is compared with what it declares, and whose errors name it and its samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from petra_graph.errors import PetraGraphError, Problem, RunFailed, SpecError
from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.data_facts import IGNORED, DataFacts
from petra_graph.kinds.data_set import DataSet, Split
from petra_graph.kinds.tensor_trees import Tree, is_several, named_leaves
from petra_graph.kinds.validation_split import PATH, draw_share, own_split, plain_view, set_apart
from petra_graph.units import listed

if TYPE_CHECKING:
    from torch import Tensor

_PARTS = ("samples", "targets")
_MEND = "mend the data set, or the facts that it declares: shape, dtype, classes, target_shape, target_dtype"


@frozen(kw_only=True, eq=False)
class CheckedSplit:
    """One split of a data set."""

    name: str
    """The data set's name, as messages say it: data set "digits"."""
    part: str
    """ "training", "validation" or "test"."""
    split: Split
    rows: NDArray[np.intp] | None = None
    """The rows of the split that are its samples; None: all. Messages name samples by their rows."""
    facts: DataFacts

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.split) if self.rows is None else len(self.rows)

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Tree, Tree]:
        """Load samples as the split does; several inputs in the order of the facts.

        Raises:
            RunFailed: the split raised, or what it returned is not what the data set declares.
        """
        samples, targets = self._tried(
            lambda some: self.split.fetch(some, seed=seed, epoch=epoch), indices, samples_fault
        )
        return self._in_order(samples), targets

    @property
    def fetch_targets(self) -> Callable[[NDArray[np.intp]], Tree] | None:
        """A function that loads targets alone, where the split has one; it raises what `fetch` raises."""
        fetch = getattr(self.split, "fetch_targets", None)
        return None if fetch is None else lambda indices: self._tried(fetch, indices, targets_fault)

    @property
    def mix(self) -> Callable[..., tuple[Tree, Tensor]] | None:
        """The function that mixes a fetched micro-batch, where the split has one; it raises what `fetch` raises."""
        return None if getattr(self.split, "mix", None) is None else self._mix

    def _mix(
        self, samples: Tree, targets: Tree, indices: NDArray[np.intp], *, seed: int, epoch: int
    ) -> tuple[Tree, Tensor]:
        split: Any = self.split
        rows = indices if self.rows is None else self.rows[indices]
        shares = evolve(self.facts, target_shape=(self.facts.classes,), target_dtype="float32")
        with author_code(lambda: f"{self.named(indices)}, mixed", error=RunFailed):
            mixed: tuple[Tree, Tensor] = split.mix(samples, targets, rows, seed=seed, epoch=epoch)
        if fault := samples_fault(shares, len(indices), mixed):
            raise RunFailed(f"{self.named(indices)}, mixed: {fault}", _MEND)
        return self._in_order(mixed[0]), mixed[1]

    def _in_order(self, samples: Tree) -> Tree:
        return {name: samples[name] for name in self.facts.inputs} if self.facts.several_inputs else samples

    @property
    def in_order(self) -> bool:
        """Whether samples are read in their order, since each that is passed over costs as much as one that is read."""
        return getattr(self.split, "in_order", False)

    @property
    def files(self) -> Sequence[str]:
        """The samples' files, where the split names them."""
        files: Sequence[str] = getattr(self.split, "files", ())
        return files if self.rows is None or not files else [files[row] for row in self.rows]

    def named(self, indices: Sequence[int] | NDArray[np.intp]) -> str:
        """Name samples of this split, as the subject of a message."""
        names = sample_names(indices if self.rows is None else self.rows[np.asarray(indices)])
        return f"{self.name}, {names} of its {self.part} data"

    def require_finite(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> None:
        """Check that samples and targets are finite.

        Raises:
            RunFailed: some are not.
        """
        part = not_finite(self.fetch(indices, seed=seed, epoch=epoch))
        if not part:
            return
        bad = [i for i in indices if not_finite(self.fetch(np.array([i]), seed=seed, epoch=epoch))]
        raise RunFailed(f"{self.named(bad or indices)}: {part} are not finite", "mend or leave out these samples")

    def _tried(self, of_rows: Callable[[NDArray[np.intp]], Any], indices: NDArray[np.intp], fault_of: Any) -> Any:
        def fetch(some: NDArray[np.intp]) -> Any:
            return of_rows(some if self.rows is None else self.rows[some])

        with author_code(lambda: self.named([i for i in indices if _raises(fetch, i)] or indices), error=RunFailed):
            fetched = fetch(indices)
        if fault := fault_of(self.facts, len(indices), fetched):
            raise RunFailed(f"{self.named(indices)}: {fault}", _MEND)
        return fetched


@frozen(kw_only=True, eq=False)
class CheckedData:
    """A data set whose splits are checked."""

    facts: DataFacts
    train: CheckedSplit
    """The training samples, without those of a validation share."""
    validation: CheckedSplit | None
    test: CheckedSplit

    @classmethod
    def of(
        cls,
        name: str,
        data: DataSet,
        validation: float | str | None = None,
        seed: int = 0,
        training: Split | None = None,
    ) -> CheckedData:
        """Check an opened data set's splits.

        Args:
            name: as messages say it.
            data: opened.
            validation: `data.validation` of the specification.
            seed: draws the samples of a share.
            training: the training split, where that of the data set is a stream; None: the data set's.

        Raises:
            SpecError, PluginError: the data set has no such validation samples, or one alone.
        """
        facts = data.facts
        split_of = partial(CheckedSplit, name=name, facts=facts)
        source = data.train if training is None else training
        train, held = split_of(part="training", split=source), None
        if isinstance(validation, str):
            held = split_of(part="validation", split=own_split(name, data, validation))
        elif validation is not None and (parts := set_apart(name, source, validation)) is not None:
            train, held = split_of(part="training", split=parts[0]), split_of(part="validation", split=parts[1])
        elif validation is not None:
            plain = plain_view(name, source)
            rows, held_rows = draw_share(len(source), validation, seed)
            train = evolve(train, rows=rows)
            held = split_of(part="validation", split=plain, rows=held_rows)
        if held is not None and len(held) == 1 and not facts.target_shape:
            message = "the validation is one sample: right or wrong, it says nothing of others"
            hint = "give a share of more samples, or a split that has them"
            raise SpecError(Problem(message=message, hint=hint, path=PATH))
        return cls(facts=facts, train=train, validation=held, test=split_of(part="test", split=data.test))


def sample_names(indices: Sequence[int] | NDArray[np.intp]) -> str:
    """Return "sample 7", "samples 440..459", or the first of scattered ones."""
    numbers = [int(index) for index in indices]
    if len(numbers) == 1:
        return f"sample {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"samples {numbers[0]}..{numbers[-1]}"
    return f"samples {listed(map(str, numbers))}"


def _raises(fetch: Callable[[NDArray[np.intp]], Any], index: int) -> bool:
    with suppress(PetraGraphError), author_code(""):
        fetch(np.array([index]))
        return False
    return True


def samples_fault(facts: DataFacts, rows: int, fetched: Any) -> str:
    """Return the first fault of a fetched micro-batch, as a sentence without the place of its subject; "" where nothing is wrong.

    Args:
        facts: of the opened data set.
        rows: samples that were asked for.
        fetched: what the split returned.
    """
    import torch

    pair = isinstance(fetched, tuple | list) and len(fetched) == len(_PARTS)
    single = [not facts.several_inputs, not facts.several_targets]
    if not pair or not all(isinstance(x, torch.Tensor) for x, one in zip(fetched, single, strict=True) if one):
        inside = f" of {', '.join(type(x).__name__ for x in fetched)}" if isinstance(fetched, tuple | list) else ""
        return f"fetch returned a {type(fetched).__name__}{inside}, not a tuple of two tensors"
    samples, targets = fetched
    return inputs_fault(facts, rows, samples) or targets_fault(facts, rows, targets)


def inputs_fault(facts: DataFacts, rows: int, samples: Any) -> str:
    """Return the first fault of fetched samples, as `samples_fault`."""
    import torch

    if not facts.several_inputs:
        return _tensor_fault("samples", samples, (rows, *facts.shape), facts.dtype)
    declared = f"where the data set declares the inputs {', '.join(facts.inputs)}"
    if not isinstance(samples, dict):
        return f"samples are a {type(samples).__name__}, {declared}"
    if samples.keys() != facts.inputs.keys():
        return f"samples are a dictionary of {', '.join(map(str, samples))}, {declared}"
    for name, (shape, dtype) in facts.inputs.items():
        if not isinstance(samples[name], torch.Tensor):
            return f'samples["{name}"] are a {type(samples[name]).__name__}, not a tensor'
        if fault := _tensor_fault(f'samples["{name}"]', samples[name], (rows, *shape), dtype):
            return fault
    return ""


def targets_fault(facts: DataFacts, rows: int, targets: Any) -> str:
    """Return the first fault of fetched targets, as `samples_fault`."""
    import torch

    if facts.several_targets:
        found = dict(named_leaves(targets)) if is_several(targets) else {"": targets}
        if found.keys() != facts.targets.keys() or not all(isinstance(one, torch.Tensor) for one in found.values()):
            return f"targets are a {type(targets).__name__} of {', '.join(found)}, where the data set declares tensors {', '.join(facts.targets)}"
        faults = (
            _tensor_fault(f"targets{at}", found[at], (rows, *shape), dtype)
            for at, (shape, dtype) in facts.targets.items()
        )
        return next(filter(None, faults), "")
    if not isinstance(targets, torch.Tensor):
        return f"fetch_targets returned a {type(targets).__name__}, not a tensor"
    fault = _tensor_fault("targets", targets, (rows, *facts.target_shape), facts.target_dtype)
    if fault or facts.classes is None or facts.target_dtype != "int64" or not targets.numel():
        return fault
    low, high = int(targets.min()), int(targets.max())
    if high >= facts.classes or (low < 0 and bool(((targets < 0) & (targets != IGNORED)).any())):
        return f"targets are {low} .. {high}, where the data set declares classes 0 .. {facts.classes - 1}"
    return ""


def not_finite(fetched: tuple[Tree, Tree]) -> str:
    """Return which part of a fetched micro-batch is not finite; "" where all is."""
    samples, targets = fetched
    both = ("samples", samples), ("targets", targets)
    parts = [(f"{part}{at}", one) for part, tree in both for at, one in named_leaves(tree)]
    return next((name for name, part in parts if part.is_floating_point() and not bool(part.isfinite().all())), "")


def _tensor_fault(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: str) -> str:
    import torch

    if tuple(tensor.shape) != shape:
        return f"{shape[0]} {name} have the shape {list(tensor.shape)}, where the data set declares {list(shape)}"
    if tensor.dtype != getattr(torch, dtype):
        return f"{name} are {str(tensor.dtype).removeprefix('torch.')}, where the data set declares {dtype}"
    if tensor.device.type != "cpu":
        return f"{name} are on {tensor.device}, not on the CPU"
    return ""
