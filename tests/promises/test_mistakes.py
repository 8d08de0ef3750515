"""Mistakes in keys, values, files, devices and depths, as their makers see them: the whole output, to the letter, as `mistakes.txt` has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.specs import SPEC

OWN = """
[partition]
device_type = "my_card"
[partition.device.my_card]
memory = "24GiB"
flops = { float32 = 40e12 }
memory_bandwidth = 900e9
"""
OUTPUTS = dict(part.split("\n", 1) for part in Path(__file__).with_name("mistakes.txt").read_text().split("== ")[1:])
MISTAKES = {
    "misspelt key": [SPEC.replace("schedule =", "schedul =")],
    "misspelt key of a plugins options": [SPEC.replace("hidden", "hiden")],
    "misspelt table": [SPEC.replace("[method]", "[metod]")],
    "misspelt key on the command line": [SPEC, "--set", "method.acumulation=3"],
    "a type that no buffer or channel has": [
        SPEC + '\n[precision]\nchannel_dtype = "int4"\n',
        "--set",
        "precision.buffer_dtype='float16'",
    ],
    "an option beside the table of options": [SPEC, "--set", "optimizer.lr=0.2"],
    "wrong type": [SPEC.replace("accumulation = 2", 'accumulation = "2"')],
    "out of range": [SPEC.replace("accumulation = 2", "accumulation = 0")],
    "not one of the choices": [SPEC.replace('"lockstep"', '"lockstp"')],
    "unknown block": [SPEC.replace('"rev-mlp"', '"rev-mpl"')],
    "missing table and missing network": ["[run]\nepochs = 3\n"],
    "missing option": [SPEC.replace("options = { features = 16 }\n", "")],
    "every mistake of a file at once": [
        SPEC.replace("schedule =", "schedul =")
        .replace("accumulation = 2", "accumulation = 0")
        .replace("hidden", "hiden")
        .replace('"pool-linear"', '"pool-liner"'),
        "--set",
        "run.sed=3",
    ],
    "empty file": [""],
    "invalid toml": [SPEC.replace('"petra"', "petra")],
    # It is no schedule, and no way to leave one out.
    "an empty list of depths": [SPEC.replace('"lockstep"', "[]")],
    "the name of an architecture in the graph": ['[data]\nname = "digits"\n[graph]\nname = "revnet"\n'],
    "options as a text": ['[data]\nname = "digits"\n[architecture]\nname = "revnet"\noptions = "depth=18"\n'],
    "a list of tables in place of a table": [SPEC.replace("[method]", "[[method]]")],
    "a number in place of a table": [SPEC.replace("[[graph.node]]", "clip = 1.0\n[[graph.node]]", 1)],
    "options at the top of the file": ["options = { depth = 18 }\n" + SPEC],
    "a key in the wrong table": [SPEC + "[run]\nbatch = 4\nlr = 0.2\n\n[precision]\nepochs = 2\n"],
    "true in capitals": [SPEC + "[partition]\nuntie = True\n"],
    # The network that it would have given is not missing besides.
    "extends below a header": ['[data]\nname = "digits"\nextends = "base.toml"\n'],
    "a list of files with several mistakes": ['extends = ["none.toml", 3, "neither.toml"]\n' + SPEC],
    # That the stem reaches no head follows from it, and is no second mistake.
    "a node that reads nothing": [SPEC.replace('kind = "reversible"', "inputs = []")],
    # A file of a stranger must not write over the message, nor turn the order of its letters.
    "characters that control a terminal": [SPEC.replace('"rev-mlp"', '"rev-\u202emlp"')],
    "an invisible character in a key": [SPEC.replace("schedule =", "sched\u200bule =")],
    "reversible kind on a block without an inverse": [
        SPEC.replace('block = "rev-mlp"', 'block = "add"').replace("options = { hidden = 16 }\n", "")
    ],
    "cyclic graph": [SPEC.replace('kind = "reversible"', 'inputs = ["middle"]')],
    "no device": [SPEC + "\n[partition]\ndevices = 0\n"],
    "global norm of an asynchronous method": [SPEC + '\n[optimizer.clip]\nlimit = 1.0\nscope = "global"\n'],
    "an unknown device type": [SPEC + '[partition]\ndevices = 2\ndevice_type = ["h100", "abacus"]\n'],
    # It is not said to be unknown as well.
    "a device type of ones own that misses a figure": [SPEC + OWN.replace("memory_bandwidth = 900e9\n", "")],
    "a device type of ones own with the name of a card": [SPEC + OWN.replace("my_card", "h100")],
    "figures that no device has": [
        SPEC + OWN.replace("24GiB", "24 gigs").replace("40e12", "-40").replace("900e9", "900")
    ],
    "fewer memory sizes than devices": [SPEC + '[partition]\ndevices = 3\nmemory = ["1GiB", "2GiB"]\n'],
    "a device of no kind": [SPEC + '[partition]\ndevices = ["cpu", "gpu:0"]\n'],
    "more stages than nodes": [SPEC + "[partition]\nstages = 4\n"],
    "negative depths": [SPEC.replace('"lockstep"', "[-1, -3, 1]")],
    "depths that grow": [SPEC.replace('"lockstep"', "[1, 2, 1]")],
    "a last stage that looks ahead": [SPEC.replace('"lockstep"', "[2, 2, 2]")],
    # The network is cut later, but into a number of stages that is known.
    "depths of other stages than the cut": [SPEC.replace('"lockstep"', "[5, 3, 1]") + "[partition]\nstages = 2\n"],
}
"""A specification that is wrong in one place, and words for `validate`."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_whole_output(validate, mistake):
    assert validate(*MISTAKES[mistake]) == (2, OUTPUTS[mistake])


def test_there_is_nothing_wrong_to_begin_with(write, capsys):
    write("a.toml", SPEC)
    assert main(["validate", "a.toml"]) == 0
    assert capsys.readouterr() == ("a.toml: ok (3 nodes; shapes not checked, use run --dry-run)\n", "")


def test_not_text(validate, here):
    (here / "a.toml").write_bytes(b"\x89PNG\r\n")
    assert validate(None) == (2, "a.toml:1: not UTF-8 text\n")
