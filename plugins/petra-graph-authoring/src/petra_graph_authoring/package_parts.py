"""The parts of which new packages are made: a working plugin of each kind, with its options, its code and its test.

Decision: a part is the Python in `parts/`, under names of its own (`rev-tanh` in `petra_graph_examples`), which a new
package replaces. plugins/README.md shows the same files, and tests compare them, so that the guide and what the tool writes
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
        module: the file of its code, if that is not the declaration's own, and what that file is; None: the code has no file of its own.
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
    module: tuple[str, str] | None = None
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
        module=("blocks.py", "The blocks, imported when a network is built."),
        stand_in="rev-basic",
    ),
    Part(
        group="blocks",
        kind="buffered-block",
        summary="a block that may change shapes, whose input is stored",
        example="image-patches",
        suffix="stem",
        entry="declared:ImagePatches",
        module=("blocks.py", "The blocks, imported when a network is built."),
        stand_in="conv-stem",
    ),
    Part(
        group="blocks",
        kind="head-block",
        summary="a last block, whose output the loss reads",
        example="mean-head",
        suffix="head",
        entry="declared:MeanHead",
        module=("blocks.py", "The blocks, imported when a network is built."),
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
        module=("optimizer.py", "The optimizer."),
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
        module=("schedule.py", "The learning-rate schedule."),
    ),
    Part(
        group="losses",
        kind="loss",
        summary="a loss with its metrics",
        example="wide-margin",
        suffix="loss",
        entry="declared:WideMargin",
        module=("loss.py", "The loss."),
        options="margin = 1.0",
    ),
    Part(
        group="metrics",
        kind="metric",
        summary="a metric over a whole evaluation",
        example="worst-class",
        suffix="metric",
        entry="declared:WorstClass",
        module=("metric.py", "The metric."),
        options="least = 2",
    ),
    Part(
        group="datasets",
        kind="dataset",
        summary="a data set",
        example="noisy-stripes",
        suffix="data",
        entry="declared:NoisyStripes",
        module=("data.py", "The data set."),
        options="samples = 512",
    ),
    Part(
        group="loggers",
        kind="logger",
        summary="a place for a run's values",
        example="text-lines",
        suffix="logger",
        entry="logger:TextLines",
        module=("logger.py", "The logger."),
    ),
    Part(
        group="callbacks",
        kind="callback",
        summary="an observer of a run, which may end it",
        example="time-limit",
        suffix="callback",
        entry="callback:TimeLimit",
        module=("callback.py", "The callback."),
        options="seconds = 600.0",
    ),
)
"""In the order of the guide."""


def part_files(part: Part) -> Mapping[str, str]:
    """Return a part's files by name, its options first."""
    folder = files(__package__) / "parts" / part.kind.replace("-", "_")
    found = {one.name: one.read_text("utf-8") for one in folder.iterdir() if one.name.endswith(".py")}
    return {name: found[name] for name in sorted(found, key=lambda name: (name != DECLARED, name))}


@frozen(kw_only=True)
class Names:
    """The forms of a plugin's name."""

    plain: str
    """In a specification: "rev-tanh"."""
    snake: str
    camel: str

    @classmethod
    def of(cls, plain: str) -> Names:
        """Return the forms of a name in small letters, digits and hyphens."""
        words = plain.split("-")
        camel = "".join(word[:1].upper() + word[1:] for word in words)
        return cls(plain=plain, snake="_".join(words), camel=camel)

    def replaced(self, text: str, new: Names) -> str:
        """Return a text with another name in all its forms."""
        for old, by in zip(self.forms, new.forms, strict=True):
            text = text.replace(old, by)
        return text

    @property
    def forms(self) -> Sequence[str]:
        return (self.plain, self.camel, self.snake)


def common_test() -> str:
    """Return the test that every package has."""
    return (files(__package__) / "parts" / "package" / "test_declared.py").read_text("utf-8")
