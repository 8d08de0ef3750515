"""What the pages of the repository show works: commands, listings, links; and the architecture page names the packages as they are."""

import re
import runpy
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from petra_graph.cli.main import main
from petra_graph.spec.load_spec import load
from tests.conftest import forgotten_afterwards
from tests.promises.test_specs import random_data
from tests.support import ROOT
from tests.support.pages import Page, copy_by_links, pages, unnamed_listings

PAGES = pages()
COMMANDS: dict[tuple[str, ...], Page] = {}
"""Each command once, in the order of pages, with the first page that shows it."""
for _page in PAGES:
    for _command in _page.commands:
        COMMANDS.setdefault(_command, _page)


def by_name(page: Page) -> str:
    return page.name


README_LINES, README_WORDS = 130, 1_100
"""What a visitor reads at once; everything else is on the page of the folder that it is about."""


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= README_LINES
    assert len(re.findall(r"(?<!\S)\S*\w\S*", text)) <= README_WORDS


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_lead_somewhere(page):
    assert list(page.broken_links()) == []


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for the commands of each page: the page's package, or the whole repository, by links."""
    made: dict[Path, Path] = {}

    def folder(page: Page) -> Path:
        source = page.path.parent if (page.path.parent / "pyproject.toml").exists() else ROOT
        if source not in made:
            made[source] = tmp_path_factory.mktemp("shown") / source.name
            copy_by_links(source, made[source])
        return made[source]

    return folder


OURS = [command for command in COMMANDS if command[0] == "petra-graph"]


@pytest.mark.parametrize("command", OURS, ids=" ".join)
def test_a_command_of_petra_graph(command, folders, monkeypatch, capsys, install_from):
    page = COMMANDS[command]
    monkeypatch.chdir(folders(page))
    if page.path.parent != ROOT and (page.path.parent / "pyproject.toml").exists():
        install_from(page.path.parent)
    for word in command:
        if word.endswith(".png") and not Path(word).exists():
            Image.new("L", (8, 8), 90).save(word)
    if "latest" in command and not list(Path("runs").glob("*/checkpoints/*")):
        epoch = ("--set", "run.epochs=1", "--set", "checkpoint.every=1 epoch")
        text = (
            "specs/gpt_stdlib.toml",
            "--fast-dev-run",
            "--set",
            "data.options.root=results/shakespeare.json",
            "--set",
            "callback=[]",
        )
        assert main(["run", *(text if "--prompt" in command else ("specs/quickstart.toml", *epoch))]) == 0
    assert main(shortened([name for word in command[1:] for name in expanded(word)])) == 0
    assert capsys.readouterr().out


