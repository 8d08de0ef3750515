from petra_graph_conformance import check_imports_no_torch


def test_the_declarations_import_no_torch():
    check_imports_no_torch("petra_graph_examples.declared")
