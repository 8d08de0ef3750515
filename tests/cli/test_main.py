"""The entry point: its imports, its verbs and options, its exit codes; and the verbs `validate`, `list` and `new`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest

from petra_graph.cli import main as front
from petra_graph.cli import spec_verbs
from petra_graph.cli.main import main
from petra_graph.errors import Interrupted, NoFeasiblePlan, PluginError, Problem, RunFailed, SpecError
from tests.support import ROOT
from tests.support.specs import SPEC

VERBS = """\
run [SPEC] --set --resume --processes --max-restarts --fast-dev-run --plan --dry-run -j --json
plan SPEC --set --profile --compare --expand --format --verbose --output -j --json
validate SPECS... --set -j --json
profile SPEC --set --output --micro-batches -j --json
runs [FOLDER] -j --json
report RUNS... --output -j --json
evaluate RUN --set --weights --split --device -j --json
predict RUN [FILES...] --set --weights --changed --top --device --prompt --tokens --temperature --top-k --seed -j --json
export RUN --format --weights --changed --output -j --json
list [WHAT] -j --json
check NAMES... --set --inputs -j --json
new plugin NAME -j --json
sweep SPEC [VARIED...] --set --seeds --at-once --processes --plan -j --json
"""


def test_the_command_line_is_frozen():
    """A change here is a change for everyone who calls us: look at the diff."""
    lines = []
    for name, command in front.command_line().commands.items():
        if isinstance(command, front.VerbElsewhere):
            command = command.load()
        assert command.name == name
        below = command.commands.items() if isinstance(command, click.Group) else ()
        for words, one in [(f"{name} {word}", one) for word, one in below] or [(name, command)]:
            lines.append(" ".join([words, *(written(parameter) for parameter in one.params)]))
    assert "\n".join(lines) + "\n" == VERBS


def written(parameter):
    if isinstance(parameter, click.Option):
        return " ".join(parameter.opts)
    name = parameter.name.upper() + "..." * (parameter.nargs != 1)
    return name if parameter.required else f"[{name}]"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["validat"], "Error: No such command 'validat'."),
        (["run", "--proceses", "2"], "Error: No such option '--proceses'. (Did you mean one of: '--processes'"),
        (["validate"], "Error: Missing argument 'SPEC...'.\n"),
        (["list", "blcks"], "there is no kind and no plugin \"blcks\"\n    help: did you mean 'blocks'? allowed: "),
    ],
)
def test_bad_usage_ends_with_2(capsys, arguments, error):
    assert front.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert error in printed.err


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (RunFailed("it broke"), 1, "it broke\n"),
        (
            SpecError([Problem(message="one"), Problem(message="two", hint="mend it")]),
            2,
            "one\ntwo\n    help: mend it\n2 problems\n",
        ),
        (NoFeasiblePlan("too big"), 3, "too big\n"),
        (PluginError("bad"), 4, "bad\n"),
        (Interrupted("SIGTERM"), 130, ""),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_what_a_verb_raises_becomes_an_exit_code(monkeypatch, capsys, error, code, printed):
    def verb(**_):
        raise error

    monkeypatch.setattr(spec_verbs.run, "callback", verb)
    assert front.main(["run"]) == code
    assert capsys.readouterr() == ("", printed)


def test_an_output_whose_reader_has_closed_the_pipe_is_no_error():
    reader, pipe = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "petra_graph", "list"]
    done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (0, b"")
    closed = ["bash", "-c", f"{sys.executable} -m petra_graph list >&-"]
    assert subprocess.run(closed, capture_output=True, text=True, check=True).stderr == ""


def test_a_folder_that_has_been_removed_is_no_error(here):
    """Runs elsewhere can still be listed from it."""
    command = f"mkdir {here}/runs {here}/gone; cd {here}/gone; rmdir {here}/gone; {sys.executable} -P -m petra_graph runs {here}/runs"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


CODE = """\
import sys
from petra_graph.cli.main import main
_, spec = sys.argv
for words in (["run", "--dry-run"], ["plan", "--format", "text", "--verbose"]):
    sys.argv[1:] = [*words, spec]
    assert main() == 0
    print(words[0], [name for name in ("torch._dynamo", "cattrs") if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.processes
def test_a_preparation_and_a_plan_import_no_compiler_and_print_for_any_locale():
    """Neither what reads values: these imports take half a second each, or more. Latin-1 has no lines below heads."""
    command = [sys.executable, "-c", CODE, str(ROOT / "specs" / "quickstart.toml")]
    done = subprocess.run(command, capture_output=True, check=True, env=os.environ | {"PYTHONIOENCODING": "latin-1"})
    assert r"\u2500" in done.stdout.decode("latin-1")
    assert done.stderr.decode().splitlines()[-2:] == ["run []", "plan []"]


@pytest.mark.processes
@pytest.mark.parametrize("words", [["--help"], ["list"], ["runs"]])
def test_what_needs_no_torch(here, words):
    code = (
        "import sys; from petra_graph.cli.main import main; code = main(sys.argv[1:]); "
        "print(code, [m for m in ('torch', 'numpy', 'networkx') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "0 []"


# --- verbs of other distributions ----------------------------------------------------------------------------------------

VERB = """\
import click

@click.command()
def greet():
    "Greet whoever calls."
    click.echo("hello")

"""


@pytest.fixture
def verbs(install):
    return lambda target: install("my-verbs-0", f"[petra_graph.verbs]\ngreet = {target}\n", my_verbs=VERB)


def test_a_verb_of_another_distribution_runs_and_is_in_the_help(verbs, capsys):
    verbs("my_verbs:greet")
    assert front.main(["greet"]) == 0
    assert capsys.readouterr().out == "hello\n"
    assert front.main(["--help"]) == 0
    assert "  greet     A verb of my-verbs-0.\n" in capsys.readouterr().out


def test_a_verb_that_cannot_be_used(verbs, capsys):
    verbs("my_verbs:missing")
    assert front.main(["greet"]) == 4
    message = "my-verbs-0: the verb 'greet' (my_verbs:missing) cannot be imported: AttributeError: "
    assert message in capsys.readouterr().err
    assert front.main(["--help"]) == 0, "the others can be used"
    assert "greet" in capsys.readouterr().out


PRINTS = """
from torch import nn
print("imported")

class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        print("built")
        self.linear = nn.Linear(64, 8)

    def forward(self, x):
        y = self.linear(x.flatten(1))
        return y, y
"""


def test_what_code_prints_is_no_json(write, capsys):
    write("prints.py", PRINTS)
    text = SPEC.replace('"linear-stem"', '"prints:Stem"').replace("{ features = 16 }", "{}")
    write("a.toml", text)
    for words in (["plan"], ["run", "--fast-dev-run"]):
        assert front.main([*words, "a.toml", "-j"]) == 0
        printed = capsys.readouterr()
        json.loads(printed.out)
        assert "built" in printed.err


# --- validate ---


def test_problems_of_several_specs_are_all_reported(write, capsys):
    write("good.toml", SPEC)
    write("bad.toml", SPEC.replace("lr", "lrr"))
    write("worse.toml", "run.epochs = 0\n" + SPEC)
    assert main(["validate", "bad.toml", "good.toml", "worse.toml"]) == 2
    assert capsys.readouterr() == (
        "good.toml: ok (3 nodes, 2,954 parameters)\n",
        """\
bad.toml:6: optimizer "sgd": unknown key lrr
    help: did you mean 'lr'? allowed: lr, momentum, nesterov, weight_decay
worse.toml:1: run.epochs: must be >= 1 (got 0)
2 problems
""",
    )


BAD_DATA = """\
def nodes(facts):
    return ["not a node"]
class Data:
    @staticmethod
    def facts():
        return nothing
"""


def test_json(write, capsys):
    write("good.toml", SPEC)
    write("bad.toml", SPEC.replace("lr", "lrr"))
    assert main(["validate", "good.toml", "bad.toml", "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith('bad.toml:6: optimizer "sgd": unknown key lrr')
    good, bad = json.loads(printed.out)
    assert good == {"spec": "good.toml", "ok": True, "nodes": 3, "parameters": 2954, "problems": []}
    (problem,) = bad["problems"]
    assert problem.keys() == {"message", "hint", "path", "file", "line"}
    assert (problem["path"], problem["file"], problem["line"]) == (["optimizer", "options", "lrr"], "bad.toml", 6)


def test_plugins_alone_are_to_blame(write, install, capsys):
    groups = {"losses": "bad_loss:LOSS", "datasets": "bad_data:Data", "architectures": "bad_data:nodes"}
    entries = "".join(f"[petra_graph.{group}]\nbad = {code}\n" for group, code in groups.items())
    install("bad-plugins", entries, bad_loss="raise RuntimeError('no')\n", bad_data=BAD_DATA)
    write("a.toml", SPEC + "[loss]\nname = 'bad'\n")
    write("b.toml", SPEC + "[run]\nepochs = 0\n")
    assert main(["validate", "a.toml", "b.toml"]) == 2
    network = "[data]\nname = 'digits'\n[architecture]\nname = 'bad'\n"
    capsys.readouterr()
    for text, said in (
        (
            SPEC + "[loss]\nname = 'bad'\n",
            "a.toml:29: loss \"bad\" of bad-plugins cannot be loaded from 'bad_loss:LOSS': ",
        ),
        (SPEC.replace('"digits"', '"bad"'), 'a.toml:1: data set "bad" of bad-plugins: facts failed: NameError: name '),
        (network, 'a.toml:3: architecture "bad" of bad-plugins is broken: it returns something else than a tuple of '),
    ):
        assert main(["validate", write("a.toml", text)]) == 4
        assert capsys.readouterr().err.startswith(said)


# --- list and new ---


def test_the_list_needs_no_torch_and_names_what_cannot_be_used(install, site, capsys):
    install("gone", "[petra_graph.losses]\nlost = no_such_module:LOSS\n")
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
    assert main(["list", "lost"]) == 4
    assert main(["list", "cross-entropi"]) == 2
    assert "did you mean 'cross-entropy'" in capsys.readouterr().err


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
