"""Names of `petra_graph` that other distributions add."""

import pytest

import petra_graph
from petra_graph.registry import joints


def test_a_name_of_another_distribution(install):
    install("my-names", "[petra_graph.names]\ndraw = my_names:draw\n", my_names="def draw(): return 3\n")
    assert petra_graph.draw() == 3
    assert "draw" in dir(petra_graph)


def test_a_name_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(joints, "OF_NAMES", {"draw": "petra-graph-draw"})
    with pytest.raises(AttributeError, match="no attribute 'draw': install petra-graph-draw: in a clone"):
        _ = petra_graph.draw
    with pytest.raises(AttributeError, match=r"no attribute 'paint'$"):
        _ = petra_graph.paint
