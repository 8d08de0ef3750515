"""The architecture "torchvision"; torch is imported when a network is named."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated

from petra_graph.catalog.networks.module_network import Alpha, Anchors, Beta, Coupling, module_nodes
from petra_graph.plugins import AtLeast, DataFacts, NodeSpec, Problem, SpecError

Argument = bool | int | float | str
_IMAGE = 3
"""The dimensions of an image: channels, height, width."""
_COLOURS = (1, 3)
"""The numbers of channels that a network can read: one is repeated."""


def nodes(
    facts: DataFacts,
    *,
    network: Annotated[str, 'name of the network in torchvision, as in "resnet50"'],
    arguments: Annotated[
        Mapping[str, Argument], "further arguments of torchvision's function of that name, as in { dropout = 0.0 }"
    ] = {},
    classes: Annotated[int | None, "outputs of the network; default: the data set's classes", AtLeast(1)] = None,
    resize: Annotated[
        int | None,
        "side of the square that the first node brings images to, bilinearly, pixels; default: images as they are",
        AtLeast(1),
    ] = None,
    coupling: Coupling = None,
    anchors: Anchors = None,
    alpha: Alpha = 1.0,
    beta: Beta = 0.1,
) -> tuple[NodeSpec, ...]:
    """A classification network of torchvision by its parts; residual blocks made reversible on demand.

    Raises:
        SpecError: torchvision has no such network, samples are no images of one or three channels, or the number of classes is unknown.
    """
    from torchvision import models

    known, problems = models.list_models(module=models), []
    if network not in known:
        meant = " or ".join(map(repr, get_close_matches(network, known, n=1)))
        hint = f"did you mean {meant}?" if meant else "torchvision.models.list_models() has all names"
        message = f"torchvision has no classification network {network!r}"
        problems.append(Problem(message=message, hint=hint, path=("network",)))
    if len(facts.shape) != _IMAGE or facts.shape[0] not in _COLOURS:
        message = f"{network} needs images [1 or 3, height, width]; samples are {list(facts.shape)}"
        problems.append(Problem(message=message, hint="use a data set of images"))
    outputs = classes or facts.classes
    if outputs is None:
        message = "the number of classes is unknown: only the data set's files tell it"
        problems.append(Problem(message=message, hint="set classes", path=("classes",)))
    if problems:
        raise SpecError(problems)
    sides = [resize] * 2 if resize else list(facts.shape[1:])
    kwargs: dict[str, object] = {"network": network, "classes": outputs, "sides": sides}
    if arguments:
        kwargs["arguments"] = dict(arguments)
    return module_nodes(
        facts,
        build="petra_graph_vision.networks:build",
        kwargs=kwargs,
        coupling=coupling,
        anchors=anchors,
        alpha=alpha,
        beta=beta,
    )
