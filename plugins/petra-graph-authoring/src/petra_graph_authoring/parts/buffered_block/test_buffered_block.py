from petra_graph_conformance import Trial, parametrize_with_checks

from petra_graph_examples.declared import ImagePatches


@parametrize_with_checks(Trial.of(ImagePatches, inputs=[(1, 8, 8)], options={"channels": 4}))
def test_a_promise(check):
    check()
