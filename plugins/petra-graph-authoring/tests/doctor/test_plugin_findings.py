"""What the doctor finds of plugins: broken, hidden, with one name, in groups that do not exist."""

from __future__ import annotations

import os
from importlib.metadata import version

import pytest
from petra_graph_authoring.doctor.plugin_findings import examine_plugins
from petra_graph_authoring.survey_of_plugins import PluginSummary

from petra_graph.registry.registry import discover


@pytest.fixture
def findings(site):
    """What is found beside what is right, with the given plugins broken."""

    def examine(*broken):
        summaries = [
            PluginSummary(group=group, name=name, distribution=owner, fault=fault)
            for group, name, owner, fault in broken
        ]
        found = examine_plugins(discover([str(site), *os.sys.path[1:]]), lambda _, __: summaries)
        return [(one.name, one.status, one.found, one.remedy) for one in found if one.status != "ok"]

    return examine


def test_nothing(findings):
    assert findings() == []


def test_a_broken_plugin(findings):
    assert findings(("blocks", "mine", "my-blocks", "its import raises SystemExit")) == [
        (
            "blocks/mine",
            "broken",
            "its import raises SystemExit",
            "install my-blocks again if its entry points have changed; otherwise report it to its author, or remove it",
        )
    ]


def test_a_requirement_that_is_not_met(install, findings):
    info = install("my-blocks", "[petra_graph.blocks]\nmine = a:b\n")
    needs = ["attrs>=999", "not-there; python_version >= '3'", "x; sys_platform == 'none'", "y; extra == 'z'", "?"]
    with (info / "METADATA").open("a") as file:
        file.writelines(f"Requires-Dist: {one}\n" for one in needs)
    [(name, status, found, remedy)] = findings()
    assert (name, status, remedy) == ("my-blocks", "broken", "pip install 'attrs>=999' 'not-there'")
    here = version("attrs")
    assert found == f"1.0, 1 plugin; attrs>=999 is needed ({here}); not-there is needed (not installed)"


def test_a_remedy_that_the_fault_has(site):
    broken = PluginSummary(
        group="blocks", name="mine", distribution="m", fault="is for API 9", remedy="upgrade petra-graph"
    )
    found = examine_plugins(discover([str(site), *os.sys.path[1:]]), lambda _, __: [broken])
    assert [one.remedy for one in found if one.name == "blocks/mine"] == ["upgrade petra-graph"]


def test_a_name_that_two_have(install, findings):
    install("my-blocks", "[petra_graph.blocks]\nrev-basic = a:b\n")
    assert findings() == [
        (
            "blocks/rev-basic",
            "warning",
            'block "rev-basic" is in my-blocks and petra-graph: a spec that writes it is refused',
            'write "my-blocks:rev-basic" or "petra-graph:rev-basic" in specs',
        )
    ]


def test_entry_points_that_cannot_be_read(install, findings):
    (install("aaa-broken", "") / "entry_points.txt").write_bytes(b"[petra_graph.blocks]\nx = \xff\n")
    assert findings() == [("aaa-broken", "broken", "its entry points cannot be read", "reinstall it, or remove it")]


def test_petra_graph_without_its_own_plugins():
    found = list(examine_plugins(discover([]), lambda _, __: []))
    assert [(one.name, one.status, one.found) for one in found] == [
        ("petra-graph", "broken", "its own plugins are not found")
    ]


def test_all_faults_at_once_each_by_its_name(install, site):
    declared = (
        "from petra_graph.plugins import LossDeclaration\nL = LossDeclaration(summary='x', build='json:dumps'{})\n"
    )
    install("newer", "[petra_graph.losses]\nnewer = newer_losses:L\n", newer_losses=declared.format(", api=99"))
    install("fails", "[petra_graph.losses]\nfails = fails_losses:L\n", fails_losses="raise RuntimeError('no')\n")
    install("ends", "[petra_graph.losses]\nends = ends_losses:L\n", ends_losses="raise SystemExit(3)\n")
    install("one", "[petra_graph.losses]\nsame = fine_losses:L\n", fine_losses=declared.format(""))
    install("two", "[petra_graph.losses]\nsame = fine_losses:L\nmean-squared-error = fine_losses:L\n")
    install("misspelt", "[petra_graph.loss]\nx = fine_losses:L\n")
    (install("nameless", "[petra_graph.losses]\n") / "METADATA").write_bytes(b"\xff\n")
    many = "".join(f"name-{number} = fine_losses:L\n" for number in range(500))
    install("many", f"[petra_graph.losses]\n{many}")
    found = {one.name: one for one in examine_plugins(discover([str(site), *os.sys.path[1:]])) if one.status != "ok"}
    expected = {
        "losses/newer": ("broken", "is written for plugin API 99, and this petra-graph has plugin API 1"),
        "losses/fails": ("broken", "RuntimeError: no"),
        "losses/ends": ("broken", "SystemExit"),
        "losses/same": ("warning", 'loss "same" is in one and two: a spec that writes it is refused'),
        "losses/mean-squared-error": ("warning", 'loss "mean-squared-error" is in petra-graph and two'),
        "misspelt": ("broken", 'in the entry-point group "petra_graph.loss", which does not exist'),
    }
    assert {name: one.status for name, one in found.items()} == {name: status for name, (status, _) in expected.items()}
    assert all(text in found[name].found for name, (_, text) in expected.items())
    assert all(one.remedy for one in found.values())


def test_a_declaration_that_imports_torch(install, site):
    declared = (
        "from petra_graph.plugins import LossDeclaration\nMINE = LossDeclaration(summary='x', build='json:dumps')\n"
    )
    install(
        "slow-losses", "[petra_graph.losses]\nslow = slow_declared:MINE\n", slow_declared=f"import torch.nn\n{declared}"
    )
    install("quick-losses", "[petra_graph.losses]\nquick = quick_declared:MINE\n", quick_declared=declared)
    found = examine_plugins(discover([str(site)]))
    assert [(one.name, one.status, one.found) for one in found if one.name.startswith("losses/")] == [
        (
            "losses/slow",
            "warning",
            "importing its declaration imports torch, in slow_declared: `validate` and `list` wait for it",
        )
    ]
