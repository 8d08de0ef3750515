"""Plugins of every kind in a file beside the spec, without a package. `test_every_feature` trains them."""

from __future__ import annotations

import tomllib

from petra_graph.plugins.kinds import BLOCK, KINDS
from tests.support import ROOT
from tests.support.pages import Page, files_of


def in_files() -> dict[str, str]:
    """Return the module and the spec of the guide's package, with names of code in place of those of entry points."""
    files = files_of(Page(ROOT / "plugins" / "guide" / "package.md"))
    groups = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    module, spec = files["petra_graph_examples.py"], files["example.toml"]
    for name, target in [item for points in groups.values() for item in points.items()]:
        module, spec = (text.replace(f'"{name}"', f'"{target}"') for text in (module, spec))
    return {"petra_graph_examples.py": module, "example.toml": spec}


FILES = in_files()


def test_the_spec_has_every_kind():
    kinds = {kind.table: kind for kind in KINDS}
    used = {kinds[table] for table in tomllib.loads(FILES["example.toml"]) if table in kinds}
    assert used | {BLOCK} == {kind for kind in KINDS if kind.table} | {BLOCK}
