"""Names of `petra_graph` that other distributions add."""

import petra_graph


def test_a_name_of_another_distribution(install):
    install("my-names", "[petra_graph.names]\ndraw = my_names:draw\n", my_names="def draw(): return 3\n")
    assert petra_graph.draw() == 3
    assert "draw" in dir(petra_graph)
