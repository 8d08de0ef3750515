"""The kinds of blocks: reversible, buffered, head; and which of their parameters have no weight decay, or are tables.

Decision: kinds are types. A block's abilities are those that it inherits, so a network cannot claim an inverse that no
code provides, and no code reads a flag.

Streams are the tensors on an edge of the graph, batch dimension first. A block reads the streams of all its inputs in
declared order and returns a tuple of streams; one that returns one stream may return the tensor.

Biases and normalisations have no weight decay, as in Goyal et al. 2017, section 5.3; embeddings and a head's weights are tables.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from petra_graph.blocks.differentiation import backpropagate, frozen_statistics, leaf
from petra_graph.blocks.randomness import reseed

Shape = tuple[int, ...]
"""The shape of one stream without its batch dimension."""

Streams = tuple[Tensor, ...]


class Block(nn.Module):
    """A node's module, built as `cls(inputs, **options)` from the shapes that it will read; its keyword parameters are its options.

    Subclass `Buffered`, `Reversible` (usually through `AdditiveCoupling`) or `Head`, not this.
    """

    kind: ClassVar[Literal["reversible", "buffered", "head"]]
    streams: ClassVar[int | None] = None
    """The number of tensors that the block reads; None: any number."""
    undecayed: ClassVar[Sequence[str]] = ()
    """Names of parameters without weight decay, beside biases and normalisations: ("scale", "token.*"); * is any text."""
    tables: Sequence[str] = ()
    """Names of parameters with a row for each token, position or class, beside `nn.Embedding` and a head's: ("positions",), which an instance may set."""

    draws: bool = True
    """Whether its own code may draw random numbers, or ask for `micro_batch()`. A class that says False is given no seeds, which takes less
    time. Torch's modules inside it, such as `nn.Dropout`, are known without being told; classes that inherit from it say it again."""

    keep_dtype: ClassVar[Sequence[str]] = ()
    """Names of buffers that keep the type in which they are made, such as float64 in a network of float32: ("table.*",); * is any text."""

    shared_parameters: Mapping[str, str] = {}
    """Parameters and buffers that other nodes have too, each with one name for all of them: {"weight": "embedding"}, which an instance may set."""

    begun_anew: Sequence[str] = ()
    """Names of tensors that a file of weights may lack, such as those of an adapter: ("*.lora_?.weight",), which an instance may set; * is any text."""

    of_network: Callable[[], nn.Module] | None = None
    """What makes the network of which it is a part, whose `state_dict` has its names, by which it is exported; an instance may set it."""

    drawn_as: ClassVar[str | None] = None
    """The name under which all blocks of one constructor draw, in place of their nodes' names."""

    def __init__(self, inputs: Sequence[Shape]) -> None:
        super().__init__()
        self.inputs = tuple(inputs)

    @abstractmethod
    def forward(self, *streams: Tensor) -> Streams | Tensor:
        """Map input streams [n, *shape] to output streams [n, *shape]."""

    def __call__(self, *streams: Tensor) -> Streams:
        """Return the output streams of `forward`."""
        returned = super().__call__(*streams)
        return (returned,) if isinstance(returned, Tensor) else returned


class Buffered(Block):
    """A block without an inverse: its input waits in a buffer, and its backward runs it again."""

    kind = "buffered"


class Head(Block):
    """The last block: what it returns, the loss compares with the targets: one tensor, or a tuple of them."""

    kind = "head"

    def returned(self, streams: Streams) -> Any:
        """Return what the loss is called with, of the streams of a forward: a tensor, or tensors in a structure."""
        return streams[0] if len(streams) == 1 else streams


class Reversed(NamedTuple):
    """The result of a backward: a segment's input (reconstructed by a reversible block), and the gradient with respect to it."""

    inputs: Streams
    gradients: Streams


