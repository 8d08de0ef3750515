"""A data set: its samples are what its facts say, and each follows from its index, the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

import attrs
from attrs import field, frozen

from petra_graph.errors import SpecError, kind_of, shown
from petra_graph.plugins.tensor_trees import Tree
from petra_graph.spec.model import Dtype
from petra_graph.spec.strict_values import plain

if TYPE_CHECKING:
    import torch

    from petra_graph.plugins.contract import Plugin

IGNORED = -100  # the class index that torch's losses pass over


def _plain(value: Any) -> Any:
    """Return numbers in tuples or a dictionary, in Python's own types: sizes often come from numpy."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, tuple | list) else plain(value)


@frozen(kw_only=True)
class DataFacts:
    """The properties of a data set that are known before any file is opened; what they are of several inputs and targets is in plugins/guide/samples.md."""

    shape: Any = field(converter=_plain)
    """Of one sample, without the batch dimension; images are channels, height, width. Of several inputs a sample, a dictionary of shapes, in the
    order in which the first node's block reads them: {"tokens": (128,), "mask": (128,)}; `dtype` has the same names."""
    dtype: Any = "uint8"
    classes: int | None = field(default=None, converter=_plain)  # above class indices; None: files tell it, or none are
    target_shape: Any = field(default=(), converter=_plain)
    """Of one target: () for a class or a number, (tokens,) for a class each token. Of several targets, which have no `classes`, a tuple or a
    dictionary of shapes; `target_dtype` is of the same form."""
    target_dtype: Any = "int64"  # int64 for class indices, floats for values
    mean: tuple[float, ...] | None = field(default=None, converter=_plain)
    """Of each channel in [0, 1] (uint8 divided by 255), given with `std` or not at all; None: no normalisation."""
    std: tuple[float, ...] | None = field(default=None, converter=_plain)
    class_names: tuple[str, ...] | None = None  # by class index; None where they are not known

    def __attrs_post_init__(self) -> None:
        """RuntimeError, as no option is refused: no samples are so; what is wrong here would train, and badly."""
        try:
            forms = [*self.inputs.values(), *self.targets.values()]
        except (LookupError, TypeError, ValueError):
            raise RuntimeError("DataFacts: of several inputs or targets, each has a shape and a type") from None
        for shape, dtype in forms:
            sizes = isinstance(shape, tuple) and all(type(one) is int and one > 0 for one in shape)
            if not sizes or dtype not in get_args(Dtype):
                raise RuntimeError(f"DataFacts: no samples have shape {shown(shape)} and type {shown(dtype)}")
        if self.classes is not None and (not isinstance(self.classes, int) or self.classes < 1):
            raise RuntimeError(f"DataFacts: classes must be 1 or more (got {shown(self.classes)})")
        if self.mean is not None or self.std is not None:
            mean, std = (one if isinstance(one, tuple) else () for one in (self.mean, self.std))
            sound = len(mean) == len(std) > 0 and all(isinstance(one, int | float) for one in mean + std)
            if not (sound and all(one > 0 for one in std) and (self.dtype != "uint8" or max(mean + std) <= 1)):
                rule = "mean and std have a number each for every channel, above 0 in std, and of uint8 at most 1"
                raise RuntimeError(f"DataFacts: {rule} (got {shown(self.mean)} and {shown(self.std)})")

    @property
    def of_tokens(self) -> bool:
        """Whether samples are windows of tokens, with a target for each token."""
        return self.dtype == "int64" and len(self.shape) == 1 and self.target_shape == self.shape

    def expect_images(self, network: str) -> None:
        """Refuse, for a network that reads images, a data set of something else."""
        if self.several_inputs or len(self.shape) != 3:  # noqa: PLR2004  channels, height, width
            raise SpecError(f"{network} needs images [channels, height, width]; samples are {shown(self.shape)}")

    def outputs(self, given: int | None, option: str = "classes") -> int:
        """Return the outputs of a network, as its option says, or one a class; SpecError: the data set's files alone tell their number."""
        found = self.classes if given is None else given
        if found is None:
            unknown = "the number of classes is unknown: only the data set's files tell it"
            raise SpecError(unknown, f"set {option}", (option,))
        return found

    @property
    def several_inputs(self) -> bool:
        return isinstance(self.shape, Mapping)

    @property
    def inputs(self) -> dict[str, tuple[Any, Any]]:
        """Shape and type of each input by its name, in the order in which the first node reads them; of a single one by ""."""
        if not self.several_inputs:
            return {"": (self.shape, self.dtype)}
        return {name: (shape, self.dtype[name]) for name, shape in self.shape.items()}

    @property
    def several_targets(self) -> bool:
        return isinstance(self.target_shape, Mapping) or any(isinstance(one, tuple) for one in self.target_shape)

    @property
    def targets(self) -> dict[str, tuple[Any, Any]]:
        """Shape and type of each target by its place, `["boxes"]` or [1]; of a single one by ""."""
        shape, dtype = self.target_shape, self.target_dtype
        if not self.several_targets:
            return {"": (shape, dtype)}
        if isinstance(shape, Mapping):
            return {f'["{at}"]': (shape[at], dtype[at]) for at in shape}
        return {f"[{at}]": one for at, one in enumerate(zip(shape, dtype, strict=True))}


def zero_targets(facts: DataFacts, rows: int, device: torch.device | None = None) -> Tree:
    """Return targets as a data set declares them, of zeros."""
    import torch

    forms = facts.targets.values()
    made = [torch.zeros(rows, *shape, dtype=getattr(torch, dtype), device=device) for shape, dtype in forms]
    if isinstance(facts.target_shape, Mapping):
        return dict(zip(facts.target_shape, made, strict=True))
    return tuple(made) if facts.several_targets else made[0]


def data_of(plugin: Plugin, _: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return an opened data set, which has the facts that its class gives before, and with which the network was planned."""
    declared, built = declared_facts(plugin), plugin.code(**options)
    if not (hasattr(built, "train") and hasattr(built, "test")):
        raise plugin.broken(f"what it builds, {kind_of(built)}, has not `train` and `test`")
    if not isinstance(built.facts, DataFacts):
        built.facts = declared
    for name, said in attrs.asdict(declared, recurse=False).items():
        found = getattr(built.facts, name)
        # What the options leave open may be anything. The order of several inputs is the order in which the network reads them.
        if said is not None and shown(said) != shown(found):
            raise plugin.broken(f"its facts say {name} = {shown(said)}, and its files {shown(found)}")
    return built


def declared_facts(plugin: Plugin) -> DataFacts:
    """Return the facts of a data set with its options; SpecError: it refuses them; PluginError: it returns something else."""
    stated = plugin.code.facts
    facts = plugin.ask("facts") if callable(stated) else stated
    if not isinstance(facts, DataFacts):
        raise plugin.broken(f"its facts are {kind_of(facts)}, and no DataFacts")
    return facts


def completed(plugin: Plugin) -> Plugin:
    """Return a data set with the options that only its files tell."""
    found = plugin.ask("completed")
    return attrs.evolve(plugin, options=attrs.evolve(plugin.options, **found)) if found else plugin


def count_of_share(samples: int, share: float) -> int:
    """Return how many of the training samples a share of them is."""
    return round(share * samples)
