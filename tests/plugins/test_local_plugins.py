"""Files beside a specification: two folders' modules never mix, nor one with an installed module of its name."""

from __future__ import annotations

import pytest

from petra_graph.plugins.local_plugins import find_code

NET = "from sizes_of_this_test import WIDTH\n\nclass Net:\n    width = WIDTH\n"


@pytest.fixture
def folders(tmp_path):
    for name, width in (("a", 11), ("b", 13)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "sizes_of_this_test.py").write_text(f"WIDTH = {width}\n")
        for module in ("net_of_this_test", "test", "json"):
            (folder / f"{module}.py").write_text(NET)
    return {name: (str(tmp_path / name), str(tmp_path)) for name in "ab"}


@pytest.mark.parametrize("module", ["net_of_this_test", "test", "json"])
def test_each_specification_has_the_file_beside_it_in_whatever_order(folders, module):
    found = [find_code(f"{module}:Net", folders[name]) for name in "abab"]
    assert [one.width for one in found] == [11, 13, 11, 13]
    assert found[0] is found[2]
    import json

    assert json.loads("1") == 1


def test_what_lies_beside_no_specification_is_pythons(folders):
    assert find_code("os.path:join", folders["a"])("a", "b") == "a/b"
