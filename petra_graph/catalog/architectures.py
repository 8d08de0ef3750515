"""Networks by name: ResNets and RevNets as the paper trains them.

The paper's stages, one node each (S stem, R reversible, D downsampling and buffered, H head):

    RevNet18  S RR DR DR DR H
    RevNet34  S RRR DRRR DRRRRR DRR H
    RevNet50  S DRR DRRR DRRRRR DRR H        RevNet101: 23 blocks in the third group

Residual blocks of a RevNet couple two streams. Each stream has the width of the ResNet, which doubles the channels in total; the number of
parameters is about the same, since the residual function reads one stream (PETRA section 4.1; Gomez et al. 2017).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from petra_graph.plugins import AtLeast, DataFacts, GreaterThan, LessThan, NodeSpec

Depth = Annotated[Literal[18, 34, 50, 101], "depth of the ResNet: its weighted layers"]
Width = Annotated[float, "multiplier of every layer's channels", GreaterThan(0)]
Classes = Annotated[int | None, "outputs of the head; default: the data set's classes"]
Stem = Annotated[Literal["auto", "cifar", "imagenet"], "3x3, or 7x7 at stride 2 and 2x2 max-pooling; auto: by size"]
Dropout = Annotated[float, "dropout probability inside reversible blocks", AtLeast(0), LessThan(1)]
_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def revnet(
    facts: DataFacts,
    *,
    depth: Depth,
    width: Width = 1.0,
    classes: Classes = None,
    stem: Stem = "auto",
    dropout: Dropout = 0.0,
) -> tuple[NodeSpec, ...]:
    """RevNet 18, 34, 50 or 101, for images of any size."""
    of_blocks = {"dropout": dropout} if dropout else {}
    return _nodes(facts, depth, width, classes=classes, stem=stem, reversible=of_blocks)


def resnet(
    facts: DataFacts, *, depth: Depth, width: Width = 1.0, classes: Classes = None, stem: Stem = "auto"
) -> tuple[NodeSpec, ...]:
    """ResNet 18, 34, 50 or 101, for images of any size; no node is reversible."""
    return _nodes(facts, depth, width, classes=classes, stem=stem, reversible=None)


def _nodes(
    facts: DataFacts, depth: int, width: float, *, classes: int | None, stem: str, reversible: dict[str, Any] | None
) -> tuple[NodeSpec, ...]:
    """Return the stem, the residual blocks and the head; `reversible` are options of reversible blocks, None for a ResNet."""
    facts.expect_images("the network")
    base = before = max(1, round(64 * width))
    first = {"channels": base, "streams": 1 if reversible is None else 2}
    if stem == "imagenet" or (stem == "auto" and min(facts.shape[1:]) >= 64):  # noqa: PLR2004  pixels
        first |= {"kernel": 7, "stride": 2, "pool": 2}
    nodes = [NodeSpec(name="stem", block="conv-stem", options=first)]
    form = "basic" if depth in (18, 34) else "bottleneck"
    for group, count in enumerate(_BLOCKS[depth]):
        # 64, 128, 256, 512 channels; a bottleneck's output has four times those of its hidden layer (He et al. 2016, table 1).
        wide = max(1, round(64 * 2**group * width))
        hidden = {} if form == "basic" else {"hidden": wide}
        channels = wide if form == "basic" else 4 * wide
        for index in range(count):
            name, stride = f"layer{group + 1}.{index}", 2 if group > 0 and index == 0 else 1
            shape = {"channels": channels, **hidden, "stride": stride}
            if reversible is None:
                node = NodeSpec(name=name, block=f"res-{form}", options=shape)
            elif stride != 1 or channels != before:
                node = NodeSpec(name=name, block=f"down-{form}", kind="buffered", options=shape)
            else:
                node = NodeSpec(name=name, block=f"rev-{form}", kind="reversible", options=hidden | reversible)
            nodes.append(node)
            before = channels
    return *nodes, NodeSpec(name="head", block="pool-linear", options={"outputs": facts.outputs(classes)})
