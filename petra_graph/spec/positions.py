"""The positions of the keys and values of a TOML text.

`tomllib` gives values without positions, so a second parser makes a syntax tree of the text. Paths include the indices
of arrays: the third `[[graph.node]]` is ("graph", "node", 2).

Decision: tree-sitter, whose tree has the position of every key and value. tomlkit keeps comments and order, but tells
no positions; a parser of our own would be a second opinion on what TOML is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import field, frozen

from petra_graph.errors import Path, Where

if TYPE_CHECKING:
    from tree_sitter import Node

KEYS = ("bare_key", "quoted_key", "dotted_key")


@frozen(kw_only=True)
class Span:
    """The positions of a key and of its value; an item of an array has no key, and both positions are the same."""

    key: Where
    value: Where


def find_spans(text: str, file: str) -> dict[Path, Span]:
    """Return the position of every path of a valid TOML text.

    A table's value is its header's bracket; the value of an array of tables is its first header's.
    """
    import tree_sitter_toml
    from tree_sitter import Language, Parser

    tree = Parser(Language(tree_sitter_toml.language())).parse(text.encode())
    finder = _Finder(file=file, lines=text.split("\n"))
    finder.document(tree.root_node)
    return finder.spans


@frozen(kw_only=True)
class _Finder:
    file: str
    lines: list[str]
    spans: dict[Path, Span] = field(factory=dict)
    lengths: dict[Path, int] = field(factory=dict)
    """The number of tables in each array of tables so far."""
    implied: set[Path] = field(factory=set)
    """Tables that only a dotted key has named so far; a header of their own, further down, is the better position."""

    def document(self, root: Node) -> None:
        for item in root.children:
            if item.type == "pair":
                self.pair(item, ())
            elif item.type in ("table", "table_array_element"):
                self.table(item)

    def table(self, table: Node) -> None:
        header = self.where(table)
        keys = list(_keys(next(child for child in table.children if child.type in KEYS)))
        name, node = keys[-1]
        path = (*self.parent(keys[:-1], (), header), name)
        span = Span(key=self.where(node), value=header)
        if table.type == "table_array_element":
            self.spans.setdefault(path, span)
            index = self.lengths.get(path, 0)
            self.lengths[path] = index + 1
            path = (*path, index)
        elif path in self.implied:
            del self.spans[path]
            self.implied.discard(path)
        self.spans.setdefault(path, span)
        for child in table.children:
            if child.type == "pair":
                self.pair(child, path)

    def pair(self, pair: Node, path: Path) -> None:
        named = [child for child in pair.named_children if child.type != "comment"]
        if len(named) < 2:  # noqa: PLR2004  a pair is a key and a value
            return
        key, value = named[0], named[-1]
        keys = list(_keys(key))
        name, node = keys[-1]
        path = (*self.parent(keys[:-1], path), name)
        self.spans[path] = Span(key=self.where(node), value=self.where(value))
        self.inside(value, path)

    def inside(self, value: Node, path: Path) -> None:
        if value.type == "inline_table":
            for child in value.children:
                if child.type == "pair":
                    self.pair(child, path)
        elif value.type == "array":
            items = [child for child in value.named_children if child.type != "comment"]
            for index, item in enumerate(items):
                where = self.where(item)
                self.spans[(*path, index)] = Span(key=where, value=where)
                self.inside(item, (*path, index))

    def parent(self, keys: list[tuple[str, Node]], path: Path, header: Where | None = None) -> Path:
        """Return the path of the table that the first keys of a dotted key name, below `path`."""
        for name, node in keys:
            path = (*path, name)
            if path not in self.spans:
                self.spans[path] = Span(key=self.where(node), value=header or self.where(node))
                self.implied.add(path)
            if path in self.lengths:
                path = (*path, self.lengths[path] - 1)
        return path

    def where(self, node: Node) -> Where:
        # The tree counts columns in bytes of UTF-8; editors count characters.
        row, column = node.start_point
        line = self.lines[row]
        characters = len(line.encode()[:column].decode(errors="ignore"))
        return Where(file=self.file, line=row + 1, column=characters + 1, text=line.rstrip("\r"))


def _keys(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the parts of a dotted key, in order; the tree holds a.b.c as (a.b).c, of any depth."""
    left = [node]
    while left:
        part = left.pop()
        if part.type == "dotted_key":
            left.extend(child for child in reversed(part.children) if child.type in KEYS)
            continue
        text = (part.text or b"").decode()
        if part.type == "quoted_key":
            text = next(iter(tomllib.loads(f"{text} = 0")))
        yield text, part
