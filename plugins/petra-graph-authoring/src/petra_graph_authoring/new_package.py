"""A new package of plugins: its files, as texts by their paths."""

from __future__ import annotations

import ast
import keyword
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby

from attrs import frozen

from petra_graph.errors import SpecError, shown
from petra_graph.kinds.all_kinds import KINDS
from petra_graph.registry.registry import Registry
from petra_graph_authoring.package_parts import DECLARED, EXAMPLES, PARTS, Part, common_test, part_files

_DOCSTRINGS = {
    DECLARED: "What the plugins are and which options they have, without torch.",
    "blocks.py": "The blocks, imported when a network is built.",
    "optimizer.py": "The optimizer.",
    "schedule.py": "The learning-rate schedule.",
    "loss.py": "The loss.",
    "metric.py": "The metric.",
    "data.py": "The data set.",
    "logger.py": "The logger.",
    "callback.py": "The callback.",
}
_PREFIX = "petra-graph-"
_KINDS = {kind.short: kind for kind in KINDS}
_WIDTH = 100
"""Of a line of imports in a new module."""


@frozen(kw_only=True)
class NewPackage:
    """A distribution and the plugins in it."""

    distribution: str
    plugins: Mapping[str, str]
    """The name of each plugin by its part's kind."""

    @property
    def module(self) -> str:
        return self.distribution.replace("-", "_")

    @property
    def parts(self) -> Sequence[Part]:
        return [part for part in PARTS if part.kind in self.plugins]

    def files(self) -> Mapping[str, str]:
        """Return the text of every file by its path."""
        modules: dict[str, list[str]] = {}
        tests: dict[str, str] = {}
        for part in self.parts:
            for name, text in part_files(part).items():
                if name.startswith("test_"):
                    tests[name] = self.rename(text)
                else:
                    modules.setdefault(name, []).append(self.rename(text))
        if DECLARED in modules:
            tests["test_declared.py"] = self.rename(common_test())

        source = f"src/{self.module}"
        return {
            "pyproject.toml": self.pyproject(),
            "README.md": self.readme(),
            f"{source}/__init__.py": f'"""Plugins for petra-graph: {", ".join(self.plugins.values())}."""\n',
            **{
                f"{source}/{name}": merge_modules(texts, _DOCSTRINGS[name], self.module)
                for name, texts in modules.items()
            },
            **{f"tests/{name}": tests[name] for name in sorted(tests)},
            "example.toml": self.example(),
        }

    def rename(self, text: str) -> str:
        """Return a part's text with this package's names; a first-party block stands in for a part that is not here."""
        text = text.replace(EXAMPLES.replace("-", "_"), self.module)
        for part in PARTS:
            if part.kind in self.plugins:
                for old, new in zip(_forms(part.example), _forms(self.plugins[part.kind]), strict=True):
                    text = text.replace(old, new)
            elif part.stand_in:
                text = text.replace(shown(part.example), shown(part.stand_in))
        return text

    def pyproject(self) -> str:
        lines = [
            "[build-system]",
            'requires = ["setuptools>=77"]',
            'build-backend = "setuptools.build_meta"',
            "",
            "[project]",
            f"name = {shown(self.distribution)}",
            'version = "0.1.0"',
            'requires-python = ">=3.11"',
            'dependencies = ["attrs>=24.2", "petra-graph>=0.2", "torch>=2.8"]',
            "",
            "[project.optional-dependencies]",
            'test = ["petra-graph[digits]", "petra-graph-conformance>=0.2", "pytest>=8.3"]',
        ]
        for group, parts in groupby(self.parts, key=lambda part: part.group):
            lines += ["", f'[project.entry-points."petra_graph.{group}"]']
            lines += [f'{self.plugins[part.kind]} = "{self.module}.{self.rename(part.entry)}"' for part in parts]
        return "\n".join(lines) + "\n"

    def example(self) -> str:
        """Return a specification that trains all plugins, in seconds."""
        names = {part.kind: self.plugins.get(part.kind, part.stand_in) for part in PARTS}
        outputs = 2 if "dataset" in self.plugins else 10
        tables = [f"name = {shown(self.distribution)}"]
        if "architecture" in self.plugins:
            tables += self._tables("architecture")
        else:
            tables += [
                f'[[graph.node]]\nname = "stem"\nblock = {shown(names["buffered-block"])}\noptions = {{ channels = 8 }}',
                f'[[graph.node]]\nname = "body"\nblock = {shown(names["block"])}\nkind = "reversible"\nrepeat = 2',
                f'[[graph.node]]\nname = "head"\nblock = {shown(names["head-block"])}\noptions = {{ outputs = {outputs} }}',
            ]
        tables += self._tables("loss")
        tables.append('[method]\nname = "petra"\nschedule = "1f1b"\naccumulation = 2')
        tables += self._tables("optimizer", "lr-schedule")
        if "dataset" in self.plugins:
            tables.append(f"[data]\nname = {shown(names['dataset'])}\nbatch = 16\noptions = {{ samples = 512 }}")
        else:
            tables.append('[data]\nname = "digits"\nbatch = 32')
        tables.append("[run]\nepochs = 3")
        tables += self._tables("metric", "logger", "callback")
        return "\n\n".join(tables) + "\n"

    def _tables(self, *kinds: str) -> Iterator[str]:
        """Yield the tables of the example that name plugins: of this package, or what a part has in their place."""
        for part in PARTS:
            if part.kind in kinds and part.kind in self.plugins:
                kind = _KINDS[part.group]
                header = f"[[{kind.table}]]" if kind.several else f"[{kind.table}]"
                options = f"\noptions = {{ {part.options} }}" if part.options else ""
                yield f"{header}\nname = {shown(self.plugins[part.kind])}{options}"
            elif part.kind in kinds and part.without:
                yield part.without

    def readme(self) -> str:
        plugins = "\n".join(f"- `{self.plugins[part.kind]}`, {part.summary}" for part in self.parts)
        return f"""# {self.distribution}

Plugins for petra-graph:

{plugins}

```sh
{chr(10).join(next_steps(self.distribution)[1:])}
```

The entry points in `pyproject.toml` name the plugins: their code in `src/{self.module}/`, or their options in `declared.py` there, which
imports no torch. `tests/` checks all promises on which training relies. The guide, plugins/README.md of petra-graph, says what each kind must keep.
"""