class Reversible(Block):
    """A block whose input follows from its output, in its shapes; they may differ from the output's.

    Override `inverse`. Override `reverse_vjp` too where inverse and gradient share work, as couplings do.
    """

    kind = "reversible"

    @abstractmethod
    def inverse(self, *outputs: Tensor) -> Streams | Tensor:
        """Reconstruct the input streams from the output streams."""

    def invert(self, *outputs: Tensor) -> Streams:
        """Return the input streams of `inverse`."""
        returned = self.inverse(*outputs)
        return (returned,) if isinstance(returned, Tensor) else returned

    def reverse_vjp(self, outputs: Streams, gradients: Streams) -> Reversed:
        """Reconstruct the input, and differentiate there with the current parameters.

        Parameter gradients are added to each parameter's `grad`. This default evaluates the block twice: once to invert, once to
        differentiate; running statistics follow the second alone (PETRA algorithm 1, lines 13 to 18).

        Args:
            outputs: the output streams, without a graph.
            gradients: the loss's gradient with respect to each of them.
        """
        with torch.no_grad(), frozen_statistics(self):
            inputs = self.invert(*outputs)
        reseed()
        leaves = tuple(map(leaf, inputs))
        with torch.enable_grad():
            recomputed = self(*leaves)
        # The gradient first: what its graph has saved is free before the streams go on.
        found = backpropagate(recomputed, gradients, leaves)
        return Reversed(tuple(stream.detach() for stream in leaves), found)


@frozen(kw_only=True)
class ParameterGroups:
    """A stage's trained parameters, split by whether weight decay applies to them; either may be empty."""

    decayed: Sequence[nn.Parameter]
    undecayed: Sequence[nn.Parameter]
    tables: Sequence[nn.Parameter] = ()
    """Those of `decayed` that have a row for each token, position or class."""

    def param_groups(self, *, weight_decay: float) -> list[dict[str, Any]]:
        """Return the two groups as torch's optimizers take them, the decayed parameters first; the others have a decay of 0."""
        both = ((self.decayed, weight_decay), (self.undecayed, 0.0))
        return [{"params": list(parameters), "weight_decay": decay} for parameters, decay in both]

    def hidden_matrices(self) -> list[nn.Parameter]:
        """Return the decayed parameters of two dimensions or more that are not tables, as weights of linear layers and kernels."""
        tables = set(self.tables)
        return [one for one in self.decayed if one.dim() > 1 and one not in tables]


def parameter_groups(modules: Iterable[Block]) -> ParameterGroups:
    """Split the parameters of blocks that are trained; one that two layers share counts where it is first."""
    spared: dict[nn.Parameter, bool] = {}
    tables = set[nn.Parameter]()
    for block in modules:
        tables |= _named_by(block, "tables")
        exempt = _named_by(block, "undecayed")
        for module in block.modules():
            own = dict(module.named_parameters(recurse=False))
            if isinstance(block, Head) or isinstance(module, nn.Embedding | nn.EmbeddingBag):
                tables |= set(own.values())
            # Torch's normalisations, and an author's with a name like theirs (ScaleNorm, LayerNorm2d); NormFreeConv is a convolution.
            like_them = re.search(r"Norm([123]d)?$", type(module).__name__) and not isinstance(
                module, _ConvNd | nn.Linear
            )
            normalises = like_them or isinstance(module, _NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm)
            for name, parameter in own.items():
                if parameter.requires_grad:
                    spared.setdefault(parameter, bool(normalises or name.endswith("bias") or parameter in exempt))
    decayed = [one for one, without in spared.items() if not without]
    undecayed = [one for one, without in spared.items() if without]
    return ParameterGroups(decayed=decayed, undecayed=undecayed, tables=[one for one in decayed if one in tables])


def _named_by(block: nn.Module, attribute: Literal["undecayed", "tables"]) -> set[nn.Parameter]:
    """Return the parameters that an attribute of a block names; one that two layers share has both names."""
    patterns, named = getattr(block, attribute, ()), block.named_parameters(remove_duplicate=False)
    return {one for name, one in named if any(fnmatchcase(name, pattern) for pattern in patterns)}
