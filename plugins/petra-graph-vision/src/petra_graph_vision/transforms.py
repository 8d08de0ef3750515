"""Transforms of `torchvision.transforms.v2`, as a specification names them: of single training images, and of micro-batches.

    augment = [{ name = "RandAugment", num_ops = 2 }, { name = "RandomErasing", p = 0.25 }]     one after another, each image
    mix = [{ name = "MixUp", alpha = 0.2 }, { name = "CutMix" }]                                one of them, each micro-batch

Decision: torch's generator is seeded for each image with (seed, epoch, index), and for each micro-batch with (seed, epoch, indices), and has
its former state afterwards. torchvision draws from no other one. So neither the number of processes nor a resume changes an image.

Decision: images stay uint8, as a run sends and normalises them; MixUp computes in float32 and rounds. So a transform must return the form
of the images: what converts or normalises is refused, and `RandomErasing` writes black, or the `value` of its options, from 0 to 255.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import numpy as np
import torch
from attrs import define, evolve
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from petra_graph.errors import Problem, SpecError, likely_meant, shown, suggestion
from petra_graph.plugins import DataSet, Split
from petra_graph.units import listed

_IMAGE, _BATCH = 3, 4
"""Set these draws apart from others of the same (seed, epoch)."""
_MIXING = ("CutMix", "MixUp")
_FILLED_IN = {"self", "num_classes", "labels_getter"}
"""Parameters that are not options: the data set says them."""
_LISTED = 12
_LISTS = ("transforms",)
"""Parameters of transforms that are given others."""
_TRIED = 16
"""How often each transform is tried before a run: RandAugment draws what it does, and not all of that has a magnitude."""
Table = Mapping[str, Any]


def transform_faults(key: str, tables: Sequence[Table]) -> Iterator[str]:
    """Yield what is wrong with the tables of `augment` or `mix`."""
    for number, table in enumerate(tables, start=1):
        try:
            make_transform(table, _MIXING if key == "mix" else _single(), {})
        except ValueError as error:
            where = f"{key}[{number}]" if len(tables) > 1 else key
            yield f"{where}: {error}"


def _single() -> Sequence[str]:
    """Return the names of the transforms that torchvision has for a single image."""
    from torchvision.transforms import v2

    return [
        name
        for name, one in vars(v2).items()
        if isinstance(one, type) and issubclass(one, v2.Transform) and one is not v2.Transform and name not in _MIXING
    ]


def make_transform(table: Table, names: Sequence[str], given: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the transform of a table.

    Args:
        table: its name, and its options.
        names: the transforms that are allowed.
        given: options that the data set knows.

    Raises:
        ValueError: there is no such transform or option, or torchvision refuses a value.
    """
    from torchvision.transforms import v2

    name = table.get("name")
    for others, key, what in (
        (_MIXING, "mix", "mixes the samples of a micro-batch"),
        (_single(), "augment", "changes one image"),
    ):
        if name in others and name not in names:
            raise ValueError(f"{shown(name)} {what}: name it in `{key}`")
    if not isinstance(name, str) or name not in names:
        near = likely_meant(name, sorted(names)) if isinstance(name, str) else []
        meant = f": did you mean {' or '.join(near)}?" if near else f"; there are {listed(sorted(names), _LISTED)}"
        came = "needs a name" if name is None else f"{shown(name)} is no transform of torchvision.transforms.v2"
        raise ValueError(f"{came}{meant}")
    parameters = {
        key: one for key, one in inspect.signature(getattr(v2, name)).parameters.items() if key not in _FILLED_IN
    }
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key == "name":
            continue
        if key not in parameters:
            raise ValueError(f"{name} has no option {shown(key)}; {suggestion(key, parameters)}")
        values[key] = (
            [make_transform(one, names, {}) for one in value] if key in _LISTS else _value(parameters[key], value)
        )
    missing = [key for key, one in parameters.items() if one.default is one.empty and one.kind not in _STARRED]
    if absent := [key for key in missing if key not in values]:
        raise ValueError(f"{name} needs the option {shown(absent[0])}")
    try:
        with _checked_distributions():
            made: Callable[..., Any] = getattr(v2, name)(**values, **given)
    except Exception as error:
        raise ValueError(f"{name}: {_reason(error)}") from error
    return made


@contextmanager
def _checked_distributions() -> Iterator[None]:
    """Let torch's distributions check their parameters, which torch's compiler turns off for the process once it is imported.

    MixUp with alpha = -1 would otherwise mix with shares that mean nothing. torch has a setter of it, and no getter.
    """
    before = Distribution._validate_args  # noqa: SLF001
    Distribution.set_default_validate_args(True)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def _reason(error: Exception) -> str:
    """Return the first line of what torch or torchvision says."""
    line = str(error).strip().partition("\n")[0].rstrip(":")
    return line or type(error).__name__


