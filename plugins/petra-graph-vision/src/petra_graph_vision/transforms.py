"""Transforms of `torchvision.transforms.v2`, as a specification names them: of single training images, and of micro-batches.

    augment = [{ name = "RandAugment", num_ops = 2 }, { name = "RandomErasing", p = 0.25 }]     one after another, each image
    mix = [{ name = "MixUp", alpha = 0.2 }, { name = "CutMix" }]                                one of them, each micro-batch

Decision: torch's generator is seeded for each image with (seed, epoch, index), and for each micro-batch with (seed, epoch, indices), and has
its former state afterwards. torchvision draws from no other one. So neither the number of processes nor a resume changes an image.

Decision: images stay uint8, as a run sends and normalises them; MixUp computes in float32 and rounds. So a transform must return the form
of the images, which a run compares: what converts or normalises is refused at the first fetch, and `RandomErasing` writes black, or the `value` of its options, from 0 to 255.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import reduce
from typing import Any

import numpy as np
import torch
from attrs import define
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.errors import shown, suggestion
from petra_graph.plugins import DataFacts

_IMAGE, _BATCH = 3, 4
"""Set these draws apart from others of the same (seed, epoch)."""
_MIXING = ("CutMix", "MixUp")
Table = Mapping[str, Any]


def check_transforms(tables: Sequence[Table], *, mixing: bool) -> None:
    """Refuse transforms that torchvision does not have, or whose options it refuses: the rule of `augment` and `mix`."""
    for table in tables:
        make_transform(table, mixing=mixing)


def make_transform(table: Table, *, mixing: bool, **given: Any) -> Callable[..., Any]:
    """Return the transform of a table; `given` are options that the data set knows.

    ValueError: there is no such transform or option, or torchvision refuses a value.
    """
    from torchvision.transforms import v2

    known = {name: one for name, one in vars(v2).items() if isinstance(one, type) and issubclass(one, v2.Transform)}
    names = [name for name in known if (name in _MIXING) == mixing]
    name = table.get("name")
    if name not in names:
        raise ValueError(
            f"{shown(name)} is no transform of torchvision.transforms.v2 here; {suggestion(str(name), names)}"
        )
    parameters = inspect.signature(known[name]).parameters
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key == "transforms":
            values[key] = [make_transform(one, mixing=mixing) for one in value]
        elif key != "name":
            values[key] = _value(parameters.get(key), value)
    try:
        made: Callable[..., Any] = known[name](**values, **given)
    except Exception as error:
        raise ValueError(f"{name}: {_reason(error)}") from error
    return made


def _reason(error: Exception) -> str:
    """Return the first line of what torch or torchvision says."""
    return str(error).strip().partition("\n")[0].rstrip(":") or type(error).__name__


def _value(parameter: inspect.Parameter | None, value: Any) -> Any:
    """Return an option's value; torchvision's own constants are written by their values, as in policy = "cifar10".

    A whole number is a float where the default is one: MixUp refuses the integer 1, its own default.
    """
    default = None if parameter is None else parameter.default
    if isinstance(default, Enum):
        return type(default)(value)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


@define(kw_only=True, eq=False)
class AugmentedSplit:
    """A training split whose images are transformed behind its own crops and flips."""

    split: Any
    transforms: Sequence[Callable[[Tensor], Tensor]]

    def __len__(self) -> int:
        return len(self.split)

    @property
    def plain(self) -> Any:
        """The same images without any augmentation; None where the split has no such view."""
        return getattr(self.split, "plain", None)

    def fetch_targets(self, indices: NDArray[np.intp]) -> Tensor:
        split: Any = self.split
        targets: Tensor = split.fetch_targets(indices)
        return targets

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        images, targets = self.split.fetch(indices, seed=seed, epoch=epoch)
        assert isinstance(targets, Tensor)
        if self.transforms:
            transformed = []
            with torch.random.fork_rng(devices=[]):
                for image, index in zip(images, indices, strict=True):
                    _seed(seed, epoch, _IMAGE, int(index))
                    transformed.append(reduce(lambda one, transform: transform(one), self.transforms, image))
            images = torch.stack(transformed).contiguous(memory_format=torch.channels_last)
        return images, targets


@define(kw_only=True, eq=False)
class MixedSplit(AugmentedSplit):
    """A training split whose micro-batches are mixed, besides."""

    mixers: Sequence[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]

    def mix(
        self, samples: Tensor, targets: Tensor, indices: NDArray[np.intp], *, seed: int, epoch: int
    ) -> tuple[Tensor, Tensor]:
        """Return mixed images, and the shares of the classes [n, classes]."""
        with torch.random.fork_rng(devices=[]):
            _seed(seed, epoch, _BATCH, *map(int, indices))
            chosen = int(torch.randint(len(self.mixers), ())) if len(self.mixers) > 1 else 0
            mixed, shares = self.mixers[chosen](samples.float(), targets)
        return mixed.round().to(torch.uint8).contiguous(memory_format=torch.channels_last), shares.float()


def _seed(*parts: int) -> None:
    key = np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]
    torch.default_generator.manual_seed(int(key >> np.uint64(1)))


def augmented(split: Any, facts: DataFacts, augment: Sequence[Table], mix: Sequence[Table]) -> Any:
    """Return a training split that is augmented as the options `augment` and `mix` say."""
    if not augment and not mix:
        return split
    made = [make_transform(table, mixing=False) for table in augment]
    mixers = [make_transform(table, mixing=True, num_classes=facts.classes) for table in mix]
    if mixers:
        return MixedSplit(split=split, transforms=made, mixers=mixers)
    return AugmentedSplit(split=split, transforms=made)
