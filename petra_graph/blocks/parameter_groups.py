"""Which parameters have no weight decay, and which are tables: by their modules, and by what blocks state in two attributes.

    undecayed    no weight decay, beside biases and normalisations: a scale of its own, a token
    tables       a row for each token, position or class, beside `nn.Embedding` and a head's weights: positions

Both are patterns of names. Biases and normalisations have no decay as in Goyal et al. 2017, section 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from attrs import frozen
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from petra_graph.blocks.block_kinds import Block, Head


@frozen(kw_only=True)
class ParameterGroups:
    """A stage's parameters, split by whether weight decay (and LARS's trust ratio) applies to them; either may be empty.

    Attributes:
        decayed: those to which it applies.
        undecayed: normalisation parameters, biases, and those that their block names in its attribute `undecayed`.
        tables: those of `decayed` that have a row for each token, position or class: embeddings, a head's weights, and what a block
            names in its attribute `tables`.
    """

    decayed: Sequence[nn.Parameter]
    undecayed: Sequence[nn.Parameter]
    tables: Sequence[nn.Parameter] = ()

    def param_groups(self, *, weight_decay: float) -> list[dict[str, Any]]:
        """Return the two groups as torch's optimizers take them, the decayed parameters first; the others have a decay of 0."""
        return [
            {"params": list(self.decayed), "weight_decay": weight_decay},
            {"params": list(self.undecayed), "weight_decay": 0.0},
        ]

    def hidden_matrices(self) -> list[nn.Parameter]:
        """Return the decayed parameters of two dimensions or more that are not tables, as weights of linear layers and kernels."""
        tables = set(map(id, self.tables))
        return [one for one in self.decayed if one.dim() > 1 and id(one) not in tables]


def parameter_groups(modules: Iterable[Block]) -> ParameterGroups:
    """Split trained parameters by whether weight decay applies: not to biases, normalisation parameters, and what a block names `undecayed`.

    Goyal et al. 2017, section 5.3. Tables are the weights of `nn.Embedding`, those of a head, and what a block names `tables`.
    """
    modules = list(modules)
    tables = {id(parameter) for block in modules for parameter in _tables(block)}
    decayed: list[nn.Parameter] = []
    undecayed: list[nn.Parameter] = []
    seen: set[int] = set()
    for block in modules:
        named = {id(parameter) for parameter in stated(block, "undecayed").values()}
        for module in block.modules():
            normalises = _normalises(module)
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) in seen or not parameter.requires_grad:  # two layers of a block may share one
                    continue
                seen.add(id(parameter))
                exempt = normalises or name.endswith("bias") or id(parameter) in named
                (undecayed if exempt else decayed).append(parameter)
    return ParameterGroups(decayed=decayed, undecayed=undecayed, tables=[one for one in decayed if id(one) in tables])


def _tables(block: nn.Module) -> Iterator[nn.Parameter]:
    yield from stated(block, "tables").values()
    for module in block.modules():
        if isinstance(block, Head) or isinstance(module, nn.Embedding | nn.EmbeddingBag):
            yield from module.parameters(recurse=False)


def _normalises(module: nn.Module) -> bool:
    """Whether a module is one of torch's normalisations, or an author's with a name like theirs: ScaleNorm, LayerNorm2d."""
    if isinstance(module, _NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm):
        return True
    named = re.search(r"Norm([123]d)?$", type(module).__name__) is not None
    return named and not isinstance(module, _ConvNd | nn.Linear)


ATTRIBUTES: tuple[Literal["undecayed"], Literal["tables"]] = ("undecayed", "tables")


def stated(block: nn.Module, attribute: Literal["undecayed", "tables"]) -> Mapping[str, nn.Parameter]:
    """Return the parameters that an attribute of a block names; one that two layers share has both names."""
    patterns = getattr(block, attribute, ())
    parameters = block.named_parameters(remove_duplicate=False)
    return {name: one for name, one in parameters if any(fnmatchcase(name, pattern) for pattern in patterns)}


def stated_fault(block: nn.Module) -> str:
    """Return why an attribute of a block cannot be followed, in the words that end a sentence; "" where all can."""
    parameters = [name for name, _ in block.named_parameters(remove_duplicate=False)]
    buffers = [name for name, _ in block.named_buffers()]
    faults = [
        *(_fault(block, attribute, "parameter", parameters) for attribute in ATTRIBUTES),
        _fault(block, "keep_dtype", "buffer", buffers),
    ]
    return next(filter(None, faults), "")


def _fault(block: nn.Module, attribute: str, noun: str, names: Sequence[str]) -> str:
    patterns = getattr(block, attribute, ())
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        return f"has {attribute} = {patterns!r}, not a tuple of names of {noun}s"
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            return f"has no {noun} {pattern!r}, which its `{attribute}` names; it has {', '.join(names) or 'none'}"
    return ""


# --- tensors that are neither -----------------------------------------------------------------------------------------

_OF_TORCH = frozenset(vars(nn.Module()))
_DEPTH = 3
"""How deep containers in attributes are looked into."""


def unregistered(block: nn.Module) -> Iterator[str]:
    """Yield the names of tensors that require a gradient, in attributes of the block or of its parts, and are not parameters.

    Only what `parameters()` and `buffers()` have is moved to a device, stepped and saved: layers in a plain Python list train on
    silently with the values that they began with. Private attributes of torch's own modules are left out: they hold what was registered a second time, or as it was
    before a parametrization.
    """
    registered = {id(parameter) for parameter in block.parameters()}
    for prefix, part in block.named_modules():
        of_torch = type(part).__module__.startswith("torch.")
        for name, value in vars(part).items():
            if name not in _OF_TORCH and not (of_torch and name.startswith("_")):
                for path, tensor in _tensors(value, f"{prefix}.{name}" if prefix else name, _DEPTH):
                    if tensor.requires_grad and tensor.is_leaf and id(tensor) not in registered:
                        yield path


def _tensors(value: Any, path: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, nn.Module):
        yield from ((f"{path}.{name}", parameter) for name, parameter in value.named_parameters())
    elif depth:
        items: Iterator[tuple[Any, Any]] = iter(())
        if isinstance(value, list | tuple):
            items = iter(enumerate(value))
        elif isinstance(value, Mapping):
            items = iter(value.items())
        for key, item in items:
            yield from _tensors(item, f"{path}[{key!r}]", depth - 1)
