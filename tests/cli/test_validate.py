"""`petra-graph validate`, as its users see it."""

import json

from petra_graph.cli.main import main
from tests.support.specs import SPEC


def test_problems_of_several_specs_are_all_reported(write, capsys):
    write("good.toml", SPEC)
    write("bad.toml", SPEC.replace("lr", "lrr"))
    write("worse.toml", "run.epochs = 0\n" + SPEC)
    assert main(["validate", "bad.toml", "good.toml", "worse.toml"]) == 2
    assert capsys.readouterr() == (
        "good.toml: ok (3 nodes, 2,954 parameters)\n",
        """\
bad.toml:6: unknown key "lrr" in the options of optimizer "sgd"
    help: did you mean 'lr'? allowed: lr, momentum, nesterov, weight_decay
worse.toml:1: epochs in [run] must be at least 1 (got 0)
2 problems
""",
    )


def test_json(write, capsys):
    write("good.toml", SPEC)
    write("bad.toml", SPEC.replace("lr", "lrr"))
    assert main(["validate", "good.toml", "bad.toml", "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.err == ""
    good, bad = json.loads(printed.out)
    assert good == {"spec": "good.toml", "ok": True, "nodes": 3, "parameters": 2954, "problems": []}
    (problem,) = bad["problems"]
    assert problem.keys() == {"message", "hint", "path", "file", "line"}
    assert (problem["path"], problem["file"], problem["line"]) == (["optimizer", "options", "lrr"], "bad.toml", 6)


def test_plugins_alone_are_to_blame(write, install, capsys):
    install("bad-losses", "[petra_graph.losses]\nbad = bad_loss:LOSS\n", bad_loss="raise RuntimeError('no')\n")
    write("a.toml", SPEC + "[loss]\nname = 'bad'\n")
    write("b.toml", SPEC + "[run]\nepochs = 0\n")
    assert main(["validate", "a.toml"]) == 4
    assert main(["validate", "a.toml", "b.toml"]) == 2
