"""The package as others get it: an sdist, the wheel that is built from it, and the quickstart outside of the repository."""

import json
import re
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from petra_graph import __version__
from tests.support import ROOT
from tests.support.environments import call, pip

PLUGIN = ROOT / "plugins" / "petra-graph-convnext"
OURS = re.compile(r"(_editable_impl_|__editable__.*)?petra_graph")
"""Begins the names of this project's distributions and of their metadata, among the packages."""
STEM = f"petra_graph-{__version__}"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The sdist, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    build = ("-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder))
    done = call(sys.executable, *build, home=folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    with tarfile.open(folder / f"{STEM}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / STEM


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel, built from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", str(sdist), home=folder)
    return folder / f"{STEM}-py3-none-any.whl"


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The Python of an environment with the wheel and this one's packages, and nothing else of this project."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=True)
    (behind := folder / "behind").mkdir()
    for path in {path for key in ("purelib", "platlib") for path in Path(sysconfig.get_path(key)).iterdir()}:
        if not OURS.match(path.name):
            (behind / path.name).symlink_to(path)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    (packages / "parent.pth").write_text(f"{behind}\n")
    with ZipFile(wheel) as archive:
        archive.extractall(packages)
    return str(folder / "bin" / "python")


def files_under(folder: Path) -> set[str]:
    return {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_sdist_holds_what_is_needed_to_build_to_test_and_to_run(sdist):
    found = {path.name for path in sdist.iterdir()}
    assert {"LICENSE", "Makefile", "README.md", "pyproject.toml"} <= found
    assert not {".git", ".venv", "build", "dist", "runs"} & found
    for folder in (ROOT / "petra_graph", ROOT / "specs", ROOT / "tests"):
        assert files_under(sdist / folder.name) == files_under(folder)


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    """A template or a style sheet that is left out fails only for those who installed the package."""
    with ZipFile(wheel) as archive:
        found = set(archive.namelist())
    described = {name for name in found if name.startswith(f"{STEM}.dist-info/")}
    example = {f"petra_graph/example_plugin/{path.name}" for path in PLUGIN.iterdir() if path.is_file()}
    assert found - described == files_under(ROOT / "petra_graph") | example
    assert "petra_graph/py.typed" in found
    assert f"{STEM}.dist-info/licenses/LICENSE" in described


CODE = """
import sys
from petra_graph.cli.main import main

spec = sys.argv[1]
assert main(["validate", spec, "--set", "data.name=cifar10"]) == 2
sys.exit(main(["plan", spec, "--format", "html"]) or main(["run", spec, "--set", "run.epochs=1", "--json"]))
"""


def test_the_quickstart_is_planned_and_trained_outside_of_the_repository(python, sdist, tmp_path):
    done = call(python, "-c", CODE, str(sdist / "specs" / "quickstart.toml"), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'unknown data set "cifar10"' in done.stderr, "the core is alone"
    page, _, said = done.stdout.partition("\n")
    assert "<svg" in (tmp_path / page).read_text()
    summary = json.loads(said)
    assert summary["status"] == "done"
    assert summary["train"]["top1"] > 0.3
    assert (tmp_path / summary["directory"] / "resolved.toml").exists()