_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _value(parameter: inspect.Parameter, value: Any) -> Any:
    """Return an option's value; torchvision's own constants are written by their values, as in policy = "cifar10".

    A whole number is a float where the default is one: MixUp refuses the integer 1, its own default.
    """
    if isinstance(parameter.default, Enum) and isinstance(value, str):
        known = {str(one.value): one for one in type(parameter.default)}
        if value not in known:
            raise ValueError(f"{parameter.name} = {shown(value)} is not known; {suggestion(value, known)}")
        return known[value]
    if isinstance(parameter.default, float) and type(value) is int:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


@define(kw_only=True, eq=False)
class AugmentedSplit:
    """A training split whose images are transformed behind its own crops and flips."""

    split: Split
    transforms: Sequence[Callable[[Tensor], Tensor]]

    def __len__(self) -> int:
        return len(self.split)

    @property
    def files(self) -> Sequence[str]:
        return getattr(self.split, "files", ())

    @property
    def plain(self) -> Split | None:
        """The same images without any augmentation; None where the split has no such view."""
        return getattr(self.split, "plain", None)

    def fetch_targets(self, indices: NDArray[np.intp]) -> Tensor:
        split: Any = self.split
        targets: Tensor = split.fetch_targets(indices)
        return targets

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Load samples as the split does, each transformed."""
        images, targets = self.split.fetch(indices, seed=seed, epoch=epoch)
        assert isinstance(targets, Tensor)
        if self.transforms:
            transformed = torch.empty_like(images)
            with torch.random.fork_rng(devices=[]):
                for row, index in enumerate(indices):
                    _seed(seed, epoch, _IMAGE, int(index))
                    transformed[row] = self._transform(images[row])
            images = transformed
        return images, targets

    def _transform(self, image: Tensor) -> Tensor:
        for transform in self.transforms:
            image = transform(image)
        return image


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


def augmented(data: DataSet, options: Any) -> DataSet:
    """Return a data set, of a class of attrs, whose training split is augmented as the options `augment` and `mix` say.

    Raises:
        SpecError: a transform cannot be applied to such an image, or returns another form.
    """
    if not options.augment and not options.mix:
        return data
    made = [make_transform(table, _single(), {}) for table in options.augment]
    mixers = [make_transform(table, _MIXING, {"num_classes": data.facts.classes}) for table in options.mix]
    image = torch.zeros(data.facts.shape, dtype=torch.uint8)
    with torch.random.fork_rng(devices=[]):
        for table, transform in zip(options.augment, made, strict=True):
            for draw in range(_TRIED):
                torch.default_generator.manual_seed(draw)
                _try_transform(table["name"], transform, image)
        for table, mixer in zip(options.mix, mixers, strict=True):
            _try_mixer(table["name"], mixer, image)
    train = (
        MixedSplit(split=data.train, transforms=made, mixers=mixers)
        if mixers
        else AugmentedSplit(split=data.train, transforms=made)
    )
    opened: Any = data
    changed: DataSet = evolve(opened, train=train)
    return changed


def _try_transform(name: str, transform: Callable[[Tensor], Tensor], image: Tensor) -> None:
    form = f"uint8 {list(image.shape)}"
    found: Any = _apply("augment", name, f"an image, {form}", transform, image)
    came = (
        f"{str(found.dtype).removeprefix('torch.')} {list(found.shape)}"
        if isinstance(found, Tensor)
        else type(found).__name__
    )
    if came != form:
        message = f"{name} returns {came} of an image, {form}"
        hint = "a transform keeps size and type: a run normalises images itself, with the options mean and std"
        raise SpecError(Problem(message=message, hint=hint, path=("augment",)))


def _try_mixer(name: str, mixer: Callable[..., Any], image: Tensor) -> None:
    samples = torch.stack([image, image]).float()
    _apply("mix", name, f"two images, float32 {list(samples.shape)}", mixer, samples, torch.arange(2))


def _apply(key: str, name: str, form: str, transform: Callable[..., Any], *given: Tensor) -> Any:
    """Apply a transform; what torch says where it cannot is told with the key."""
    try:
        return transform(*given)
    except Exception as error:
        message = f"{name} cannot be applied to {form}: {_reason(error)}"
        hint = f"leave it out, or change its options: {name} of torchvision.transforms.v2 says which values they take"
        raise SpecError(Problem(message=message, hint=hint, path=(key,))) from error
