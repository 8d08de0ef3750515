"""The parts of which new packages are made: a working plugin of each kind, with its options, its code and its test.

Decision: a part is the Python in `parts/`, under names of its own (`rev-tanh` in `petra_graph_examples`), which a new
package replaces. plugins/README.md shows the same files, and tests compare them, so that the guide and what the tool writes
cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

from attrs import frozen

from petra_graph.kinds.all_kinds import KINDS
from petra_graph.kinds.plugin_kind import Part, PluginKind

EXAMPLES = "petra-graph-examples"
"""The distribution that the parts are written as."""
DECLARED = "declared.py"


PARTS: Sequence[Part] = tuple(part for kind in KINDS for part in kind.parts)
"""In the order of the guide."""
KIND_OF: Mapping[str, PluginKind] = {part.kind: kind for kind in KINDS for part in kind.parts}


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
