"""Networks of torchvision, built once a process, cut, and their pieces copied out with values of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx, nn
from torchvision import __version__, models

from petra_graph_torchvision.cutting import CannotCut, Piece, cut, traced
from petra_graph_torchvision.declared import PieceOptions
from petra_graph_torchvision.deferred import DeferredValues, Steps, carry_out
from petra_graph_torchvision.table import nodes

Arguments = tuple[tuple[str, Any], ...]
_WITHOUT_AUXILIARY = {"aux_logits": False, "init_weights": True}
_FIXED: Mapping[str, Mapping[str, Any]] = {"googlenet": _WITHOUT_AUXILIARY, "inception_v3": _WITHOUT_AUXILIARY}
"""Arguments that no option changes: a second head would have a loss of its own, and a graph of nodes has one."""


@frozen(eq=False)
class CutNetwork:
    """A network whose drawn values are held back, and its pieces."""

    module: nn.Module
    """Tensors without values are on torch's meta device."""
    graph: fx.Graph
    pieces: Mapping[str, Piece]
    """By name, in order."""
    steps: Mapping[str, Steps]
    """By tensor, what draws its values; the others have theirs."""


def cut_network(options: PieceOptions) -> CutNetwork:
    """Return the network that a piece's options describe.

    Raises:
        ValueError: torchvision refuses the arguments, or the network cannot be cut.
    """
    return build_and_cut(options.network, options.classes, options.sides, tuple(sorted(options.arguments.items())))


@cache
def build_and_cut(name: str, classes: int, sides: tuple[int, int], arguments: Arguments) -> CutNetwork:
    """Return a network, which stays in memory without its drawn values; see `cut_network`."""
    given = dict(arguments)
    fixed = {"num_classes": classes, "weights": None, **_FIXED.get(name, {}), **_for_sides(name, sides)}
    if taken := sorted(fixed.keys() & given.keys()):
        raise ValueError(f"arguments cannot have {', '.join(taken)}, which follow from the network and the data")
    held = DeferredValues()
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), held:
            module: nn.Module = models.get_model(name, **fixed, **given)
    except TypeError as error:
        raise ValueError(f"torchvision's {name} does not take these arguments: {error}") from None
    try:
        graph = traced(module)
        pieces = cut(module, graph)
    except CannotCut as error:
        raise ValueError(f"{name} cannot be cut into nodes: {error}") from None
    return CutNetwork(module, graph, {piece.name: piece for piece in pieces}, _without_values(module, held))


def _for_sides(name: str, sides: tuple[int, int]) -> Mapping[str, Any]:
    """Return the argument with which a transformer is built for images of some size; other networks read any size."""
    if name.startswith("vit_"):
        if sides[0] != sides[1]:
            raise ValueError(f"{name} reads square images (got {sides[0]}x{sides[1]}); set resize")
        return {"image_size": sides[0]}
    return {"input_size": sides} if name.startswith("maxvit_") else {}


def _without_values(module: nn.Module, held: DeferredValues) -> dict[str, Steps]:
    """Move the tensors whose values are held back to the meta device; return how each would be drawn."""
    steps: dict[str, Steps] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if drawn := held.take(tensor):
            steps[name] = drawn
            _put(module, name, tensor, torch.empty_like(tensor, device="meta"))
    return steps


def _put(module: nn.Module, name: str, tensor: Tensor, values: Tensor) -> None:
    """Let a parameter or buffer be another one with these values."""
    path, _, last = name.rpartition(".")
    trained = isinstance(tensor, nn.Parameter)
    setattr(module.get_submodule(path), last, nn.Parameter(values, tensor.requires_grad) if trained else values)


Forward = Callable[..., tuple[Tensor, ...]]


def find_piece(options: PieceOptions) -> tuple[CutNetwork, Piece]:
    """Return a network and the piece of it that options name.

    Raises:
        ValueError: as `cut_network`; or this torchvision cuts the network at other places than the table says.
    """
    network = cut_network(options)
    if list(network.pieces) != list(nodes(options.network)):
        differ = sorted(network.pieces.keys() ^ nodes(options.network).keys())
        message = f"torchvision {__version__} has {options.network} with other blocks than this package knows"
        raise ValueError(f"{message}: {', '.join(differ)}")
    if options.node not in network.pieces:
        raise ValueError(f"{options.network} has no node {options.node!r}; it has {', '.join(network.pieces)}")
    return network, network.pieces[options.node]


def copy_piece(owner: nn.Module, network: CutNetwork, piece: Piece) -> Forward:
    """Give a module the submodules and parameters of one piece, under their names in torchvision's `state_dict`.

    The values are drawn with torch's random numbers of now, as torchvision draws them, on the default device; on the meta
    device there are none.

    Returns:
        the piece's forward, a function (owner, *streams) -> streams.
    """
    made = fx.GraphModule(network.module, _graph(piece))
    for name, child in copy.deepcopy(dict(made.named_children())).items():
        owner.add_module(name, child)
    for name, parameter in copy.deepcopy(dict(made.named_parameters(recurse=False))).items():
        owner.register_parameter(name, parameter)
    for name, buffer in copy.deepcopy(dict(made.named_buffers(recurse=False))).items():
        owner.register_buffer(name, buffer)
    _draw(owner, network.steps)
    for node in piece.operations:
        if node.op == "call_module" and set(piece.reads) & set(node.all_input_nodes):
            _keep_input(owner.get_submodule(str(node.target)))
    return type(made).forward


def _draw(owner: nn.Module, steps: Mapping[str, Steps]) -> None:
    device = torch.get_default_device()
    for name, tensor in [*owner.named_parameters(), *owner.named_buffers()]:
        values = tensor.detach()
        if name in steps and device.type != "meta":
            values = torch.empty_like(tensor, device="cpu")
            carry_out(steps[name], values)
        _put(owner, name, tensor, values.to(device))


def _keep_input(module: nn.Module) -> None:
    """Let a layer that is the first to read a stream not write to it."""
    if getattr(module, "inplace", False):
        vars(module)["inplace"] = False


def _graph(piece: Piece) -> fx.Graph:
    """Return a piece's operations as a graph of their own."""
    graph = fx.Graph()
    own = {node: graph.placeholder(f"stream{index}") for index, node in enumerate(piece.reads)}

    def moved(node: fx.Node) -> fx.Node:
        if node not in own:  # a parameter, read where it is used
            own[node] = graph.node_copy(node)
        return own[node]

    for node in piece.operations:
        own[node] = graph.node_copy(node, moved)
        if set(piece.reads) & set(node.all_input_nodes) and own[node].kwargs.get("inplace"):
            own[node].kwargs = {**own[node].kwargs, "inplace": False}
    graph.output(tuple(own[node] for node in piece.returns))
    return graph
