"""`list` and `new`: what is installed, without torch, and the example under another name."""

from __future__ import annotations

import json

from petra_graph.cli.main import main


def test_the_list_needs_no_torch_and_names_what_cannot_be_used(install, site, capsys):
    install("gone", "[petra_graph.losses]\nlost = no_such_module:LOSS\n[petra_graph.loss]\nmisspelt = a:B\n")
    assert main(["list", "losses", "--json"]) == 0
    printed = capsys.readouterr()
    listed = {one["name"]: one for one in json.loads(printed.out)}
    assert listed["cross-entropy"] == {
        "kind": "losses",
        "name": "cross-entropy",
        "distribution": "petra-graph",
        "fault": "",
    }
    assert listed["lost"]["fault"] == "broken: there is no module 'no_such_module' (no_such_module:LOSS)"
    assert 'gone registers "misspelt" in the group petra_graph.loss, which does not exist' in printed.err
    assert main(["list", "lost"]) == 4
    assert main(["list", "cross-entropi"]) == 2
    assert "did you mean 'cross-entropy'" in capsys.readouterr().err


def test_one_plugin_has_its_options(capsys):
    assert main(["list", "rev-mlp"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("blocks/rev-mlp (petra-graph)\n")
    assert "hidden" in shown


def test_a_new_plugin_is_the_example_under_another_name(here, capsys):
    assert main(["new", "plugin", "rev-tanh"]) == 0
    files = {path.name: path.read_text() for path in (here / "rev-tanh").iterdir()}
    assert files.keys() == {"README.md", "example.toml", "pyproject.toml", "rev_tanh.py", "test_rev_tanh.py"}
    assert "class RevTanh(AdditiveCoupling)" in files["rev_tanh.py"]
    assert 'rev-tanh = "rev_tanh:RevTanh"' in files["pyproject.toml"]
    assert not [
        name
        for name, text in files.items()
        if "convnext" in text.replace("ConvNeXt", "").lower() and name != "README.md"
    ]
    for name in ("rev-tanh", "Rev Tanh"):
        assert main(["new", "plugin", name]) == 2
