"""The architecture "torchvision": its classification networks by their parts, a residual block each, or a layer with what follows it.

A family is the list of what its forward calls in a row; what holds a matrix or kernel begins a part. A network of any other family is one
node. Images are brought to the network's size, and one channel is read as grey, in the first part as in the network itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models
from torchvision.models.convnext import CNBlock
from torchvision.models.swin_transformer import SwinTransformerBlock
from torchvision.models.vision_transformer import EncoderBlock

from petra_graph.blocks.dual_residual import Alpha, Beta
from petra_graph.catalog.networks import Anchors, Coupling, module_nodes
from petra_graph.plugins import AtLeast, DataFacts, NodeSpec, SpecError

_COLOURS = 3
_WITHOUT_AUXILIARY = {"aux_logits": False, "init_weights": True}
_FIXED: Mapping[str, Mapping[str, Any]] = {"googlenet": _WITHOUT_AUXILIARY, "inception_v3": _WITHOUT_AUXILIARY}
"""Arguments that no option changes: a second head would have a loss of its own."""


def nodes(
    facts: DataFacts,
    *,
    network: Annotated[str, 'name of the network in torchvision, as in "resnet50"'],
    arguments: Annotated[Mapping[str, bool | int | float | str], "further ones of torchvision's function"] = {},
    classes: Annotated[int | None, "outputs of the network; default: the data set's classes", AtLeast(1)] = None,
    resize: Annotated[int | None, "side to which the first node brings images; default: none", AtLeast(1)] = None,
    coupling: Coupling = None,
    anchors: Anchors = None,
    alpha: Alpha = 1.0,
    beta: Beta = 0.1,
) -> tuple[NodeSpec, ...]:
    """A classification network of torchvision by its parts; residual blocks made reversible on demand."""
    known = models.list_models(module=models)
    if network not in known:
        message = f"torchvision has no classification network {network!r}"
        close = get_close_matches(network, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "torchvision.models.list_models() has all names"
        raise SpecError(message, hint, ("network",))
    facts.expect_images(network)
    if facts.shape[0] not in (1, _COLOURS):
        raise SpecError(f"{network} needs images of 1 or {_COLOURS} channels; samples are {list(facts.shape)}")
    sides = [resize] * 2 if resize else list(facts.shape[1:])
    kwargs: dict[str, Any] = {"network": network, "classes": facts.outputs(classes), "sides": sides}
    return module_nodes(
        facts,
        build=f"{__name__}:build",
        kwargs=kwargs | ({"arguments": dict(arguments)} if arguments else {}),
        coupling=coupling,
        anchors=anchors,
        alpha=alpha,
        beta=beta,
    )


def build(network: str, classes: int, sides: Sequence[int], arguments: Mapping[str, Any] | None = None) -> nn.Module:
    """Return a network of torchvision, which brings images [n, 1 or 3, height, width] to the height and width `sides`."""
    made: nn.Module = models.get_model(
        network,
        num_classes=classes,
        weights=None,
        **_FIXED.get(network, {}),
        **_for_sides(network, sides),
        **(arguments or {}),
    )
    read = Read(sides)
    made.register_forward_pre_hook(lambda _, images: read(images[0]))
    for family, in_a_row in _FAMILIES.items():
        if isinstance(made, family):
            units = list(in_a_row(made))
            vars(made).update(
                nodes=partial(_parts, read, units), residual=[name for name, unit in units if _adds(unit)].copy
            )
    return made


class Read(nn.Module):
    """Images in the network's size, one channel as grey."""

    draws = False

    def __init__(self, sides: Sequence[int]) -> None:
        super().__init__()
        self.sides = tuple(sides)

    def forward(self, image: Tensor) -> Tensor:
        if image.shape[1] == 1:
            image = image.expand(-1, _COLOURS, -1, -1)
        if image.shape[2:] == self.sides:
            return image
        return functional.interpolate(image, self.sides, mode="bilinear", antialias=True)


class Mean(nn.Module):
    """The mean over an image."""

    draws = False

    def forward(self, x: Tensor) -> Tensor:
        return x.mean([2, 3])


