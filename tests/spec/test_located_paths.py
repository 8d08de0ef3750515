"""Names of files are relative to the file that says them, and `--set` says them in the working directory."""

from __future__ import annotations

import os

import pytest
from attrs import frozen

from petra_graph.plugins.contract import option
from petra_graph.spec.load_spec import load
from petra_graph.spec.located_paths import absolute, located_options
from tests.support.specs import SPEC


@pytest.fixture
def folders(write):
    """A specification in a folder that extends one in another folder."""
    write("base/a.toml", f'{SPEC}[partition]\nprofile = "times.json"\n[init]\nweights = "first"\n')
    write("mine/b.toml", 'extends = "../base/a.toml"\ninit.weights = "second"\n')
    return "mine/b.toml"


def test_each_value_is_relative_to_its_own_file(folders):
    spec = load(folders).spec
    assert (spec.partition.profile, spec.init.weights) == ("base/times.json", "mine/second")


def test_what_is_set_is_relative_to_the_working_directory(folders):
    spec = load(folders, ["partition.profile=times.json"]).spec
    assert (spec.partition.profile, spec.init.weights) == ("times.json", "mine/second")
    assert load(spec, ["init.weights=third"]).spec.init.weights == "third"


@pytest.mark.parametrize("name", ["/there/times.json", "~/times.json", "$DATA/times.json"])
def test_a_name_that_says_where_it_begins_stays(write, name):
    write("mine/a.toml", f'{SPEC}[partition]\nprofile = "{name}"\n')
    assert load("mine/a.toml").spec.partition.profile == name


def test_a_file_in_the_working_directory_keeps_its_names(write):
    write("a.toml", SPEC + '[partition]\nprofile = "times.json"\n')
    assert load("a.toml").spec.partition.profile == "times.json"


def test_a_plugins_options_say_which_of_them_are_names(write):
    @frozen(kw_only=True)
    class Options:
        root: str = option("files", is_path=True)
        half: str = option("which of them")

    write(
        "mine/a.toml", SPEC.replace('name = "digits"', 'name = "digits"\noptions = { root = "files", half = "left" }')
    )
    loaded = load("mine/a.toml")
    options = located_options(Options, loaded.values["data"]["options"], ("data", "options"), loaded.layers)
    assert options == {"root": "mine/files", "half": "left"}


def test_the_folders_of_all_files_in_the_order_of_their_say(folders, here):
    assert load(folders).folders == [str(here / "mine"), str(here / "base")]
    assert load(folders, ["run.epochs=2"]).folders == [str(here / "mine"), str(here / "base")]


def test_absolute():
    assert absolute("mine/a") == os.path.join(os.getcwd(), "mine", "a")  # noqa: PTH109, PTH118  as text
    assert [absolute(name) for name in (None, "~/a", "$A/a")] == [None, "~/a", "$A/a"]
