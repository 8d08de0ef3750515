from attrs import frozen
from petra_graph.plugins import AtLeast, DataFacts, NodeSpec, SpecError, option


@frozen(kw_only=True)
class TanhNetOptions:
    """The size of the network."""

    blocks: int = option("number of reversible blocks", default=2, validator=AtLeast(1))
    channels: int = option("channels of each stream", default=4, validator=AtLeast(1))


def tanh_net(options: TanhNetOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """A stem, reversible blocks and a head."""
    if len(facts.shape) != 3 or facts.classes is None:
        raise SpecError("this network reads images [channels, height, width] in classes", "choose such a data set")
    return (
        NodeSpec(name="stem", block="image-patches", options={"channels": options.channels}),
        NodeSpec(name="block", block="rev-tanh", kind="reversible", repeat=options.blocks),
        NodeSpec(name="head", block="mean-head", options={"outputs": facts.classes}),
    )
