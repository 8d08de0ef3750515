"""`petra-graph-hf`: what petra-graph itself has no command for, since it does not know transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from petra_graph.errors import PetraGraphError


@click.group()
def commands() -> None:
    """Exchange models with Hugging Face transformers."""


@commands.command()
@click.argument("run", metavar="RUN")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--weights", help='Those of a checkpoint: "latest", "best" or its number; or a file. Default: those at the end.'
)
@click.option(
    "--unconverted", is_flag=True, help="Of a converted network, write the network as it was, with the trained weights."
)
@click.option("--adapter", is_flag=True, help="Write the adapters alone, as the library peft saves them.")
def export(*, run: str, folder: Path, weights: str | None, unconverted: bool, adapter: bool) -> None:
    """Write RUN's network as a FOLDER that transformers opens: RUN is a run's directory, or `latest`.

    The folder is opened again, and its logits are compared with the network's; adapters if the library peft is installed.
    """
    from petra_graph_hf.export import export_adapter, export_folder

    if adapter and unconverted:
        raise click.UsageError(
            "--adapter and --unconverted exclude each other: an adapter is one of the network as it is"
        )
    if adapter:
        found = export_adapter(run, folder, weights)
    else:
        found = export_folder(run, folder, weights, unconverted=unconverted)
    opener = "peft" if adapter else "transformers"
    if found.compared:
        click.echo(f"{found.folder}: opened by {opener}, it has the network's logits")
    else:
        click.echo(f"{found.folder}: not opened again, since {opener} is not installed")
    if not found.tokenizer:
        click.echo("without a tokenizer.json: the run's data set has none that can be read")


@commands.command()
@click.argument("model", metavar="FILE.gguf", type=click.Path(path_type=Path))
@click.argument("file", metavar="FILE.json", type=click.Path(path_type=Path))
def tokenizer(*, model: Path, file: Path) -> None:
    """Write the tokenizer of a GGUF file as tokenizer.json."""
    from petra_graph.record.run_directory import make_folder_of, write_whole
    from petra_graph_hf.tokenizers_on_disk import of_gguf

    made = of_gguf(model)
    make_folder_of(file)
    write_whole(file, lambda path: path.write_text(made.to_str(), "utf-8"))
    click.echo(f"{file}: {made.get_vocab_size()} tokens")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code. Errors are messages without a traceback."""
    try:
        commands.main(arguments, standalone_mode=False)
    except PetraGraphError as error:
        click.echo(str(error), err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
