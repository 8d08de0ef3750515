"""The architecture "torchvision": options and nodes; torch is imported when a network is named."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from attrs import frozen

from petra_graph.catalog.networks.declared import CouplingOptions, network_nodes
from petra_graph.plugins import ArchitectureDeclaration, AtLeast, DataFacts, NodeSpec, Problem, SpecError, option

Argument = bool | int | float | str
_IMAGE = 3
"""The dimensions of an image: channels, height, width."""
_COLOURS = (1, 3)
"""The numbers of channels that a network can read: one is repeated."""


@frozen(kw_only=True)
class NetworkOptions(CouplingOptions):
    """A network by its name in torchvision."""

    network: str = option('name of the network in torchvision, as in "resnet50"')
    arguments: Mapping[str, Argument] = option(
        "further arguments of torchvision's function of that name, as in { dropout = 0.0 }", default={}
    )
    classes: int | None = option(
        "outputs of the network; default: the data set's classes", default=None, validator=AtLeast(1)
    )
    resize: int | None = option(
        "side of the square that the first node brings images to, bilinearly; default: images as they are",
        default=None,
        unit="pixels",
        validator=AtLeast(1),
    )


def nodes(options: NetworkOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of a network for such images: buffered but the head, and residual blocks coupled if options say so.

    Raises:
        SpecError: torchvision has no such network, samples are no images of one or three channels, or the number of classes is unknown.
    """
    from torchvision import models

    known, problems = models.list_models(module=models), []
    if options.network not in known:
        meant = " or ".join(map(repr, get_close_matches(options.network, known, n=1)))
        hint = f"did you mean {meant}?" if meant else "torchvision.models.list_models() has all names"
        message = f"torchvision has no classification network {options.network!r}"
        problems.append(Problem(message=message, hint=hint, path=("network",)))
    if len(facts.shape) != _IMAGE or facts.shape[0] not in _COLOURS:
        message = f"{options.network} needs images [1 or 3, height, width]; samples are {list(facts.shape)}"
        problems.append(Problem(message=message, hint="use a data set of images"))
    classes = options.classes or facts.classes
    if classes is None:
        message = "the number of classes is unknown: only the data set's files tell it"
        problems.append(Problem(message=message, hint="set classes", path=("classes",)))
    if problems:
        raise SpecError(problems)
    sides = [options.resize] * 2 if options.resize else list(facts.shape[1:])
    kwargs: dict[str, object] = {"network": options.network, "classes": classes, "sides": sides}
    if options.arguments:
        kwargs["arguments"] = dict(options.arguments)
    return network_nodes(
        facts, build="petra_graph_vision.networks:build", kwargs=kwargs, coupling=options, path=("network",)
    )


TORCHVISION = ArchitectureDeclaration(
    summary="A classification network of torchvision by its parts; residual blocks made reversible on demand.",
    options=NetworkOptions,
    build=f"{__name__}:nodes",
)
