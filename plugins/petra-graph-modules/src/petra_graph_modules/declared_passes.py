"""The tables `[conversion]` and `[finetune]` as declarations of graph passes; the module does not import torch."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from petra_graph.plugins import AtLeast, Each, GraphPassDeclaration, GreaterThan, Length, LessThan, option


@frozen(kw_only=True)
class ConversionOptions:
    """Chains of residual nodes made reversible: nodes that read the one before alone, and map one stream to one of its shape."""

    coupling: Literal["dual-residual", "midpoint", "none"] = option(
        '"dual-residual" (Dr2Net), "midpoint", or "none": the network itself'
    )
    nodes: tuple[str, ...] = option(
        'nodes that are converted, by name or pattern: "layer.*"', default=("*",), validator=Length(at_least=1)
    )
    anchors: int | None = option(
        "every n-th node of a chain is buffered, where reconstruction begins anew; default: none",
        default=None,
        unit="nodes",
        validator=AtLeast(1),
    )
    alpha: float = option("of dual residual nodes: coefficient of their own connection at the start", default=1.0)
    beta: float = option(
        "of dual residual nodes: coefficient of the node before at the start", default=0.1, validator=GreaterThan(0)
    )


@frozen(kw_only=True)
class LoraOptions:
    """Low-rank adapters of linear layers (LoRA), trained beside what `trained` names."""

    on: tuple[str, ...] = option(
        'linear layers, by name or pattern: "*q_proj", "layer.*/attention.*"', validator=Length(at_least=1)
    )
    rank: int = option("features between the two matrices of an adapter", default=8, validator=AtLeast(1))
    alpha: float = option("the adapter's output is multiplied by alpha / rank", default=8.0, validator=GreaterThan(0))
    dropout: float = option(
        "probability of dropping an element of the adapter's input",
        default=0.0,
        validator=[AtLeast(0), LessThan(1)],
    )


@frozen(kw_only=True)
class FinetuneOptions:
    """What is trained of a network; all other parameters are frozen: without gradient, optimizer state and weight decay."""

    trained: tuple[str, ...] = option(
        'nodes and parameters that are trained, by name or pattern: "head", "*norm*", "*.bias"; default: adapters alone',
        default=(),
        validator=Each(Length(at_least=1)),
    )
    frozen: tuple[str, ...] = option(
        'exceptions from `trained`, as in trained = ["*"], frozen = ["stem"]',
        default=(),
        validator=Each(Length(at_least=1)),
    )
    lora: LoraOptions | None = option("low-rank adapters", default=None)


CONVERSION = GraphPassDeclaration(
    summary="Chains of residual nodes made reversible.",
    options=ConversionOptions,
    build="petra_graph_modules.converted_graph:converted",
    notes="petra_graph_modules.converted_graph:notes",
)
FINETUNE = GraphPassDeclaration(
    summary="A part of the network is trained, or adapters of it; default: all parameters.",
    options=FinetuneOptions,
    build="petra_graph_modules.finetuned_graph:tuned",
    warnings="petra_graph_modules.finetuned_graph:warnings",
    order=1,
)
