"""The patterns of `[finetune]` as names in each node: which parameters are trained, and which layers have adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, frozen

from petra_graph.blocks import Block, Shape
from petra_graph.errors import Problem, SpecError, likely_meant
from petra_graph.graph_passes import SEPARATOR, MeasuredGraph, NodeGraph, NodeWrapper, is_named
from petra_graph.units import listed
from petra_graph_modules.declared_passes import FinetuneOptions, LoraOptions
from petra_graph_modules.low_rank_adapters import NAMES, adaptable, add_adapters, merge_adapters

_LISTED = 8


@frozen(kw_only=True)
class Tuned(NodeWrapper):
    """A block of which a part is trained, by the names in it."""

    trained: tuple[str, ...]
    """Parameters; the others are frozen."""
    adapted: tuple[str, ...]
    """Linear layers."""
    lora: LoraOptions | None
    """The adapters of these."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """The adapters' matrices."""
        return tuple(f"{layer}.{one}.weight" for layer in self.adapted for one in NAMES)

    def wrap(self, block: Block, inputs: Sequence[Shape]) -> Block:
        for name, parameter in block.named_parameters():
            if name not in self.trained:
                parameter.requires_grad = False
        if (lora := self.lora) is not None:
            add_adapters(block, self.adapted, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout)
            # A layer that several nodes have is one layer with one adapter, as its weight is one.
            weights = {layer: block.shared_parameters.get(f"{layer}.weight") for layer in self.adapted}
            adapters = {
                f"{layer}.{one}.weight": f"{weight} ({layer}.{one})"
                for layer, weight in weights.items()
                if weight is not None
                for one in NAMES
            }
            block.shared_parameters = {**block.shared_parameters, **adapters}
        return block

    def merge(self, block: Block) -> None:
        merge_adapters(block)


def tuned(options: FinetuneOptions, graph: MeasuredGraph) -> NodeGraph:
    """Return the graph with what each node trains.

    Raises:
        SpecError: a pattern names nothing, or nothing would be trained; all problems.
    """
    shapes = graph.shapes
    parameters = {name: [f"{name}{SEPARATOR}{key}" for key in node.trained] for name, node in shapes.items()}
    trained, but, lora = options.trained, options.frozen, options.lora
    able = {name: [*adaptable(graph.block(name))] if lora else [] for name in shapes}
    layers = {name: [f"{name}{SEPARATOR}{key}" for key in keys] for name, keys in able.items()}
    problems = [
        *_unmatched(trained, parameters, "trained"),
        *_unmatched(but, parameters, "frozen"),
        *(_unmatched(lora.on, layers, "lora", "on") if lora else ()),
    ]

    def keys(of_node: Sequence[str], patterns: Sequence[str], but: Sequence[str] = ()) -> tuple[str, ...]:
        own = (one for one in of_node if is_named(patterns, one) and not is_named(but, one))
        return tuple(one.partition(SEPARATOR)[2] for one in own)

    def shared(name: str, layer: str) -> tuple[str, str] | None:
        """Return what a layer is called that several nodes have."""
        weight = shapes[name].shared.get(f"{layer}.weight")
        return None if weight is None else (weight.label, layer)

    named = {(name, layer) for name in shapes for layer in (keys(layers[name], lora.on) if lora else ())}
    in_several = {shared(*one) for one in named} - {None}
    tunings = {
        name: Tuned(
            trained=keys(parameters[name], trained, but),
            adapted=tuple(one for one in able[name] if (name, one) in named or shared(name, one) in in_several),
            lora=lora,
        )
        for name in graph.nodes
    }
    if not problems and not any(one.trained or one.adapted for one in tunings.values()):
        hint = 'name what is trained, as in trained = ["head"], or give adapters: lora = { on = ["*q_proj"] }'
        problems.append(Problem(message="nothing of the network would be trained", hint=hint, path=("finetune",)))
    if problems:
        raise SpecError(problems)
    nodes = {name: evolve(node, wrappers=(*node.wrappers, tunings[name])) for name, node in graph.nodes.items()}
    return NodeGraph(nodes=nodes)


def warnings(_: FinetuneOptions, graph: MeasuredGraph) -> Iterator[str]:
    """Name tied weights of which one use has an adapter."""
    uses: dict[str, dict[str, bool]] = {}
    for name, node in graph.nodes.items():
        adapted = {f"{layer}.weight" for one in node.wrappers if isinstance(one, Tuned) for layer in one.adapted}
        for key, shared in graph.shapes[name].shared.items():
            uses.setdefault(shared.label, {})[key] = key in adapted
    for label, keys in uses.items():
        if len(keys) > 1 and any(keys.values()):
            layers = [key.rpartition(".")[0] for key, has_adapter in keys.items() if has_adapter]
            yield (
                f"an adapter of {' and '.join(layers)} is no adapter of the other layers that have {label}, too: the trained network has two "
                "values where the tied one has one, so it is exported as torch-export or onnx, and not as safetensors"
            )


def _unmatched(patterns: Sequence[str], names: Mapping[str, Sequence[str]], *key: str) -> Iterator[Problem]:
    """Yield the patterns that name nothing, each with the nearest names."""
    every = [one for of_node in names.values() for one in of_node]
    what = "linear layer that can have an adapter" if "on" in key else "trained parameter"
    forms = list(dict.fromkeys(form for one in every for form in (one, *one.split(SEPARATOR, 1))))
    for pattern in patterns:
        if not any(is_named([pattern], one) for one in every):
            near = likely_meant(pattern.strip("*./"), forms)
            meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            hint = f"{meant}there are {listed(every, _LISTED)}" if every else "the network has none"
            message = f"{pattern!r} names no {what} of the network"
            yield Problem(message=message, hint=hint, path=("finetune", *key))
