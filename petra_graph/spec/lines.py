"""The line of every key, table and item of a TOML text, which `tomllib` does not tell.

`tomllib` has read the text before, so it is valid here. The scanner needs the tokens that nest or end a value, and reads
texts and comments only to pass over what looks like such tokens inside them. Paths include the indices of arrays: the
third `[[graph.node]]` is ("graph", "node", 2).
"""

from __future__ import annotations

import re
import tomllib

from petra_graph.errors import Path

_TOKEN = re.compile(
    r"""(?P<passed>[ \t\r]+ | \#[^\n]*)
      | (?P<text>"{3}(?:\\.|(?!"{3})[^\\])*"{3,5} | '{3}.*?'{3,5} | "(?:\\.|[^"\\])*" | '[^']*')
      | (?P<mark>[\[\]{}=,.\n])
      | (?P<bare>[^\s\[\]{}=,."'\#]+)""",
    re.VERBOSE | re.DOTALL,
)


def find_lines(text: str) -> dict[Path, int]:
    """Return the line of each path, counted from 1; an array of tables has that of its first header."""
    scanner = _Scanner(text)
    table: Path = ()
    while scanner.left:
        if scanner.take("["):
            table = scanner.header(of_array=scanner.take("["))
        elif not scanner.take("\n"):
            scanner.pair(table)
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.left: list[tuple[str, int]] = []
        """Tokens with their lines, the next one last."""
        self.lines: dict[Path, int] = {}
        self.lengths: dict[Path, int] = {}
        """Tables so far in each array of tables."""
        line = 1
        for match in _TOKEN.finditer(text):
            if match.lastgroup != "passed":
                self.left.append((match[0], line))
            line += match[0].count("\n")
        self.left.reverse()

    def take(self, *marks: str) -> bool:
        """Pass over the next token if it is one of these."""
        found = bool(self.left) and self.left[-1][0] in marks
        if found:
            self.left.pop()
        return found

    def header(self, *, of_array: bool) -> Path:
        path, line = self.key(())
        if of_array:
            self.lines.setdefault(path, line)
            index = self.lengths.get(path, 0)
            self.lengths[path] = index + 1
            path = (*path, index)
        self.lines[path] = line  # also where a header or key further up has implied the table
        while self.take("]"):
            pass
        return path

    def pair(self, table: Path) -> None:
        path, self.lines[path] = self.key(table)
        self.take("=")
        self.value(path)

    def key(self, path: Path) -> tuple[Path, int]:
        """Return the path of a dotted key below the table at `path`, and its line."""
        while True:
            token, line = self.left.pop()
            path = (*path, next(iter(tomllib.loads(f"{token} = 0"))) if token[0] in "\"'" else token)
            if not self.take("."):
                return path, line
            self.lines.setdefault(path, line)
            if path in self.lengths:  # [graph.node.options] is the last node's
                path = (*path, self.lengths[path] - 1)

    def value(self, path: Path) -> None:
        if self.take("["):
            index = 0
            while not self.take("]"):
                if not self.take(",", "\n"):
                    self.lines[(*path, index)] = self.left[-1][1]
                    self.value((*path, index))
                    index += 1
        elif self.take("{"):
            while not self.take("}"):
                if not self.take(",", "\n"):
                    self.pair(path)
        else:  # a number with a point, or a date with a space, is several tokens
            while self.left and self.left[-1][0] not in (",", "]", "}", "\n"):
                self.left.pop()