class Patches(nn.Module):
    """An image as a vision transformer reads it: patches behind a token of the class, with their positions."""

    draws = False

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.conv_proj, self.class_token = network.conv_proj, network.class_token
        self.positions, self.dropout = network.encoder.pos_embedding, network.encoder.dropout

    def forward(self, image: Tensor) -> Tensor:
        patches = self.conv_proj(image)
        patches = patches.reshape(*patches.shape[:2], -1).permute(0, 2, 1)
        tokens = torch.cat([self.class_token.expand(len(image), -1, -1), patches], 1)
        out: Tensor = self.dropout(tokens + self.positions)
        return out


class First(nn.Module):
    """The token of the class."""

    draws = False

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


Units = Iterator[tuple[str, nn.Module]]


def _in_a_row(*names: str | nn.Module) -> Callable[[Any], Units]:
    """Return the modules of these names, nn.Sequential ones by their children, and others that have no parameters."""

    def units(network: Any) -> Units:
        for one in names:
            yield from _flat("", one) if isinstance(one, nn.Module) else _flat(one, network.get_submodule(one))

    return units


def _flat(name: str, module: nn.Module) -> Units:
    if type(module).forward is nn.Sequential.forward:
        for child, one in module.named_children():
            yield from _flat(f"{name}.{child}", one)
    else:
        yield name, module


def _of_transformer(network: Any) -> Units:
    yield "conv_proj", Patches(network)
    yield from _flat("encoder.layers", network.encoder.layers)
    yield from (("encoder.ln", network.encoder.ln), ("", First()))
    yield from _flat("heads", network.heads)


_POOLED = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
_LAYERS = [f"layer{at}" for at in range(1, 5)]
_FAMILIES: Mapping[type[nn.Module], Callable[[Any], Units]] = {
    models.AlexNet: _in_a_row("features", "avgpool", nn.Flatten(), "classifier"),
    models.ConvNeXt: _in_a_row("features", "avgpool", "classifier"),
    models.DenseNet: _in_a_row("features", nn.ReLU(), _POOLED, "classifier"),
    models.EfficientNet: _in_a_row("features", "avgpool", nn.Flatten(), "classifier"),
    models.MNASNet: _in_a_row("layers", Mean(), "classifier"),
    models.MobileNetV2: _in_a_row("features", _POOLED, "classifier"),
    models.MobileNetV3: _in_a_row("features", "avgpool", nn.Flatten(), "classifier"),
    models.RegNet: _in_a_row("stem", "trunk_output", "avgpool", nn.Flatten(), "fc"),
    models.ResNet: _in_a_row("conv1", "bn1", "relu", "maxpool", *_LAYERS, "avgpool", nn.Flatten(), "fc"),
    models.SqueezeNet: _in_a_row("features", "classifier", nn.Flatten()),
    models.SwinTransformer: _in_a_row("features", "norm", "permute", "avgpool", "flatten", "head"),
    models.VGG: _in_a_row("features", "avgpool", nn.Flatten(), "classifier"),
    models.VisionTransformer: _of_transformer,
}


def _parts(read: Read, units: Sequence[tuple[str, nn.Module]]) -> Mapping[str, nn.Module]:
    parts: dict[str, list[nn.Module]] = {}
    waiting: list[nn.Module] = [read]
    for name, unit in units:
        if any(parameter.dim() > 1 for parameter in unit.parameters()):
            parts[name], waiting = [*waiting, unit], []
        elif parts and not _adds(list(parts.values())[-1][-1]):
            list(parts.values())[-1].append(unit)
        else:  # a block that adds its input is a part alone, which may be coupled
            waiting.append(unit)
    return {name: nn.Sequential(*one) for name, one in parts.items()}


def _adds(unit: nn.Module) -> bool:
    """Whether a block adds its input to a function of it."""
    if isinstance(unit, CNBlock | EncoderBlock | SwinTransformerBlock):
        return True
    if hasattr(unit, "downsample"):
        return unit.downsample is None
    if hasattr(unit, "proj") and hasattr(unit, "f"):  # RegNet
        return unit.proj is None
    return bool(getattr(unit, "use_res_connect", getattr(unit, "apply_residual", False)))


def _for_sides(name: str, sides: Sequence[int]) -> Mapping[str, Any]:
    """Return the argument with which a transformer is built for images of some size; other networks read any size."""
    if name.startswith("vit_"):
        if sides[0] != sides[1]:
            raise ValueError(f"{name} reads square images (got {sides[0]}x{sides[1]}); set resize")
        return {"image_size": sides[0]}
    return {"input_size": tuple(sides)} if name.startswith("maxvit_") else {}