def next_steps(distribution: str) -> list[str]:
    """Return the commands that install a new package, check it and train its example."""
    return [
        f"cd {distribution}",
        "pip install -e '.[test]'",
        f"petra-graph check {distribution}",
        "python -m pytest",
        "petra-graph run example.toml",
    ]


def example_package() -> NewPackage:
    """Return the package of the guide, with a plugin of each kind."""
    return NewPackage(distribution=EXAMPLES, plugins={part.kind: part.example for part in PARTS})


def new_package(name: str, kinds: Sequence[str], registry: Registry) -> NewPackage:
    """Return a new package.

    Args:
        name: of the distribution; its plugins are called so, without "petra-graph-", with their kind behind it if
            there are several.
        kinds: of its plugins, of `PARTS`.
        registry: the installed plugins, whose names are taken.

    Raises:
        SpecError: the name cannot be one, or is taken.
    """
    if re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) is None:
        raise SpecError(
            f"{shown(name)} cannot be the name of a package of plugins",
            'write small letters, digits and single hyphens, beginning with a letter, as in "depthwise-blocks"',
        )
    plain = name.removeprefix(_PREFIX)
    parts = [part for part in PARTS if part.kind in kinds]
    plugins = {part.kind: plain if len(parts) == 1 else f"{plain}-{part.suffix}" for part in parts}
    package = NewPackage(distribution=name, plugins=plugins)

    hint = "choose another name"
    if any(keyword.iskeyword(word) for plugin in (name, *plugins.values()) for word in _forms(plugin)):
        raise SpecError(f"{shown(name)} would be a word of Python's own in the code", hint)
    if any(entry.distribution == name for entry in registry.entries):
        raise SpecError(f"a distribution called {shown(name)} is installed", hint)
    if find_spec(package.module) is not None:
        raise SpecError(f"a module called {shown(package.module)} can be imported already", hint)
    for part in parts:
        kind, plugin = _KINDS[part.group], plugins[part.kind]
        for entry in registry.entries:
            if (entry.group, entry.name) == (kind.group, plugin):
                message = f"{kind.short} have a plugin {shown(plugin)} already, of {entry.distribution}"
                raise SpecError(message, f"{hint}: specs would have to write {shown(f'{name}:{plugin}')}")
    return package


def _forms(name: str) -> tuple[str, str, str]:
    """Return a plugin's name as a specification, a class and a module have it: "rev-tanh", "RevTanh", "rev_tanh"."""
    words = name.split("-")
    return name, "".join(word[:1].upper() + word[1:] for word in words), "_".join(words)


def merge_modules(texts: Sequence[str], docstring: str, own: str) -> str:
    """Return several texts of one module as one text: their imports together at the top, sorted, then their bodies.

    Args:
        texts: modules without docstrings, which begin with their imports, if they have any.
        own: the package that the module belongs to; its imports come last.
    """
    imported: dict[tuple[int, bool, str], set[str]] = {}
    bodies = []
    for text in texts:
        end = 0
        for node in ast.parse(text).body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                break
            end = node.end_lineno or 0
            names = {ast.unparse(alias) for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                source = node.module or ""
                imported.setdefault((_section(source, own), True, source), set()).update(names)
            else:
                imported.update({(_section(name, own), False, name): set() for name in names})
        bodies.append("".join(text.splitlines(keepends=True)[end:]).strip("\n"))
    sections = [
        "\n".join(_line(source, imported[section, named, source]) for section, named, source in keys)
        for _, keys in groupby(sorted(imported), key=lambda key: key[0])
    ]
    return "\n\n\n".join(filter(None, ["\n\n".join([f'"""{docstring}"""', *sections]), *bodies])) + "\n"


def _section(source: str, own: str) -> int:
    """Return 0 for the standard library, 1 for other packages, 2 for the own one."""
    top = source.split(" ", maxsplit=1)[0].split(".", maxsplit=1)[0]
    return 0 if top in sys.stdlib_module_names else 2 if top == own else 1


def _line(source: str, names: set[str]) -> str:
    if not names:
        return f"import {source}"
    ordered = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))  # as ruff sorts them
    line = f"from {source} import {', '.join(ordered)}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"from {source} import (", *(f"    {name}," for name in ordered), ")"])
