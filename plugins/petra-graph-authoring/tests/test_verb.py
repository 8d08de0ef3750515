"""`petra-graph new`: what it prints, what it writes, what it leaves alone."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from PIL import Image

from petra_graph.cli import plugin_verbs
from petra_graph.cli.main import main
from petra_graph.registry.discovery import scan


def test_a_package(here, capsys):
    assert main(["new", "plugin", "written-loss", "--loss"]) == 0
    assert capsys.readouterr().out == (
        """\
written-loss/pyproject.toml
written-loss/README.md
written-loss/src/written_loss/__init__.py
written-loss/src/written_loss/declared.py
written-loss/src/written_loss/loss.py
written-loss/tests/test_declared.py
written-loss/tests/test_loss.py
written-loss/example.toml

next:
  cd written-loss
  pip install -e '.[test]'
  petra-graph check written-loss
  python -m pytest
  petra-graph run example.toml
"""
    )
    assert (here / "written-loss/src/written_loss/loss.py").read_text().startswith('"""The loss."""\n')


@pytest.mark.parametrize("there", ["folder", "file"])
def test_nothing_is_overwritten(here, write, capsys, there):
    name = write({"folder": "written-loss/notes.txt", "file": "written-loss"}[there], "mine")
    assert main(["new", "plugin", "written-loss", "--loss"]) == 2
    assert capsys.readouterr().err == (
        "written-loss exists already\n    help: give another name: nothing is overwritten\n"
    )
    assert (here / name).read_text() == "mine"
    assert main(["new", "spec", name]) == 2
    assert (here / name).read_text() == "mine"


def test_without_this_distribution(monkeypatch, capsys):
    entries = tuple(entry for entry in scan()[0] if entry.distribution != "petra-graph-authoring")
    monkeypatch.setattr(plugin_verbs, "scan", lambda: (entries, ()))
    assert main(["new", "spec", "a.toml"]) == 2
    said = "The verb 'new' is not installed: install petra-graph-authoring: in a clone of petra-graph, "
    assert (
        said + "`pip install ./plugins/petra-graph-conformance ./plugins/petra-graph-authoring`."
        in capsys.readouterr().err
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "imported"), [("plugin a-new-loss --loss", "['attrs']"), ("spec a-new.toml", "['attrs', 'networkx']")]
)
def test_what_is_imported(here, words, imported):
    code = (
        "import sys; from petra_graph.cli.main import main; assert main(['new', *sys.argv[1:]]) == 0; "
        "print([m for m in ('torch', 'numpy', 'attrs', 'networkx') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, *words.split()]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.endswith(f"{imported}\n")


def test_no_kind(here, capsys):
    assert main(["new", "plugin", "written-loss"]) == 2
    assert "Error: Say what NAME is to have: --block, --buffered-block" in capsys.readouterr().err
    assert not (here / "written-loss").exists()


def test_a_folder_in_which_nothing_can_be_written(here, capsys):
    (here / "file").write_text("")
    assert main(["new", "spec", "file/a.toml"]) == 2
    assert "cannot write" in capsys.readouterr().err


SPECS = [
    (),
    ("--data", "cifar10", "--optimizer", "adamw", "--lr-schedule", "step"),
    ("--architecture", "resnet", "--data", "imagenet", "--optimizer", "lars"),
    ("--data", "random", "--lr-schedule", "polynomial"),
    ("--data", "image-folder", "--set", "method.schedule=lockstep"),
]


@pytest.mark.parametrize("arguments", SPECS, ids=" ".join)
def test_a_spec_is_right_with_its_comments_and_without(here, capsys, arguments):
    """A line that is a comment is a default: it may be made one of the spec."""
    assert main(["new", "spec", "mine.toml", *arguments]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == ["mine.toml", "", "next:"]
    assert said[-2:] == ["  petra-graph run mine.toml --dry-run", "  petra-graph run mine.toml"]
    needs_root = any(name in arguments for name in ("cifar10", "imagenet", "image-folder"))
    assert any("set data.options.root" in line for line in said) == needs_root
    text = (here / "mine.toml").read_text()
    assert main(["validate", "mine.toml"]) == 0
    uncommented = re.sub(r"^# (\w+ = (?!\.\.\.))", r"\1", text, flags=re.MULTILINE)
    assert uncommented.count("\n# ") < text.count("\n# ") - 5
    (here / "all.toml").write_text(uncommented)
    assert main(["validate", "all.toml"]) == 0, capsys.readouterr().err


@pytest.fixture
def photos(here):
    for name in ("cat", "dog", "owl"):
        (here / "photos" / name).mkdir(parents=True)
        for place in range(10):
            Image.new("RGB", (12, 10), (10 * place, 0, 0)).save(here / "photos" / name / f"{place}.jpg")
    return here


def test_a_folder_of_images_trains_with_the_next_command(photos, capsys):
    """Three dry-runs were needed: no root, ten classes where there are three, and a batch of more than all samples."""
    words = ["new", "spec", "mine.toml", "--data", "image-folder", "--root", "photos"]
    (photos / "photos" / "train").mkdir()
    assert main(words) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(" ")]
    assert said == f"{photos}/photos/train must hold at least two class folders (got none)", (
        "what follows from it is not said"
    )
    assert not (photos / "mine.toml").exists()
    (photos / "photos" / "train").rmdir()
    assert main([*words, "--set=architecture.options.width=0.1", "--set=run.epochs=2"]) == 0
    told = "24 training samples of 3 classes, 6 test samples; from the files: test_share = 0.2, size = 10"
    assert capsys.readouterr().out.startswith(f"mine.toml: {told}\n\nnext:\n")
    text = (photos / "mine.toml").read_text()
    assert re.search(r"^test_share = 0.2 +# share of each class", text, re.MULTILINE)
    assert re.search(r"^size = 10 +# height and width", text, re.MULTILINE)
    assert re.search(r"^batch = 4 +# samples", text, re.MULTILINE)
    assert re.search(r"^# classes = \.\.\. +# number of class folders", text, re.MULTILINE)
    assert main(["run", "mine.toml"]) == 0, capsys.readouterr().err
    assert "classes = 3" in (next((photos / "runs").iterdir()) / "resolved.toml").read_text()


def test_values_that_are_given_stay(photos, capsys):
    chosen = [
        "--data",
        "image-folder",
        "--root",
        "photos",
        "--set",
        "data.options.test_share=0.3",
        "--set",
        "data.options.size=12",
        "--set",
        "data.batch=6",
    ]
    assert main(["new", "spec", "mine.toml", *chosen]) == 0
    text = (photos / "mine.toml").read_text()
    for line in ("batch = 6 ", "test_share = 0.3 ", "size = 12 "):
        assert f"\n{line}" in text


def test_large_photos_and_files_that_are_none_leave_a_size_that_trains(photos, capsys):
    chosen = ["--data", "image-folder", "--root", "photos"]
    for place in range(10):
        for name in ("cat", "dog", "owl"):
            Image.new("RGB", (600, 300)).save(photos / "photos" / name / f"{place}.jpg")
    assert main(["new", "spec", "mine.toml", *chosen]) == 0
    assert "\nsize = 224 " in (photos / "mine.toml").read_text()
    (photos / "photos/cat/1.jpg").write_bytes(b"")
    assert main(["new", "spec", "other.toml", *chosen]) == 2
    assert capsys.readouterr().err.startswith(f"{photos}/photos/cat/1.jpg cannot be decoded: it is empty\n")


@pytest.mark.parametrize(
    "words",
    [
        ["spec", f"{'a' * 5_000}.toml"],
        ["spec", "mine.toml", "--data", "image-folder", "--root", "a" * 5_000],
        ["spec", "mine.toml", "--data", "image-folder", "--root", "photos", f"--set=data.options.train={'a' * 5_000}"],
    ],
)
def test_a_path_that_no_file_can_have(photos, capsys, words):
    """It ended in a traceback, or was called a fault of the data set."""
    assert main(["new", *words]) == 2
    assert re.search(r"aaa(\.toml)? (cannot be a file|cannot be read): File name too long\n", capsys.readouterr().err)


def test_defaults_are_first_party_where_another_package_has_their_names(install, here):
    install("my-plugins", "[petra_graph.optimizers]\nsgd = a:b\n[petra_graph.losses]\ncross-entropy = a:b\n")
    assert main(["new", "spec", "mine.toml"]) == 0
    text = (here / "mine.toml").read_text()
    assert 'name = "petra-graph:sgd"  ' in text
    assert 'name = "petra-graph:cross-entropy"  ' in text


def test_every_option_of_its_plugins_is_in_it(here):
    main(["new", "spec", "mine.toml", "--data", "cifar10"])
    text = (here / "mine.toml").read_text()
    assert 'root = "~/data"  ' in text
    assert re.search(r"^# width = 1\.0 +# multiplier of every layer's channels; > 0$", text, re.MULTILINE)
    assert re.search(r"^depth = 18 +# depth of the ResNet", text, re.MULTILINE)


def test_values_that_are_set(here, capsys):
    (here / "specs").mkdir()
    chosen = ["--data", "image-folder"]
    given = ["data.options.root=pictures", "architecture.options.classes=3", "run.epochs=2", "optimizer.clip={limit=2}"]
    assert main(["new", "spec", "specs/mine.toml", *chosen, *(word for one in given for word in ("--set", one))]) == 0
    text = (here / "specs/mine.toml").read_text()
    assert f'root = "{here}/pictures"  ' in text, "as it stands on the command line, relative to the working directory"
    assert re.search(r"^classes = 3 +# outputs of the head", text, re.MULTILINE)
    assert re.search(r"^# classes = \.\.\. +# number of class folders", text, re.MULTILINE)
    assert "\nsize = 64  " in text
    assert "\nepochs = 2  " in text
    assert main(["validate", "specs/mine.toml"]) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("run.epoch=2", "a new spec has no key run.epoch to set\n    help: did you mean 'run.epochs'?"),
        ("data.name=cifar10", "a new spec has no key data.name to set\n    help: plugins are chosen with --data\n"),
        ("run.epochs=many", 'epochs in [run] must be an integer (got "many")\n'),
    ],
)
def test_values_that_cannot_be_set(here, capsys, given, message):
    assert main(["new", "spec", "mine.toml", "--set", given]) == 2
    assert capsys.readouterr().err.startswith(message)
    assert not (here / "mine.toml").exists()


def test_a_data_set_beside_the_spec(write, capsys):
    write(
        "specs/spoken.py",
        """
        from petra_graph.plugins import DataFacts

        class Digits:
            "Spoken digits."
            facts = DataFacts(shape=(3, 8, 8), classes=10)
        """,
    )
    assert main(["new", "spec", "specs/mine.toml", "--data", "spoken:Digits"]) == 0
    assert main(["validate", "specs/mine.toml"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "cifar11"], "unknown data set \"cifar11\"\n    help: did you mean 'cifar10'?"),
        (["--data", "vector:Set"], "the network reads images, but the data set's samples have shape [2]\n"),
    ],
)
def test_plugins_that_are_not_there_or_do_not_fit(here, write, capsys, arguments, message):
    write(
        "vector.py",
        "from petra_graph.plugins import DataFacts\nclass Set:\n    facts = DataFacts(shape=(2,), classes=2)\n",
    )
    assert main(["new", "spec", "mine.toml", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)
    assert not (here / "mine.toml").exists()


def test_what_only_the_user_knows_is_asked_for_by_its_key(here, write, capsys):
    """A text has no likely value: where the plugin refuses the placeholder, the message says what to set."""
    write(
        "spoken.py",
        """
        from attrs import validators
        from petra_graph.plugins import DataFacts, DataSetDeclaration, declares, option

        @declares(DataSetDeclaration, "spoken:open")
        class Digits:
            "Spoken digits."
            voice: str = option("who speaks", validator=validators.matches_re("[a-z]+"))

            def facts(self):
                return DataFacts(shape=(3, 8, 8), classes=10)
        """,
    )
    words = ["new", "spec", "mine.toml", "--data", "spoken:Digits"]
    assert main(words) == 2
    assert "\n    help: choose it: --set data.options.voice=...\n" in capsys.readouterr().err
    assert main([*words, "--set", "data.options.voice=ada"]) == 0
