"""Mistakes in plugins of every kind, as their users see them: what `run --dry-run` says, then `run`, to the letter.

`mistaken.py` has the plugins; `mistakes_of_plugins.txt` what is said of each, with both exit codes:

    == KIND/NAME: code of the dry run, code of the run
    what both say, or what the dry run says
    -- run
    what the run says, where that differs, but for its heading and its epochs

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
TABLE = Path(__file__).with_name("mistakes_of_plugins.txt")
EXPECTED = {
    head.partition(":")[0]: (head.partition(": ")[2], text)
    for head, _, text in (part.partition("\n") for part in TABLE.read_text().split("== ")[1:])
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
        r"(?m)^(mine: \d|run directory: |checked |still warning: 4 stages on 1 device|epoch 1/1).*\n", "", text
    )
    text = re.sub(r"\S*/mistaken\.py:\d+", "mistaken.py", text)
    return re.sub(r"\b\d\.\d+e[+-]\d+|\b\d+\.\d{4,}\b", "#", text)


@pytest.fixture
def outcome(write, install, capsys):
    def of(kind: str, name: str) -> tuple[str, str]:
        install("my-plugins", ENTRY_POINTS)
        write("a.toml", spec_of(kind, name))
        codes, texts = [], []
        for more in (["--dry-run"], []):
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002  some of the plugins draw from it
            codes.append(main(["run", "a.toml", *more]))
            texts.append(said(capsys.readouterr().err))
        run = f"-- run\n{texts[1]}" if texts[1] != texts[0] else ""
        return f"{codes[0]}, {codes[1]}", f"{texts[0]}{run}"

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
    assert outcome(kind, name) == EXPECTED[f"{kind}/{name}"]


def test_there_is_nothing_wrong_to_begin_with(outcome):
    assert outcome("blocks", "Right") == ("0, 0", "")


def test_the_table_has_forty_mistakes_and_each_is_found_before_or_in_the_training():
    assert sorted(EXPECTED) == sorted(f"{kind}/{name}" for kind, name in MISTAKES)
    assert len(EXPECTED) > 40
    only_warned = [name for name, (codes, _) in EXPECTED.items() if codes == "0, 0"]
    assert only_warned == [
        "blocks/Spare",
        "blocks/Softmax",
        "losses/Ascends",
        "lr_schedules/percents",
        "datasets/Shared",
        "datasets/OneClass",
    ]
    for codes, text in EXPECTED.values():
        assert "Traceback" not in text
        assert codes == "0, 0" or "\n    help: " in text
