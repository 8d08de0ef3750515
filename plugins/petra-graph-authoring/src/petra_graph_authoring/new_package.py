"""A new package of plugins: its files, as texts by their paths."""

from __future__ import annotations

import ast
import keyword
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from io import StringIO
from tokenize import NAME, generate_tokens

from attrs import frozen

from petra_graph.errors import SpecError, shown
from petra_graph.kinds.all_kinds import KINDS
from petra_graph.registry.registry import Registry
from petra_graph_authoring.package_parts import DECLARED, EXAMPLES, PARTS, Names, Part, common_test, part_files

_DOCSTRINGS = {
    DECLARED: "What the plugins are and which options they have, without torch.",
    **dict(part.module for part in PARTS if part.module is not None),
}
_PREFIX = "petra-graph-"
_KINDS = {kind.short: kind for kind in KINDS}
_WIDTH = 100
"""Of a line of imports in a new module."""


@frozen(kw_only=True)
class NewPackage:
    """A distribution, its module, and the plugins in it."""

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
        source = f"src/{self.module}"
        modules: dict[str, list[str]] = {}
        tests: dict[str, str] = {}
        for part in self.parts:
            for name, text in part_files(part).items():
                if name.startswith("test_"):
                    tests[name] = self.renamed(text)
                else:
                    modules.setdefault(name, []).append(self.renamed(text))
        if DECLARED in modules:
            tests["test_declared.py"] = self.renamed(common_test())
        return {
            "pyproject.toml": self.pyproject(),
            "README.md": self.readme(),
            f"{source}/__init__.py": f'"""Plugins for petra-graph: {", ".join(self.plugins.values())}."""\n',
            **{f"{source}/{name}": merged(texts, _DOCSTRINGS[name], self.module) for name, texts in modules.items()},
            **{f"tests/{name}": tests[name] for name in sorted(tests)},
            "example.toml": self.example(),
        }

    def renamed(self, text: str) -> str:
        """Return a part's text with this package's names; of a part that is not here, a first-party block stands in."""
        text = text.replace(EXAMPLES.replace("-", "_"), self.module)
        for part in PARTS:
            if part.kind in self.plugins:
                text = Names.of(part.example).replaced(text, Names.of(self.plugins[part.kind]))
            elif part.stand_in:
                text = text.replace(shown(part.example), shown(part.stand_in))
        return text

    def pyproject(self) -> str:
        """Return pyproject.toml: setuptools, and the entry points."""
        lines = [
            "[build-system]",
            'requires = ["setuptools>=77"]',
            'build-backend = "setuptools.build_meta"',
            "",
            "[project]",
            f"name = {shown(self.distribution)}",
            'version = "0.1.0"',
            'requires-python = ">=3.11"',
            'dependencies = ["attrs>=24.2", "petra-graph>=0.1", "torch>=2.8"]',
            "",
            "[project.optional-dependencies]",
            'test = ["petra-graph[digits]", "petra-graph-conformance>=0.1", "pytest>=8.3"]',
        ]
        for kind in dict.fromkeys(_KINDS[part.group] for part in self.parts):
            lines += ["", f'[project.entry-points."{kind.group}"]']
            for part in self.parts:
                if _KINDS[part.group] is kind:
                    name = self.plugins[part.kind]
                    lines.append(f'{name} = "{self.module}.{self.renamed(part.entry)}"')
        return "\n".join(lines) + "\n"

    def example(self) -> str:
        """Return a specification that trains all plugins, in seconds."""
        names = self.plugins
        of = {part.kind: names.get(part.kind, part.stand_in) for part in PARTS}
        outputs = 2 if "dataset" in names else 10
        tables = [f"name = {shown(self.module.replace('_', '-'))}"]
        if "architecture" in names:
            tables += self._tables("architecture")
        else:
            tables += [
                f'[[graph.node]]\nname = "stem"\nblock = {shown(of["buffered-block"])}\noptions = {{ channels = 8 }}',
                f'[[graph.node]]\nname = "body"\nblock = {shown(of["block"])}\nkind = "reversible"\nrepeat = 2',
                f'[[graph.node]]\nname = "head"\nblock = {shown(of["head-block"])}\noptions = {{ outputs = {outputs} }}',
            ]
        tables += self._tables("loss")
        tables.append('[method]\nname = "petra"\nschedule = "1f1b"\naccumulation = 2')
        tables += self._tables("optimizer", "lr-schedule")
        if "dataset" in names:
            tables.append(f"[data]\nname = {shown(of['dataset'])}\nbatch = 16\noptions = {{ samples = 512 }}")
        else:
            tables.append('[data]\nname = "digits"\nbatch = 32')
        tables.append("[run]\nepochs = 3")
        tables += self._tables("metric", "logger", "callback")
        return "\n\n".join(tables) + "\n"

    def _tables(self, *kinds: str) -> Iterator[str]:
        """Yield the tables of the example that name plugins: of this package, or what a kind has in their place."""
        for part in PARTS:
            if part.kind not in kinds:
                continue
            if part.kind not in self.plugins:
                yield from filter(None, [part.without])
                continue
            kind = _KINDS[part.group]
            header = f"[[{kind.table}]]" if kind.several else f"[{kind.table}]"
            lines = [header, f"name = {shown(self.plugins[part.kind])}"]
            yield "\n".join([*lines, f"options = {{ {part.options} }}"] if part.options else lines)

    def readme(self) -> str:
        """Return the page that the package begins with."""
        of = {part.kind: part for part in self.parts}
        listed = "\n".join(f"- `{name}`, {of[kind].summary}" for kind, name in self.plugins.items())
        return f"""# {self.distribution}

Plugins for petra-graph:

{listed}

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


def examples() -> NewPackage:
    """Return the package of the guide, with a plugin of each kind."""
    return NewPackage(distribution=EXAMPLES, plugins={part.kind: part.example for part in PARTS})


def new_package(name: str, kinds: Sequence[str], registry: Registry) -> NewPackage:
    """Return a new package.

    Args:
        name: of the distribution; its plugins are called so, without "petra-graph-", with their kind behind it where
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
    chosen = [part for part in PARTS if part.kind in kinds]
    plugins = {part.kind: plain if len(chosen) == 1 else f"{plain}-{part.suffix}" for part in chosen}
    reserved = [one for each in plugins.values() for one in Names.of(each).forms if keyword.iskeyword(one)]
    if reserved or keyword.iskeyword(name):
        raise SpecError(f"{shown(name)} would be a word of Python's own in the code", "choose another name")
    package = NewPackage(distribution=name, plugins=plugins)
    _refuse_taken(package, registry)
    return package


