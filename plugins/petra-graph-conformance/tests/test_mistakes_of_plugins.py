"""Mistakes in plugins of every kind, as their users see them: what `run --dry-run` says or, where it finds nothing, `run`.

`mistaken.py` has the plugins. `mistakes_of_plugins.txt` has both exit codes and the beginning of the message of each, a line a plugin,
then all that is said of some, to the letter:

    KIND/NAME: code of the dry run, code of the run: where, and what is wrong
    == KIND/NAME: code of the dry run, code of the run
    what the dry run says
    -- run
    what the run says, where the dry run found nothing to refuse, but for its heading and its epochs

Files' folders, lines of `mistaken.py`, sizes of errors, and numbers of many digits are left out.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from petra_graph.cli.main import main
from tests.promises.mistaken import ENTRY_POINTS, Declared

SPEC = """\
name = "mine"
[[graph.node]]
name = "stem"
block = "linear-stem"
options = {{ features = 6 }}
[[graph.node]]
name = "mine"
block = "{blocks}"
[[graph.node]]
name = "after"
block = "{after}"
[[graph.node]]
name = "head"
block = "{heads}"
options = {{ {outputs} }}
[method]
schedule = "1f1b"
[optimizer]
name = "{optimizers}"
[lr_schedule]
name = "{lr_schedules}"
[loss]
name = "{losses}"
[data]
name = "{datasets}"
batch = 8
{options}
[run]
epochs = 1
"""
RIGHT = {
    "blocks": "Right",
    "after": "Right",
    "heads": "pool-linear",
    "outputs": "outputs = 3",
    "optimizers": "sgd",
    "lr_schedules": "constant",
    "losses": "cross-entropy",
    "datasets": "random",
    "options": 'options = { shape = [4], dtype = "float32", classes = 3, train = 40, test = 8 }',
}
TABLE, *_WHOLE = Path(__file__).with_name("mistakes_of_plugins.txt").read_text().split("== ")
BEGINNINGS = {name: (codes, text) for name, codes, text in (line.split(": ", 2) for line in TABLE.splitlines())}
WHOLE = {
    head.partition(": ")[0]: (head.partition(": ")[2], text)
    for head, _, text in (part.partition("\n") for part in _WHOLE)
}


def spec_of(kind: str, name: str) -> str:
    """Return a specification that is right but for one plugin."""
    if kind == "architectures":
        network, rest = SPEC.index("[[graph.node]]"), SPEC.index("[method]")
        return f'{SPEC[:network]}[architecture]\nname = "{name}"\n{SPEC[rest:]}'.format(**RIGHT)
    if kind in {"loggers", "callbacks", "metrics"}:
        return f'{SPEC.format(**RIGHT)}[[{kind[:-1]}]]\nname = "{name}"\n'
    if name == "Softmax":
        return SPEC.format(**{**RIGHT, "heads": name, "outputs": ""})
    one = {kind: name, **({"after": name} if name == "Tied" else {}), **({"options": ""} if kind == "datasets" else {})}
    return SPEC.format(**{**RIGHT, **one})


def said(text: str) -> str:
    """Return what was said, without what differs between machines and runs."""
    text = re.sub(
        r"(?m)^(mine: \d|run directory: |checked |still |epoch 1/1).*\n",
        "",
        text,
    )
    text = re.sub(r"\S*/mistaken\.py:\d+", "mistaken.py", text)
    return re.sub(r"\b\d\.\d+e[+-]\d+|\b\d+\.\d{4,}\b", "#", text)


@pytest.fixture
def outcome(write, install, capsys):
    """Return the exit codes of a dry run and of the run, which is tried where that refuses nothing, and what both say."""

    def of(kind: str, name: str) -> tuple[str, str]:
        install("my-plugins", ENTRY_POINTS)
        write("a.toml", spec_of(kind, name))
        code, text = run("--dry-run")
        if code != 0:
            return f"{code}, {code}", text
        trained, told = run()
        return f"{code}, {trained}", text if told == text else f"{text}-- run\n{told}"

    def run(*more: str) -> tuple[int, str]:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002  some of the plugins draw from it
        return main(["run", "a.toml", *more]), said(capsys.readouterr().err)

    return of


MISTAKES = [
    (kind, name)
    for kind, plugins in vars(Declared).items()
    if not kind.startswith("_")
    for name in vars(plugins)
    if name != "Right"
]


@pytest.mark.parametrize(("kind", "name"), MISTAKES)
def test_it_is_found_with_the_right_name_the_place_and_what_to_do(kind, name, outcome):
    found, whole = outcome(kind, name), WHOLE.get(f"{kind}/{name}")
    if whole is not None:
        assert found == whole
        return
    codes, beginning = BEGINNINGS[f"{kind}/{name}"]
    assert found[0] == codes
    text = found[1].rpartition("-- run\n")[2]
    assert text.startswith(beginning)
    assert codes == "0, 0" or "\n    help: " in text
    assert "Traceback" not in text


README = Path(__file__).parents[1] / "README.md"
HEADS = ("refused before a run", "warned of", "named in the first steps", "found by `check` alone", "never found")
ONLY_BY_CHECK = {"callbacks": 8, "loggers": 3}
"""Mistakes of `kinds/test_mistakes_in_callbacks_and_loggers.py`, whose promises no run asks."""


def test_the_readme_counts_by_kind_when_mistakes_are_found():
    counts = {kind: dict.fromkeys(HEADS, 0) for kind, _ in MISTAKES}
    for name, (codes, _) in {**BEGINNINGS, **WHOLE}.items():
        dry, trained = codes.split(", ")
        counts[name.partition("/")[0]][HEADS[0 if dry != "0" else 1 if trained == "0" else 2]] += 1
    for kind, found in ONLY_BY_CHECK.items():
        counts[kind][HEADS[3]] = found
    rows = [
        line.strip("| ").split(" | ") for line in README.read_text().splitlines() if line.count("|") == len(HEADS) + 2
    ]
    assert rows[0] == ["kind", *HEADS]
    of_readme = {kind: dict(zip(HEADS, map(int, numbers), strict=True)) for kind, *numbers in rows[2:]}
    names = {"datasets": "data sets", "lr_schedules": "schedules"}
    assert of_readme == {names.get(kind, kind): row for kind, row in counts.items()}
    refused, warned, named = (sum(row[head] for row in counts.values()) for head in HEADS[:3])
    said = " ".join(README.read_text().split())
    assert f"Of {len(MISTAKES)} mistakes" in said
    assert f"a dry run refuses {refused} and warns of {warned}, and {named} are named in the first steps" in said


def test_a_run_refuses_what_a_dry_run_refuses(write, install, capsys):
    install("my-plugins", ENTRY_POINTS)
    write("a.toml", spec_of("blocks", "InverseSwapped"))
    assert [main(["run", "a.toml", *more]) for more in (["--dry-run"], [])] == [4, 4]
    dry, run = capsys.readouterr().err.split("a.toml:6:1: ")[1:]
    assert dry == run


def test_there_is_nothing_wrong_to_begin_with(outcome):
    assert outcome("blocks", "Right") == ("0, 0", "")


def test_the_table_has_every_mistake_and_each_is_found_before_or_in_the_training():
    assert sorted([*BEGINNINGS, *WHOLE]) == sorted(f"{kind}/{name}" for kind, name in MISTAKES)
    only_warned = {name for name, (codes, _) in {**BEGINNINGS, **WHOLE}.items() if codes == "0, 0"}
    assert only_warned == {
        "blocks/Spare",
        "blocks/Softmax",
        "losses/Ascends",
        "lr_schedules/percents",
        "datasets/Shared",
        "datasets/OneClass",
    }
