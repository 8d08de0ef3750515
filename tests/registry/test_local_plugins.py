"""`block = "my_module:MyBlock"` needs no package."""

import sys

import pytest

from petra_graph.errors import PluginError, SpecError
from petra_graph.kinds.block import BLOCK
from petra_graph.kinds.declaration import NoOptions
from petra_graph.kinds.loss import LOSS
from petra_graph.kinds.lr_schedule import LR_SCHEDULE
from petra_graph.kinds.optimizer import OPTIMIZER
from petra_graph.kinds.plugin import load
from petra_graph.registry.local_plugins import is_local, missing_module, resolve_local
from petra_graph.registry.registry import discover


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("my_module:MyBlock", True),
        ("a.b:C.D", True),
        ("my-blocks:mine", False),
        ("rev-basic", False),
        ("a:b:c", False),
        ("a:", False),
        ("3a:b", False),
    ],
)
def test_the_form_of_a_name(name, expected):
    assert is_local(name) is expected


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        (LOSS, "torch.nn:CrossEntropyLoss", "(options)"),
        (OPTIMIZER, "torch.optim:AdamW", "(groups, options)"),
        (LR_SCHEDULE, "torch.optim.lr_scheduler:OneCycleLR", "(options, horizon)"),
    ],
)
def test_torchs_own_classes_have_other_arguments(kind, name, arguments):
    with pytest.raises(PluginError, match="is not a class or function that is called as") as refused:
        discover([]).resolve(kind, name)
    assert f"write a function or class {arguments} -> " in refused.value.problems[0].hint


def test_a_class_declares_itself(site):
    (site / "local_blocks.py").write_text(
        "from attrs import frozen\n"
        "class Plain:\n"
        '    """A plain block.\n\n    More.\n    """\n'
        "    kind = 'buffered'\n"
        "class Whole(Plain):\n"
        "    kind = 'reversible'\n"
        "    streams = 2\n"
        "    @frozen(kw_only=True)\n"
        "    class Options:\n"
        "        size: int\n"
    )
    registry = discover([])
    plain = registry.resolve(BLOCK, "local_blocks:Plain")
    whole = registry.resolve(BLOCK, "local_blocks:Whole")
    assert (plain.declaration.summary, plain.declaration.options) == ("A plain block.", NoOptions)
    assert (whole.declaration.kind, whole.declaration.streams) == ("reversible", 2)
    assert load(whole).__name__ == "Whole"


def test_a_module_is_looked_for_on_the_path_and_then_in_the_folders(here, site):
    (here / "block_right_here.py").write_text("class B:\n    kind = 'head'\n")
    (here / "random.py").write_text("raise SystemExit('a file beside the spec was taken for the library')\n")
    assert missing_module("block_right_here:B", [str(here)]) is None
    assert missing_module("block_right_here:B", []) is not None
    assert missing_module("block_nowhere:B", [str(here)]) is not None
    resolve_local(BLOCK, "block_right_here:B", [str(here)])
    assert sys.path[-1] == str(here)


def test_a_distribution_of_the_same_name_wins(install, site):
    install("blocks_and_module", "[petra_graph.blocks]\nB = x:y\n", blocks_and_module="")
    assert not discover([str(site)]).is_local("blocks_and_module:B", BLOCK)
    assert discover([]).is_local("blocks_and_module:B", BLOCK)


def fault(name, kind):
    with pytest.raises(kind) as caught:
        discover([]).resolve(BLOCK, name)
    assert type(caught.value) is kind
    return str(caught.value)


def test_no_such_module(here):
    assert fault("block_nowhere:B", SpecError) == (
        f"""\
block "block_nowhere:B" has no module: 'block_nowhere' is neither importable nor a distribution with blocks
    help: modules are looked for on Python's path and in {here}"""
    )


def test_a_class_that_is_no_block_is_refused(site):
    (site / "no_blocks.py").write_text("x = 3\nclass C:\n    kind = 'magic'\n")
    hint = '\n    help: subclass one of petra_graph.blocks, and give it an attrs class `Options`; or name any other torch.nn.Module as an option of the block "module"'
    assert fault("no_blocks:x", PluginError) == (
        f'block "no_blocks:x" is not a class with a `kind`, as blocks are{hint}'
    )
    assert fault("no_blocks:C", PluginError) == (
        f"block \"no_blocks:C\" has kind = 'magic', not one of reversible, buffered, head{hint}"
    )
    assert fault("no_blocks:D", PluginError) == (
        "block \"no_blocks:D\": the module 'no_blocks' has no class 'D'\n    help: allowed: C"
    )
