"""Names of plugins: found in entry points and in files beside a specification, unknown, ambiguous, broken, and where each is blamed."""

from __future__ import annotations

import pytest

from petra_graph.errors import PluginError, SpecError
from petra_graph.plugins.author_code import find_code
from petra_graph.plugins.contract import BLOCK, OPTIMIZER
from petra_graph.plugins.registry import Entry, Registry, discover

CODE = """\
class Block:
    kind = "buffered"
    def __init__(self, inputs, *, size: int = 1): ...

def optimizer(groups, *, lr: float = 0.1): ...
"""
MINE = "[petra_graph.blocks]\nmine = my_code:Block\n"
ENTRY = Entry(group="petra_graph.blocks", name="mine", distribution="my-blocks", target="my_code:Block")


# --- entry points ---


@pytest.mark.parametrize(
    "malformed", ["no section\n", "[a]\nno equals sign\n", "[a\n", "[a]\nx = y\nx = z\n", "\xff\xfe"]
)
def test_a_malformed_file_of_an_unrelated_distribution_hides_nothing(install, site, malformed):
    install("aaa-unrelated", malformed)
    install("my-blocks", f"{MINE}[console_scripts]\nx = y:z\n")
    install("zzz-unrelated", malformed)
    assert discover([str(site)]) == Registry(entries=(ENTRY,))


def test_a_file_of_ours_that_cannot_be_read_is_named(install, site):
    (install("broken", "") / "entry_points.txt").write_bytes(b"[petra_graph.blocks]\nx = \xff\xfe\n")
    (install("twice", "") / "entry_points.txt").write_bytes(b"[petra_graph.blocks]\nx = a:B\nx = a:C\n")
    install("my-blocks", MINE)
    assert discover([str(site)]) == Registry(entries=(ENTRY,), unreadable=("broken", "twice"))
    assert problem(discover([str(site)]), BLOCK, "x", SpecError) == 'unknown block "x"\n    help: allowed: mine'


def test_the_same_distribution_seen_twice_is_one(install, site, tmp_path):
    # An editable install is found by its metadata, and again by the egg-info in its own folder.
    install("my-blocks", MINE)
    info = tmp_path / "source" / "my_blocks.egg-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(MINE)
    assert discover([str(site), str(tmp_path / "source")]).entries == (ENTRY,)


# --- names ---


@pytest.fixture
def found(install, site):
    install("my-blocks", f"{MINE}[petra_graph.optimizers]\nmine = my_code:optimizer\n", my_code=CODE)
    return discover([str(site)])


def problem(registry: Registry, group, name, kind):
    with pytest.raises(kind) as caught:
        registry.resolve(group, name)
    assert type(caught.value) is kind
    return str(caught.value)


def test_two_distributions_with_one_name_are_refused_where_the_name_is_used(found, install, site):
    others = "mine = my_code:Other\nfree = my_code:Block\nrev-mlp = my_code:Block\n"
    install("other-blocks", f"[petra_graph.blocks]\n{others}")
    install("petra-graph", "[petra_graph.blocks]\nrev-mlp = my_code:Block\n")
    registry = discover([str(site)])
    said = 'block "mine" is in 2 distributions; write the code of one: "my_code:Block" or "my_code:Other"'
    assert problem(registry, BLOCK, "mine", PluginError) == said
    assert registry.resolve(OPTIMIZER, "mine").distribution == "my-blocks"
    assert registry.names(BLOCK) == ("free", "mine", "rev-mlp")
    assert registry.only(["other_blocks"]).names(BLOCK) == ("free", "mine", "rev-mlp")
    # A name of the catalog is its own: specifications are as before, whatever is installed.
    assert registry.resolve(BLOCK, "rev-mlp").distribution == "petra-graph"


@pytest.mark.parametrize(
    ("text", "reason", "line"),
    [
        ("import nothing_of_this_name\n", "ModuleNotFoundError: No module named 'nothing_of_this_name'", 1),
        ("x = 1\nraise SystemExit(3)\n", "SystemExit: 3", 2),
        ("def f(:\n", "SyntaxError: invalid syntax", 1),
    ],
)
def test_a_plugin_that_raises_is_blamed_with_its_line(install, site, text, reason, line):
    install("bad-blocks", "[petra_graph.blocks]\nbad = bad_module:BLOCK\n", bad_module=text)
    assert problem(discover([str(site)]), BLOCK, "bad", PluginError) == (
        f"""\
block "bad" of bad-blocks cannot be loaded from 'bad_module:BLOCK': {reason}
    help: raised at {site}/bad_module.py:{line}"""
    )


def test_plugins_of_other_projects_can_be_left_out(found, monkeypatch, site):
    monkeypatch.setenv("PETRA_GRAPH_PLUGINS", "0")
    assert discover([str(site)]).names(BLOCK) == ()
    assert "rev-basic" in discover().names(BLOCK)


# --- files beside a specification ---


@pytest.fixture
def folders(tmp_path):
    for name, width in (("a", 11), ("b", 13)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "sizes_of_this_test.py").write_text(f"WIDTH = {width}\n")
        for module in ("net_of_this_test", "test", "json"):
            (folder / f"{module}.py").write_text(
                "from sizes_of_this_test import WIDTH\n\nclass Net:\n    width = WIDTH\n"
            )
    return {name: (str(tmp_path / name), str(tmp_path)) for name in "ab"}


@pytest.mark.parametrize("module", ["net_of_this_test", "test", "json"])
def test_each_specification_has_the_file_beside_it_in_whatever_order(folders, module):
    """Two folders' modules never mix, nor one with an installed module of its name."""
    found = [find_code(f"{module}:Net", folders[name]) for name in "abab"]
    assert [one.width for one in found] == [11, 13, 11, 13]
    assert found[0] is found[2]
    import json

    assert json.loads("1") == 1
    assert find_code("os.path:join", folders["a"])("a", "b") == "a/b"
