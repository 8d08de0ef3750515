"""A data set in a run: its training, validation and test samples; errors name them, and the first ones are compared with the facts.

The validation samples are a split of the data set's own, or a share of its training samples, drawn among those of its `plain` split.

Decision: which samples are drawn depends on the seed and the number of samples alone. So they are the same in every process, for every
batch, and after a resume.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from petra_graph.errors import PetraGraphError, RunFailed, SpecError, at_path
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.data_set import IGNORED, DataFacts, DataSet, Split, count_of_share
from petra_graph.plugins.tensor_trees import Tree, named_leaves
from petra_graph.units import listed

if TYPE_CHECKING:
    from torch import Tensor

_DRAW = (0, 3)
"""Separates this draw from others of the same seed: those of an epoch's order and of augmentations begin with the epoch."""


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
    _seen: set[str] = field(factory=set, init=False)
    """What has been compared with the facts."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.split) if self.rows is None else len(self.rows)

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Tree, Tree]:
        """Load samples as the split does; several inputs in the order of the facts.

        Raises:
            RunFailed: the split raised, or the first that it returned is not what the data set declares.
        """
        samples, targets = self._tried(
            lambda some: self.split.fetch(some, seed=seed, epoch=epoch), indices, "samples", samples_fault
        )
        return self._in_order(samples), targets

    @property
    def fetch_targets(self) -> Callable[[NDArray[np.intp]], Tree] | None:
        """A function that loads targets alone, where the split has one; it raises what `fetch` raises."""
        fetch = getattr(self.split, "fetch_targets", None)
        return None if fetch is None else lambda indices: self._tried(fetch, indices, "targets", targets_fault)

    @property
    def mix(self) -> Callable[..., tuple[Tree, Tensor]] | None:
        """The function that mixes a fetched micro-batch, where the split has one; it raises what `fetch` raises."""
        mixes = getattr(self.split, "mix", None)

        def mix(samples: Tree, targets: Tree, indices: NDArray[np.intp], **at: int) -> tuple[Tree, Tensor]:
            with author_code(lambda: f"{self._named(indices)}, mixed", error=RunFailed):
                mixed: tuple[Tree, Tensor] = mixes(samples, targets, self._rows(indices), **at)  # type: ignore[misc]
            return self._in_order(mixed[0]), mixed[1]

        return None if mixes is None else mix

    @property
    def in_order(self) -> bool:
        """Whether samples are read in their order, since each that is passed over costs as much as one that is read."""
        return getattr(self.split, "in_order", False)

    def _rows(self, indices: Any) -> Any:
        return indices if self.rows is None else self.rows[np.asarray(indices)]

    def _in_order(self, samples: Tree) -> Tree:
        return {name: samples[name] for name in self.facts.inputs} if self.facts.several_inputs else samples

    def _named(self, indices: Sequence[int] | NDArray[np.intp]) -> str:
        """Name samples of this split, as the subject of a message: "sample 7", "samples 440..459", or the first of scattered ones."""
        rows = [int(index) for index in self._rows(indices)]
        together = len(rows) > 1 and rows == list(range(rows[0], rows[0] + len(rows)))
        numbers = f"{rows[0]}..{rows[-1]}" if together else listed(map(str, rows))
        return f"{self.name}, sample{'s' * (len(rows) > 1)} {numbers} of its {self.part} data"

    def _tried(self, of_rows: Any, indices: NDArray[np.intp], part: str, fault_of: Any) -> Any:
        """Return what a function of rows loads; if it raises, the message names those rows that do by themselves."""

        def raises(index: int) -> bool:
            with suppress(PetraGraphError), author_code(""):
                of_rows(self._rows(np.array([index])))
                return False
            return True

        with author_code(lambda: self._named([one for one in indices if raises(one)] or indices), error=RunFailed):
            fetched = of_rows(self._rows(indices))
        if part not in self._seen:
            if fault := fault_of(self.facts, len(indices), fetched):
                raise RunFailed(f"{self._named(indices)}: {fault}", "mend the data set, or the facts that it declares")
            self._seen.add(part)
        return fetched


@frozen(kw_only=True, eq=False)
class CheckedData:
    """The splits of a data set in a run."""

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
        """Take an opened data set's splits.

        Args:
            name: as messages say it.
            data: opened.
            validation: `data.validation` of the specification.
            seed: draws the samples of a share.
            training: the training split, where that of the data set is a stream; None: the data set's.

        Raises:
            SpecError: the data set has no such validation samples.
        """

        def checked(part: str, split: Split, rows: NDArray[np.intp] | None = None) -> CheckedSplit:
            return CheckedSplit(name=name, part=part, split=split, rows=rows, facts=data.facts)

        source = data.train if training is None else training
        train, held = checked("training", source), None
        with at_path("data", "validation"):
            if isinstance(validation, str):
                own: Any = getattr(data, validation, None)
                if not hasattr(own, "fetch"):
                    raise SpecError(
                        f'{name} has no split "{validation}"',
                        "name one that it has, or give a share of the training samples, as in 0.1",
                    )
                held = checked("validation", own)
            elif validation is not None and hasattr(source, "set_apart"):  # its samples overlap
                with author_code(f"{name} cannot set validation samples apart"):
                    first, apart = source.set_apart(validation)
                train, held = checked("training", first), checked("validation", apart)
            elif validation is not None:
                if (plain := getattr(source, "plain", None)) is None:
                    message = f"{name} cannot give a share of its training samples: it has no view of them without augmentation"
                    hint = (
                        "give its training split the attribute `plain` (itself, if it has none), of torch Datasets the option `plain`; or name "
                        'a split of the data set\'s own, as in data.validation = "validation"'
                    )
                    raise SpecError(message, hint)
                rows, held_rows = draw_share(len(source), validation, seed)
                train, held = checked("training", source, rows), checked("validation", plain, held_rows)
        return cls(facts=data.facts, train=train, validation=held, test=checked("test", data.test))


def draw_share(samples: int, share: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of the training samples and those of the validation samples, each in their order.

    Raises:
        SpecError: there would be no validation sample.
    """
    count = count_of_share(samples, share)
    if not count:
        raise SpecError(f"a share of {share:g} of {samples:,} training samples is no sample", "give a larger share")
    drawn = np.random.default_rng([seed, *_DRAW]).permutation(samples)
    return np.sort(drawn[count:]), np.sort(drawn[:count])


