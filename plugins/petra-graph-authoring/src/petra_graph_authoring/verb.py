"""`petra-graph new`: packages of plugins and specs, as texts to begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from petra_graph.cli.options_and_output import echo, json_text, set_option
from petra_graph.errors import SpecError
from petra_graph_authoring.package_parts import PARTS


@click.group(subcommand_metavar="WHAT [ARGUMENTS]...")
def new() -> None:
    """Start a package of plugins, or a spec. Existing files are never overwritten."""


def _kinds(command: Callable[..., Any]) -> Callable[..., Any]:
    for part in reversed(PARTS):
        command = click.option(f"--{part.kind}", part.kind.replace("-", "_"), is_flag=True, help=part.summary)(command)
    return command


@new.command()
@click.argument("name")
@_kinds
def plugin(name: str, **chosen: bool) -> None:
    """Write a package NAME with a plugin of each kind that you ask for, in a new folder NAME.

    It installs, its tests pass, and its example trains: change the code from there. Its plugin is called NAME, without
    "petra-graph-"; several are called NAME-block, NAME-loss and so on.
    """
    from petra_graph.registry.registry import discover
    from petra_graph_authoring.new_package import new_package, next_steps

    kinds = [part.kind for part in PARTS if chosen[part.kind.replace("-", "_")]]
    if not kinds:
        raise click.UsageError(f"Say what NAME is to have: {', '.join(f'--{part.kind}' for part in PARTS)}.")
    refuse_existing(Path(name))
    package = new_package(name, kinds, discover())
    write_new({Path(name) / path: text for path, text in package.files().items()})
    for path in package.files():
        echo(f"{name}/{path}")
    echo("\nnext:")
    for step in next_steps(name):
        echo(f"  {step}")


@new.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--architecture", default="revnet", show_default=True, metavar="NAME", help="The network.")
@click.option("--data", default="digits", show_default=True, metavar="NAME", help="The data set.")
@click.option("--optimizer", default="sgd", show_default=True, metavar="NAME", help="The optimizer.")
@click.option("--lr-schedule", default="cosine", show_default=True, metavar="NAME", help="The learning-rate schedule.")
@click.option("--loss", default="cross-entropy", show_default=True, metavar="NAME", help="The loss.")
@click.option("--root", metavar="FOLDER", help="The data set's files; the same as --set data.options.root=FOLDER.")
@set_option
def spec(file: Path, root: str | None, overrides: tuple[str, ...], **names: str) -> None:
    """Write a spec to FILE, with the options of its plugins and what they mean.

    NAME is a plugin of `petra-graph list`, or module:attribute in a module on Python's path or beside FILE. Required options
    get likely values, which you may have to change. If the data set's files are there, they say how many classes and samples there are.
    """
    from petra_graph.registry.registry import discover
    from petra_graph_authoring.new_spec import new_spec

    refuse_existing(file)
    if root is not None:
        overrides = (f"data.options.root={json_text(root)}", *overrides)
    registry = discover()
    beside = str(file.absolute().parent)
    registry = attrs.evolve(registry, folders=tuple(dict.fromkeys((beside, *registry.folders))))
    made = new_spec(file.stem, names, registry, overrides)
    write_new({file: made.text})
    echo(f"{file}{made.found and f': {made.found}'}\n\nnext:")
    if made.open_keys:
        echo(
            f"  in {file}: set {' and '.join(made.open_keys)}, and compare the other values of [data.options] with your files"
        )
    echo(f"  petra-graph run {file} --dry-run\n  petra-graph run {file}")


def refuse_existing(path: Path) -> None:
    """Raise SpecError where a file exists, or a folder that is not empty."""
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise SpecError(f"{path} exists already", "give another name: nothing is overwritten")


def write_new(texts: Mapping[Path, str]) -> None:
    """Write files by their texts.

    Raises:
        SpecError: one of them exists, and nothing is written; or one cannot be written.
    """
    for path in texts:
        refuse_existing(path)
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise SpecError(f"cannot write {error.filename}: {error.strerror or error}") from error
