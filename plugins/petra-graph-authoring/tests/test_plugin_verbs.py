"""`petra-graph list` and `show`, as their users see them."""

import json

import pytest

from petra_graph.cli.main import main

DECLARED = """
from attrs import frozen
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.declaration import option
from petra_graph.kinds.loss import LossDeclaration
from petra_graph.spec.bounds import AtLeast

@frozen(kw_only=True)
class Options:
    \"\"\"A window that slides.

    And a second line.
    \"\"\"
    size: int = option("side of the window", unit="pixels", validator=AtLeast(1))
    share: float = option("what is kept", default=0.5)
    note: str | None = option("whatever", default=None)

WINDOW = BlockDeclaration(summary="Slide a window.", options=Options, build="my_declared:Window", kind="reversible", streams=2)
"""


@pytest.fixture(autouse=True)
def alone(install, site, monkeypatch):
    """Only one distribution is installed."""
    install(
        "my-blocks",
        "[petra_graph.blocks]\nwindow = my_declared:WINDOW\ngone = my_declared:GONE\n",
        my_declared=DECLARED,
    )
    from petra_graph.registry import registry

    scan = registry.scan
    monkeypatch.setattr(registry, "scan", lambda _search=None: scan([str(site)]))


def test_list_all(capsys):
    assert main(["list"]) == 0
    assert capsys.readouterr().out == (
        """\
blocks
  gone    my-blocks  broken      block "gone" of my-blocks cannot be loaded from 'my_declared:GONE': \
AttributeError: module 'my_declared' has no attribute 'GONE'
  window  my-blocks  reversible  Slide a window.

architectures

optimizers

lr_schedules

losses

metrics

datasets

loggers

callbacks

graph_passes
"""
    )


def test_a_misspelt_group_is_named_on_stderr(install, capsys):
    install("aaa", "[petra_graph.block]\nnew = my_declared:WINDOW\n")
    assert main(["list", "blocks"]) == 0
    printed = capsys.readouterr()
    assert "window" in printed.out
    assert printed.err == (
        'aaa registers "new" in the entry-point group "petra_graph.block", which does not exist\n'
        '    help: its author must write "petra_graph.blocks"\n'
    )


def test_list_one_group_as_json(capsys):
    assert main(["list", "blocks", "--json"]) == 0
    gone, window = json.loads(capsys.readouterr().out)
    assert gone["fault"].startswith('block "gone" of my-blocks cannot be loaded')
    assert window == {
        "group": "blocks",
        "name": "window",
        "distribution": "my-blocks",
        "kind": "reversible",
        "summary": "Slide a window.",
        "fault": "",
        "remedy": "",
        "imports_torch": "",
    }


def test_show(capsys):
    assert main(["show", "blocks/window"]) == 0
    assert capsys.readouterr().out == (
        """\
blocks/window (my-blocks, reversible, reads 2 streams)

Slide a window.

A window that slides.

And a second line.

options
  size   an integer  >= 1  required  pixels  side of the window
  share  a number          0.5               what is kept
  note   a string          unset             whatever

    [[graph.node]]
    name = "window"
    block = "window"
    [graph.node.options]
    size = 64
    # share = 0.5
"""
    )


def test_show_a_class_in_a_module(site, capsys):
    (site / "own_losses.py").write_text("class Own:\n    'A loss.'\n    def __init__(self, options): ...\n")
    assert main(["show", "losses/own_losses:Own"]) == 0
    assert capsys.readouterr().out.startswith("losses/own_losses:Own\n\nA loss.\n\nno options\n")


def test_show_as_json(capsys):
    assert main(["show", "blocks/window", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["kind"], shown["streams"]) == ("window", "reversible", 2)
    assert shown["options"][0] == {
        "name": "size",
        "type": "an integer",
        "limits": ">= 1",
        "required": True,
        "default": None,
        "unit": "pixels",
        "help": "side of the window",
    }


@pytest.mark.parametrize(
    ("name", "code", "error"),
    [
        ("window", 2, "Error: 'window' is not GROUP/NAME: try blocks/window\n"),
        ("windw", 2, "Error: 'windw' is not GROUP/NAME: as in blocks/rev-basic\n"),
        ("block/window", 2, "Error: No such group 'block': did you mean 'blocks'? allowed: "),
        ("blocks/windw", 2, "unknown block \"windw\"\n    help: did you mean 'window'? allowed: gone, window\n"),
        ("blocks/gone", 4, "block \"gone\" of my-blocks cannot be loaded from 'my_declared:GONE'"),
    ],
)
def test_what_cannot_be_shown(capsys, name, code, error):
    assert main(["show", name]) == code
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["list", "blocks"], ["show", "blocks/window"]])
def test_a_distribution_whose_entry_points_are_no_text_is_named(install, capsys, arguments):
    (install("aaa-broken", "") / "entry_points.txt").write_bytes(b"[petra_graph.blocks]\nx = \xff\n")
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == "aaa-broken: its entry points cannot be read\n    help: reinstall it, or remove it\n"
    assert "window" in printed.out


LATE = """
from attrs import frozen
from petra_graph.plugins import LrScheduleDeclaration, NoOptions, OptimizerDeclaration

@frozen(kw_only=True)
class Rate:
    lr: float = 0.1

def asks(groups, options: Rate, stage):
    "Follow the delay."

def plain(groups, options: Rate):
    "Follow the gradient."

GONE = OptimizerDeclaration(summary="Follow nothing.", options=Rate, build="gone:Gone")

def falls(options, horizon, stage):
    "Fall with the delay."
"""


@pytest.mark.parametrize(
    ("plugin", "owner"),
    [
        ("optimizers/asks", " (my-late, knows its stage's delay)"),
        ("lr_schedules/falls", " (my-late, knows its stage's delay)"),
        ("optimizers/plain", " (my-late)"),
        ("optimizers/gone", " (my-late)"),
    ],
)
def test_what_asks_for_its_stage_says_so(install, capsys, plugin, owner):
    names = "\n".join(f"{name} = my_late:{name}" for name in ("asks", "plain"))
    entries = (
        f"[petra_graph.optimizers]\n{names}\ngone = my_late:GONE\n[petra_graph.lr_schedules]\nfalls = my_late:falls\n"
    )
    install("my-late", entries, my_late=LATE)
    assert main(["show", plugin]) == 0
    assert capsys.readouterr().out.startswith(f"{plugin}{owner}\n")
