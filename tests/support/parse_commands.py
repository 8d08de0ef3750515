"""Parses command lines of tools without carrying them out; reads them as JSON, and prints the first line that fails.

A process of its own, since the modules of tools/bench are on Python's path only when they are run from their folder.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import click


def parse(target: list[str]) -> None:
    """Parse [path, arguments...] or ["-m", module, arguments...] with the tool's own command."""
    if target[0] == "-m":
        name, arguments = target[1], target[2:]
    else:
        path, arguments = Path(target[0]), target[1:]
        sys.path.insert(0, str(path.parent.resolve()))
        name = path.stem
    module = importlib.import_module(name)
    if isinstance(module.main, click.Command):
        module.main.make_context(name, list(arguments))


for command in json.load(sys.stdin):
    try:
        parse(command)
    except click.ClickException as error:
        click.echo(f"{' '.join(command)}: {error.format_message()}")
