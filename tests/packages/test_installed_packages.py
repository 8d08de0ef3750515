"""Packages of all sorts, installed by pip into one environment: the tool works on, and names each that is at fault."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.environments import environment

pytestmark = [pytest.mark.processes, pytest.mark.slow]
QUICKSTART = str(ROOT / "specs" / "quickstart.toml")
MANY = 500
LOSS = "def {name}(output, target): ...\n"
PACKAGES = {
    "damaged-metadata": ({"console_scripts": ["nothing = damaged_metadata:main"]}, "def main(): ...\n"),
    "unreadable-plugins": ({"petra_graph.losses": ["unreadable = unreadable_plugins:A"]}, LOSS.format(name="A")),
    "of-yesterday": ({"petra_graph.losses": ["yesterday = of_yesterday:A"]}, "def A(options): ...\n"),
    "failing-import": ({"petra_graph.losses": ["failing = failing_import:A"]}, "import a_module_that_is_nowhere\n"),
    "first-twin": ({"petra_graph.losses": ["twin = first_twin:A"]}, LOSS.format(name="A")),
    "second-twin": ({"petra_graph.losses": ["twin = second_twin:A"]}, LOSS.format(name="A")),
    "many-names": (
        {"petra_graph.losses": [f"many-{number} = many_names:A{number}" for number in range(MANY)]},
        "".join(LOSS.format(name=f"A{number}") for number in range(MANY)),
    ),
    "of-the-first-party": (
        {"petra_graph.losses": ["cross-entropy = of_the_first_party:A"], "petra_graph.block": ["misspelt = of_the_first_party:A"]},
        LOSS.format(name="A"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    sources = [_source(folder / "sources" / name, name, *written) for name, written in PACKAGES.items()]
    made = environment(folder, editable=True)
    made.install(*sources)
    site = Path(sysconfig.get_path("purelib", "venv", dict.fromkeys(("base", "platbase"), str(folder / "venv"))))
    (site / "damaged_metadata-1.0.dist-info" / "entry_points.txt").write_text("[console_scripts\nnothing = :::\n==\n[")
    (site / "damaged_metadata-1.0.dist-info" / "METADATA").write_bytes(b"Name\xff\n\x00")
    (site / "unreadable_plugins-1.0.dist-info" / "entry_points.txt").write_text("[petra_graph.losses]\nunreadable\n[")
    return made


def _source(folder: Path, name: str, groups: dict[str, list[str]], module: str) -> Path:
    folder.mkdir(parents=True)
    (folder / f"{name.replace('-', '_')}.py").write_text(module)
    points = [
        line
        for group, entries in groups.items()
        for line in (
            f"[project.{'scripts' if group == 'console_scripts' else f'entry-points.{json.dumps(group)}'}]",
            *(
                f"{json.dumps(entry.partition(' = ')[0])} = {json.dumps(entry.partition(' = ')[2])}"
                for entry in entries
            ),
        )
    ]
    lines = ('[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"', "[project]")
    (folder / "pyproject.toml").write_text("\n".join([*lines, f'name = "{name}"', 'version = "1.0"', *points, ""]))
    return folder


def test_the_list_has_all_and_names_what_is_at_fault(made):
    done = made("-m", "petra_graph", "list", "losses", "--json")
    assert done.returncode == 0, done.stderr
    found = {(plugin["distribution"], plugin["name"]): plugin["fault"] for plugin in json.loads(done.stdout)}
    faults = {owner: fault for (owner, _), fault in found.items() if fault}
    assert faults == {}, "nothing is imported"
    assert sum(owner == "many-names" for owner, _ in found) == MANY
    twins = {"first-twin": "twin", "second-twin": "twin"}
    both = dict.fromkeys(("petra-graph", "of-the-first-party"), "cross-entropy")
    assert (twins | both).items() <= found.keys()
    assert "unreadable" in done.stderr
    assert "petra_graph.block" in done.stderr


@pytest.mark.parametrize("verb", [("validate",), ("run", "--dry-run")])
def test_a_spec_of_first_party_plugins_needs_no_change(made, verb):
    done = made.fork(*verb, QUICKSTART)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("yesterday", 4, ["of-yesterday", "is written for petra-graph 0.2"]),
        ("failing", 4, ["failing-import", "a_module_that_is_nowhere"]),
        ("twin", 4, ["first-twin, second-twin", "first_twin:A", "second_twin:A"]),
        ("unreadable", 2, ["unknown loss", "could not be read: unreadable-plugins"]),
        ("many-77x", 2, ["unknown loss", "did you mean", "many-77"]),
    ],
)
def test_who_writes_such_a_name_is_told(made, name, code, told):
    done = made.fork("validate", QUICKSTART, "--set", f'loss.name="{name}"')
    assert done.returncode == code, done.stderr
    assert [text for text in told if text not in done.stderr] == [], done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 20_000
