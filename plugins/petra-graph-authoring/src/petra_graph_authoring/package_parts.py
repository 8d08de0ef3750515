"""The parts of which new packages are made: a working plugin of each kind, with its options, its code and its test.

Decision: a part is the Python in `parts/`, under names of its own (`rev-tanh` in `petra_graph_examples`), which a new
package replaces. The guide in plugins/ shows the same files, and tests compare them, so that the guide and what the tool writes
cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

from attrs import frozen

EXAMPLES = "petra-graph-examples"
"""The distribution that the parts are written as."""
DECLARED = "declared.py"


@frozen(kw_only=True)
class Part:
    """A working plugin that `petra-graph new plugin` writes, and that the guide shows.

    Attributes:
        group: of its entry point, without "petra_graph."
        kind: as in `--KIND`; its files are in the folder of that name, with underscores.
        summary: for the help of the command line.
        example: the plugin's name, as the part is written.
        suffix: what tells the plugin's name from the others of one package.
        entry: what its entry point names, as the part is written, in the package: "declared:RevTanh".
        stand_in: a first-party block with the same options, in a package without this part.
        options: of the plugin in the example specification, in TOML.
        without: the table of the example specification in a package without this part.
    """

    group: str
    kind: str
    summary: str
    example: str
    suffix: str
    entry: str
    stand_in: str = ""
    options: str = ""
    without: str = ""


PARTS: Sequence[Part] = (
    Part(
        group="blocks",
        kind="block",
        summary="a reversible block: an additive coupling",
        example="rev-tanh",
        suffix="block",
        entry="declared:RevTanh",
        stand_in="rev-basic",
    ),
    Part(
        group="blocks",
        kind="buffered-block",
        summary="a block that may change shapes, whose input is stored",
        example="image-patches",
        suffix="stem",
        entry="declared:ImagePatches",
        stand_in="conv-stem",
    ),
    Part(
        group="blocks",
        kind="head-block",
        summary="a last block, whose output the loss reads",
        example="mean-head",
        suffix="head",
        entry="declared:MeanHead",
        stand_in="pool-linear",
    ),
    Part(
        group="architectures",
        kind="architecture",
        summary="a network by name",
        example="tanh-net",
        suffix="net",
        entry="declared:tanh_net",
        options="blocks = 2, channels = 8",
    ),
    Part(
        group="optimizers",
        kind="optimizer",
        summary="an optimizer",
        example="sign-descent",
        suffix="optimizer",
        entry="declared:SignDescent",
        options="lr = 0.01, weight_decay = 1e-4",
        without='[optimizer]\nname = "sgd"\noptions = { lr = 0.05, weight_decay = 1e-4 }',
    ),
    Part(
        group="lr_schedules",
        kind="lr-schedule",
        summary="a learning-rate schedule",
        example="inverse-root",
        suffix="schedule",
        entry="schedule:inverse_root",
    ),
    Part(
        group="losses",
        kind="loss",
        summary="a loss with its metrics",
        example="wide-margin",
        suffix="loss",
        entry="declared:WideMargin",
        options="margin = 1.0",
    ),
    Part(
        group="metrics",
        kind="metric",
        summary="a metric over a whole evaluation",
        example="worst-class",
        suffix="metric",
        entry="declared:WorstClass",
        options="least = 2",
    ),
    Part(
        group="datasets",
        kind="dataset",
        summary="a data set",
        example="noisy-stripes",
        suffix="data",
        entry="declared:NoisyStripes",
        options="samples = 512",
    ),
    Part(
        group="loggers",
        kind="logger",
        summary="a place for a run's values",
        example="text-lines",
        suffix="logger",
        entry="logger:TextLines",
    ),
    Part(
        group="callbacks",
        kind="callback",
        summary="an observer of a run, which may end it",
        example="time-limit",
        suffix="callback",
        entry="callback:TimeLimit",
        options="seconds = 600.0",
    ),
)
"""In the order of the guide."""


def part_files(part: Part) -> Mapping[str, str]:
    """Return a part's files by name, its options first."""
    folder = files(__package__) / "parts" / part.kind.replace("-", "_")
    names = [one.name for one in folder.iterdir() if one.name.endswith(".py")]
    return {
        name: (folder / name).read_text("utf-8") for name in sorted(names, key=lambda name: (name != DECLARED, name))
    }


def common_test() -> str:
    """Return the test that every package has."""
    return (files(__package__) / "parts" / "package" / "test_declared.py").read_text("utf-8")
