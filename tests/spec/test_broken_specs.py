"""Broken specifications as their makers see them: the whole output of `validate`, to the letter, as `broken_specs.txt` has it.

Only long lists of what is allowed are shortened there: they grow with the plugins that are installed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.specs import SPEC

OWN = """
[partition]
device_type = "my_card"
[partition.device.my_card]
memory = "24GiB"
float32_flops = 40e12
memory_bandwidth = 900e9
"""
BY_NAME = '[data]\nname = "digits"\n[architecture]\nname = "revnet"\noptions = { depth = 18 }\n'
BROKEN = {
    # Keys and values.
    "misspelt key": [SPEC.replace("schedule =", "schedul =")],
    "misspelt key of a plugin's options": [SPEC.replace("hidden", "hiden")],
    "misspelt table": [SPEC.replace("[method]", "[metod]")],
    "misspelt key on the command line": [SPEC, "method.acumulation=3"],
    "misspelt value": [SPEC.replace('"lockstep"', '"lockstp"')],
    "a type that no buffer or channel has": [
        SPEC + '\n[precision]\nchannel_dtype = "int4"\n',
        "precision.buffer_dtype='float16'",
    ],
    "code without an attribute": [
        SPEC.replace('name = "digits"', 'name = "torch"\noptions = { train = "own", test = "own:Test" }')
    ],
    "an option beside the table of options": [SPEC, "optimizer.lr=0.2"],
    "text for an integer": [SPEC.replace("accumulation = 2", 'accumulation = "2"')],
    "a number that is none": [SPEC, "lr_schedule.warmup_epochs=nan"],
    "a text as an option": [SPEC.replace("lr = 0.1", 'lr = "0.1"')],
    "out of range": [SPEC.replace("accumulation = 2", "accumulation = 0")],
    "missing table and missing network": ["[run]\nepochs = 3\n"],
    "missing option": [SPEC.replace("options = { features = 16 }\n", "")],
    "missing block": [SPEC.replace('block = "rev-mlp"\n', "")],
    "missing name of the data": [BY_NAME.replace('name = "digits"\n', "batch = 8\n")],
    "every mistake of a file at once": [
        SPEC.replace("schedule =", "schedul =")
        .replace("accumulation = 2", "accumulation = 0")
        .replace("hidden", "hiden")
        .replace('"pool-linear"', '"pool-liner"'),
        "run.sed=3",
    ],
    "two problems of one table": [SPEC.replace('schedule = "lockstep"', "schedule = 3.5\nkep = 1")],
    "an empty list of depths": [SPEC.replace('"lockstep"', "[]")],
    "the name of an architecture in the graph": ['[data]\nname = "digits"\n[graph]\nname = "revnet"\n'],
    "both networks": [SPEC + '[architecture]\nname = "revnet"\n'],
    "options as a text": [BY_NAME.replace("{ depth = 18 }", '"depth=18"')],
    "a list of tables in place of a table": [SPEC.replace("[method]", "[[method]]")],
    "a table in place of a list of tables": [BY_NAME + '[callback]\nname = "ema"\n'],
    "options at the top of the file": ["options = { depth = 18 }\n" + SPEC],
    "a key in the wrong table": [SPEC + "[run]\nbatch = 4\nlr = 0.2\n\n[precision]\nepochs = 2\n"],
    "a name that is a path": [SPEC, "name=../evil", 'graph.node.middle.name="a/b"'],
    "no interval": [SPEC, "checkpoint.every=often", "checkpoint.keep=0"],
    "training data for validation": [SPEC, "data.validation=train"],
    "a callback twice": [SPEC, "callback=[{ name = 'ema' }, { name = 'ema' }]"],
    # Files.
    "empty file": [""],
    "not text": [b"\x89PNG\r\n"],
    "text without quotes": [SPEC.replace('"petra"', "petra")],
    "a key twice": [SPEC.replace('name = "petra"', 'name = "petra"\nname = "dsp"')],
    "deep nesting": [f"run = {'[' * 3000}{']' * 3000}\n"],
    "extends itself": ['extends = "a.toml"\n' + SPEC],
    # The network that it would have given is not missing besides.
    "extends below a header": ['[data]\nname = "digits"\nextends = "base.toml"\n'],
    "a list of files with several mistakes": ['extends = ["none.toml", 3, "neither.toml"]\n' + SPEC],
    # A file of a stranger must not write over the message, nor turn the order of its letters.
    "characters that control a terminal": [SPEC.replace('"rev-mlp"', '"rev-\u202emlp"')],
    "an invisible character in a key": [SPEC.replace("schedule =", "sched\u200bule =")],
    # The command line.
    "no value to set": [SPEC, "epochs", "=3", "run.epochs="],
    "no key of TOML": [SPEC, "run..epochs=1"],
    "no value of TOML": [SPEC, "partition.devices=[cuda:0, cpu]"],
    "a node that is not there": [SPEC, "graph.node.midle.repeat=2", "graph.node.7.repeat=2"],
    "a key below a value": [SPEC, "method.name.x=1"],
    # Plugins.
    "unknown block": [SPEC.replace('"rev-mlp"', '"rev-mpl"')],
    "unknown data set": [SPEC.replace('"digits"', '"digit"')],
    "unknown optimizer, loss and schedule": [SPEC, "optimizer.name=sdg", "loss.name=l2", "lr_schedule.name=cosin"],
    "unknown method": [SPEC, "method.name=pertra"],
    "a file that is not there": [SPEC, "loss.name=my_loss:Mine"],
    # Graphs and shapes.
    "a node that reads what is not there": [SPEC.replace('kind = "reversible"', 'inputs = ["steam"]')],
    "two nodes of one name": [SPEC.replace('"middle"', '"stem"')],
    "no head": [SPEC[: SPEC.index('[[graph.node]]\nname = "head"')]],
    "reversible kind on a block without an inverse": [
        SPEC.replace('block = "rev-mlp"', 'block = "add"').replace("options = { hidden = 16 }\n", "")
    ],
    "cyclic graph": [SPEC.replace('kind = "reversible"', 'inputs = ["middle"]')],
    "a head of other classes": [SPEC.replace("outputs = 10", "outputs = 7")],
    "a block that cannot read its input": [
        SPEC.replace('block = "rev-mlp"\nkind = "reversible"', 'block = "down-basic"').replace("hidden", "channels")
    ],
    "nothing to freeze": [SPEC, "init.freeze=['layer*']"],
    # Methods, stages and devices.
    "a schedule of another method": [SPEC, "method.name=backprop", "method.schedule=1f1b"],
    "depths of a method without delay": [SPEC, "method.name=backprop", "method.schedule=[2, 1, 1]"],
    "global norm of an asynchronous method": [SPEC + '\n[optimizer.clip]\nlimit = 1.0\nscope = "global"\n'],
    "what would keep parameters of then": [
        SPEC,
        "method={ name = 'paci' }",
        "checkpoint.every='5 updates'",
        "precision.compute='bfloat16'",
        "run.compile=true",
    ],
    "keeping what is not there": [SPEC, "method.keep={ midle = 'input', head = 'graph', stem = 'nothing' }"],
    "stages of other nodes": [SPEC, "partition.stages=[['stem'], ['head', 'midle']]"],
    "more stages than nodes": [SPEC + "[partition]\nstages = 4\n"],
    "negative depths": [SPEC.replace('"lockstep"', "[-1, -3, 1]")],
    "depths that grow": [SPEC.replace('"lockstep"', "[1, 2, 1]")],
    "a last stage that looks ahead": [SPEC.replace('"lockstep"', "[2, 2, 2]")],
    # The network is cut later, but into a number of stages that is known.
    "depths of other stages than the cut": [SPEC.replace('"lockstep"', "[5, 3, 1]") + "[partition]\nstages = 2\n"],
    "a device of no kind": [SPEC + '[partition]\ndevices = ["cpu", "gpu:0"]\n'],
    "an unknown device type": [SPEC + '[partition]\ndevices = 2\ndevice_type = ["h100", "abacus"]\n'],
    "a device type of one's own that misses a figure": [SPEC + OWN.replace("memory_bandwidth = 900e9\n", "")],
    "figures that no device has": [
        SPEC + OWN.replace("24GiB", "24 gigs").replace("40e12", "-40").replace("900e9", "900")
    ],
    "fewer memory sizes than devices": [SPEC + '[partition]\ndevices = 3\nmemory = ["1GiB", "2GiB"]\n'],
}
"""A specification that is wrong in one place, and what is `--set`."""
OUTPUTS = Path(__file__).with_name("broken_specs.txt")


def output(mistake, here, capsys):
    text, *settings = BROKEN[mistake]
    (here / "a.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    code = main(["validate", "a.toml", *(word for one in settings for word in ("--set", one))])
    printed = capsys.readouterr()
    assert printed.out == ""
    return code, re.sub(r"(allowed: )(?=[^\n]{50})[^\n]+", r"\1...", printed.err.replace(str(here), "HERE"))


@pytest.mark.parametrize("mistake", BROKEN)
def test_the_whole_output(mistake, here, capsys):
    expected = dict(part.split("\n", 1) for part in OUTPUTS.read_text().split("== ")[1:])
    assert output(mistake, here, capsys) == (2, expected[mistake])


def test_there_is_nothing_wrong_to_begin_with(write, capsys):
    write("a.toml", SPEC)
    write("b.toml", BY_NAME)
    assert main(["validate", "a.toml", "b.toml"]) == 0
    assert capsys.readouterr() == (
        "a.toml: ok (3 nodes, 2,954 parameters)\nb.toml: ok (10 nodes, 11,183,498 parameters)\n",
        "",
    )