def samples_fault(facts: DataFacts, rows: int, fetched: Any) -> str:
    """Return the first fault of a fetched micro-batch of `rows` samples, as a sentence without its place; "" where nothing is wrong."""
    if not isinstance(fetched, tuple | list) or len(fetched) != 2:  # noqa: PLR2004
        return f"fetch returned a {type(fetched).__name__}, not a pair of samples and targets"
    samples, targets = fetched
    inputs = {f'["{name}"]' if name else "": one for name, one in facts.inputs.items()}
    return _tree_fault("samples", inputs, rows, samples) or targets_fault(facts, rows, targets)


def targets_fault(facts: DataFacts, rows: int, targets: Any) -> str:
    """Return the first fault of fetched targets, as `samples_fault`."""
    fault = _tree_fault("targets", facts.targets, rows, targets)
    if fault or facts.classes is None or facts.target_dtype != "int64" or not targets.numel():
        return fault
    low, high = int(targets.min()), int(targets.max())
    if high >= facts.classes or (low < 0 and bool(((targets < 0) & (targets != IGNORED)).any())):
        return f"targets are {low} .. {high}, where the data set declares classes 0 .. {facts.classes - 1}"
    return ""


def _tree_fault(noun: str, declared: Any, rows: int, tree: Any) -> str:
    import torch

    found = dict(named_leaves(tree))
    if found.keys() != declared.keys():
        there, wanted = (", ".join(places) or "one tensor" for places in (found, declared))
        return f"{noun} are {there}, where the data set declares {wanted}"
    for place, (shape, dtype) in declared.items():
        one, form = found[place], f"{dtype} {[rows, *shape]} on cpu"
        came = type(one).__name__
        if isinstance(one, torch.Tensor):
            came = f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)} on {one.device.type}"
        if came != form:
            return f"{noun}{place} are {came}, where the data set declares {form}"
    return ""
