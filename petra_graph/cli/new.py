"""`petra-graph new plugin`: the example petra-graph-convnext under another name, to be changed from there."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import click

import petra_graph
from petra_graph.cli.options_and_output import echo
from petra_graph.errors import SpecError, shown
from petra_graph.plugins.registry import scan

_ROOT = Path(petra_graph.__file__).parent
_EXAMPLE = (_ROOT / "example_plugin", _ROOT.parent / "plugins" / "petra-graph-convnext")
"""The example in a wheel, and in the source tree."""
_FILES = ("README.md", "example.toml", "petra_graph_convnext.py", "pyproject.toml", "test_petra_graph_convnext.py")


@click.group(subcommand_metavar="WHAT [ARGUMENTS]...")
def new() -> None:
    """Start a package of plugins."""


@new.command()
@click.argument("name")
def plugin(name: str) -> None:
    """Write a package with a reversible block called NAME, in a new folder NAME.

    It installs, passes its test and trains its example: change the code from there.
    """
    if re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) is None:
        raise SpecError(f"{shown(name)} cannot be a name", 'write small letters, digits and hyphens, as in "rev-tanh"')
    module, folder = name.replace("-", "_"), Path(name)
    if folder.exists():
        raise SpecError(f"{folder} exists already", "give another name")
    if find_spec(module) is not None or any(name in {entry.name, entry.distribution} for entry in scan()[0]):
        raise SpecError(f"{shown(name)} is installed already", "give another name")
    example = next(path for path in _EXAMPLE if path.is_dir())
    written = "".join(word.capitalize() for word in name.split("-"))
    folder.mkdir()
    for file in _FILES:
        text = (example / file).read_text(encoding="utf-8")
        for old, now in (
            ("petra-graph-convnext", name),
            ("petra_graph_convnext", module),
            ("rev-convnext", name),
            ("convnext-digits", f"{name}-digits"),
            ("RevConvNext", written),
        ):
            text = text.replace(old, now)
        if file == "pyproject.toml":  # what only holds for the example
            text = re.sub(r"\n(license-files|authors|keywords|\[project.urls\]\nPaper) = .*", "", text)
            text = re.sub(r"\nclassifiers = \[.*?\]", "", text, flags=re.DOTALL)
        path = folder / file.replace("petra_graph_convnext", module)
        path.write_text(text, encoding="utf-8")
        echo(str(path))
    echo(f"\nnext:\n  cd {name}\n  pip install -e '.[test]'\n  python -m pytest\n  petra-graph run example.toml")