def expanded(word):
    """The names that a shell puts in place of a word."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def shortened(arguments):
    """The same command without its training, without data that is not here, of a smaller network, and without what takes ONNX seconds."""
    arguments = ["5" if before == "--tokens" else word for before, word in pairwise(["", *arguments])]
    arguments = [word.replace("revnet50_imagenet", "revnet18_imagenet") for word in arguments]  # the keys are the same
    if arguments[0] == "export":
        arguments = [word.replace("onnx", "torch-export") for word in arguments]
    if arguments[0] == "sweep":
        arguments = (
            [word.partition(",")[0] for word in arguments] + [] if "--plan" in arguments else ["sweep", "--help"]
        )
    if arguments[0] == "run":
        arguments += [] if "--dry-run" in arguments else ["--dry-run"]
        arguments += [] if re.search(r"quickstart|digits|--resume", arguments[1]) else random_data(Path(arguments[1]))
    return arguments


@pytest.fixture
def install_from(install, monkeypatch):
    """Put a package's entry points and modules on Python's path; tests/pages/test_example_plugins.py installs it with pip."""

    def install_package(folder: Path) -> None:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        groups = (
            "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in points.items())])
            for group, points in project["entry-points"].items()
        )
        install(project["name"], "\n".join(groups))
        monkeypatch.syspath_prepend(str(folder))

    return install_package


def test_commands_of_make():
    named = re.findall(r"`make ([a-z]+)`", "".join(page.prose for page in PAGES))
    for target in {*((name,) for name in named), *(one[1:] for one in COMMANDS if one[0] == "make")}:
        subprocess.run(["make", "--dry-run", *target], cwd=ROOT, capture_output=True, check=True)


@pytest.mark.parametrize("tool", sorted({one[1] for one in COMMANDS if one[0] == "python" and one[1] != "-m"}))
def test_commands_of_a_tool_are_parsed_by_it(tool, monkeypatch):
    monkeypatch.syspath_prepend(str((ROOT / tool).parent))
    with forgotten_afterwards((ROOT / tool).parent):
        main = runpy.run_path(str(ROOT / tool), run_name="shown")["main"]
        for command in (one for one in COMMANDS if one[:2] == ("python", tool)):
            main.make_context(tool, list(command[2:]))


# --- listings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if unnamed_listings(page, "toml")], ids=by_name)
def test_parts_of_specs_have_keys_that_there_are(page):
    for listing in unnamed_listings(page, "toml"):
        values = {key: value for key, value in tomllib.loads(listing).items() if key != "extends"}
        problems = load(values).problems
        assert [one.message for one in problems if "missing" not in one.message and "neither" not in one.message] == []


@pytest.mark.parametrize("page", [page for page in PAGES if "```toml\nname = " in page.text], ids=by_name)
def test_whole_specs_would_run(page, write, capsys):
    for listing in page.listings("toml"):
        if listing.startswith("name = "):
            assert main(["run", write("spec.toml", listing), "--dry-run"]) == 0
            assert capsys.readouterr().out


def test_the_spec_of_the_readme_is_the_quickstarts():
    shown = tomllib.loads(Page(ROOT / "README.md").listings("toml")[0])
    real = tomllib.loads((ROOT / "specs/quickstart.toml").read_text())
    assert shown["method"] == real["method"]
    assert all(node in real["graph"]["node"] for node in shown["graph"]["node"])


OWN_BLOCKS = {page: listing for page in PAGES for listing in page.listings("python") if "\nclass MyBlock(" in listing}


@pytest.mark.parametrize("page", OWN_BLOCKS, ids=by_name)
def test_an_own_block_trains(page, write, capsys):
    write("my_module.py", OWN_BLOCKS[page])
    spec = (ROOT / "specs/quickstart.toml").read_text().replace('"rev-basic"', '"my_module:MyBlock"')
    write("spec.toml", spec)
    assert main(["run", "spec.toml", "--set", "run.epochs=1"]) == 0
    assert "quickstart: done (epochs: 1" in capsys.readouterr().out


FROM_PYTHON = [
    listing for page in PAGES for listing in unnamed_listings(page, "python") if "import petra_graph as pg\n" in listing
]


@pytest.mark.parametrize("listing", FROM_PYTHON)
def test_a_listing_of_the_python_api_runs(listing, folders, monkeypatch, capsys):
    monkeypatch.chdir(folders(PAGES[0]))
    Image.new("L", (8, 8), 90).save("digit.png")
    exec(listing.replace('"run.epochs": 3', '"run.epochs": 1'), {})
    assert "359 samples, weights of runs/" in capsys.readouterr().out


def test_a_mistake_is_reported_as_shown(write, capsys):
    (shown,) = re.findall(r"```\n(specs/a\.toml:.*?)```", (ROOT / "specs" / "README.md").read_text(), re.DOTALL)
    write("specs/a.toml", (ROOT / "specs/quickstart.toml").read_text().replace("schedule =", "schedul ="))
    assert main(["validate", "specs/a.toml"]) == 2
    reported = capsys.readouterr().err.splitlines()
    assert [reported[0].split(": ", 1)[1], reported[1]] == [
        shown.splitlines()[0].split(": ", 1)[1],
        shown.splitlines()[1],
    ]


# --- petra_graph/README.md ---


PAGE = (ROOT / "petra_graph" / "README.md").read_text()


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
