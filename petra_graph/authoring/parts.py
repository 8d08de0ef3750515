"""The parts of which new packages are made: a working plugin of each kind, with its declaration, its code and its test.

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
    """A plugin of one kind."""

    kind: str
    """As in `--KIND`; its files are in the folder of that name, with underscores."""
    group: str
    """Of its entry point, short: "blocks"."""
    summary: str
    """For the help of the command line."""
    example: str
    """The plugin's name, as the part is written."""
    suffix: str
    """What tells the plugin's name from those of other kinds in one package."""
    stand_in: str = ""
    """A first-party block with the same options, in a package without this part."""

    def files(self) -> Mapping[str, str]:
        """Return the part's files by name, the declaration first."""
        folder = files(__package__) / "parts" / self.kind.replace("-", "_")
        found = {one.name: one.read_text("utf-8") for one in folder.iterdir() if one.name.endswith(".py")}
        return {name: found[name] for name in sorted(found, key=lambda name: (name != DECLARED, name))}

    @property
    def declaration(self) -> str:
        return Names.of(self.example).constant


@frozen(kw_only=True)
class Names:
    """The forms of a plugin's name."""

    plain: str
    """In a specification: "rev-tanh"."""
    snake: str
    camel: str
    constant: str

    @classmethod
    def of(cls, plain: str) -> Names:
        """Return the forms of a name in small letters, digits and hyphens."""
        words = plain.split("-")
        camel = "".join(word[:1].upper() + word[1:] for word in words)
        return cls(plain=plain, snake="_".join(words), camel=camel, constant="_".join(words).upper())

    def replaced(self, text: str, new: Names) -> str:
        """Return a text with another name in all its forms."""
        for old, by in zip(self.forms, new.forms, strict=True):
            text = text.replace(old, by)
        return text

    @property
    def forms(self) -> Sequence[str]:
        return (self.plain, self.camel, self.constant, self.snake)


PARTS: Sequence[Part] = (
    Part(
        kind="block",
        group="blocks",
        summary="a reversible block: an additive coupling",
        example="rev-tanh",
        suffix="block",
        stand_in="rev-basic",
    ),
    Part(
        kind="buffered-block",
        group="blocks",
        summary="a block that may change shapes, whose input is stored",
        example="image-patches",
        suffix="stem",
        stand_in="conv-stem",
    ),
    Part(
        kind="head-block",
        group="blocks",
        summary="a last block, whose output the loss reads",
        example="mean-head",
        suffix="head",
        stand_in="pool-linear",
    ),
    Part(
        kind="architecture",
        group="architectures",
        summary="a network by name",
        example="tanh-net",
        suffix="net",
    ),
    Part(
        kind="optimizer",
        group="optimizers",
        summary="an optimizer",
        example="sign-descent",
        suffix="optimizer",
    ),
    Part(
        kind="lr-schedule",
        group="lr_schedules",
        summary="a learning-rate schedule",
        example="inverse-root",
        suffix="schedule",
    ),
    Part(kind="loss", group="losses", summary="a loss with its metrics", example="wide-margin", suffix="loss"),
    Part(kind="dataset", group="datasets", summary="a data set", example="noisy-stripes", suffix="data"),
    Part(
        kind="logger",
        group="loggers",
        summary="a place for a run's values",
        example="text-lines",
        suffix="logger",
    ),
    Part(
        kind="callback",
        group="callbacks",
        summary="an observer of a run, which may end it",
        example="time-limit",
        suffix="callback",
    ),
)
"""In the order of the guide."""


def common_test() -> str:
    """Return the test that every package has."""
    return (files(__package__) / "parts" / "package" / "test_declared.py").read_text("utf-8")