def _refuse_taken(package: NewPackage, registry: Registry) -> None:
    """Raise SpecError where a name of the package is taken, by a module, a plugin, or something in the parts' own code."""
    hint = "choose another name"
    if any(entry.distribution == package.distribution for entry in registry.entries):
        raise SpecError(f"a distribution called {shown(package.distribution)} is installed", hint)
    if find_spec(package.module) is not None:
        raise SpecError(f"a module called {shown(package.module)} can be imported already", hint)
    for part in package.parts:
        name = package.plugins[part.kind]
        owners = [one for one in registry.entries if one.group == _KINDS[part.group].group and one.name == name]
        if owners:
            message = f"{_KINDS[part.group].short} have a plugin {shown(name)} already, of {owners[0].distribution}"
            raise SpecError(message, f"{hint}: specs would have to write {shown(f'{package.distribution}:{name}')}")
    texts = {part.kind: "\n".join(part_files(part).values()) for part in package.parts}
    words = {word for text in texts.values() for word in _names(text)}
    for part in package.parts:
        forms = zip(Names.of(part.example).forms, Names.of(package.plugins[part.kind]).forms, strict=True)
        same = [new for old, new in forms if old in texts[part.kind] and new in words]
        if same:
            message = f"{shown(package.plugins[part.kind])} would be {same[0]} in the code, which has that name already"
            raise SpecError(message, hint)


def _names(code: str) -> list[str]:
    """Return the names in code, without its strings and comments."""
    tokens = generate_tokens(StringIO(code).readline)
    return [token.string for token in tokens if token.type == NAME]


def merged(texts: Sequence[str], docstring: str, own: str) -> str:
    """Return several texts of one module as one text: their imports together at the top, sorted, then their bodies.

    Args:
        texts: modules without docstrings, which begin with their imports, if they have any.
        own: the package that the module belongs to; its imports come last.
    """
    imported: dict[str, set[str]] = {}
    bodies = []
    for text in texts:
        tree = ast.parse(text)
        heads = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in heads:
            names = [ast.unparse(alias) for alias in node.names]
            if isinstance(node, ast.Import):
                imported.update({name: imported.get(name, set()) for name in names})
            else:
                imported.setdefault(f"{node.module} import", set()).update(names)
        last = max((node.end_lineno or 0 for node in heads), default=0)
        bodies.append("".join(text.splitlines(keepends=True)[last:]).strip("\n"))
    imports = "\n\n".join(_sections(imported, own))
    return "\n\n\n".join(filter(None, [f'"""{docstring}"""\n\n{imports}'.rstrip(), *bodies])) + "\n"


def _sections(imported: dict[str, set[str]], own: str) -> Iterator[str]:
    """Yield the imports of the standard library, of other packages, and of the own one."""
    for wanted in (0, 1, 2):
        chosen = [source for source in imported if _section(source.split(" ")[0].split(".")[0], own) == wanted]
        plain = sorted(f"import {source}" for source in chosen if not source.endswith(" import"))
        # Names in capitals first, as ruff and isort sort them.
        chosen_from = sorted(source for source in chosen if source.endswith(" import"))
        named = [_from(source, sorted(imported[source], key=_in_order)) for source in chosen_from]
        if plain or named:
            yield "\n".join([*plain, *named])


def _section(top: str, own: str) -> int:
    return 0 if top in sys.stdlib_module_names else 2 if top == own else 1


def _in_order(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name


def _from(source: str, names: Iterable[str]) -> str:
    line = f"from {source} {', '.join(names)}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"from {source} (", *(f"    {name}," for name in names), ")"])
