"""Values of the wrong form, and keys in the wrong place: the whole output, with what to write instead."""

from __future__ import annotations

from tests.support.specs import SHORT_SPEC, SPEC


def test_an_empty_list_of_depths(validate):
    """It is no schedule, and no way to leave one out."""
    assert validate(SPEC.replace('"lockstep"', "[]")) == (
        2,
        """\
a.toml:26:12: schedule in [method] must not be empty
    schedule = []
""",
    )


def test_the_name_of_an_architecture_as_the_graph(validate):
    assert validate('graph = "revnet"\n[data]\nname = "digits"\n') == (
        2,
        """\
a.toml:1:9: graph must be a table (got "revnet")
    graph = "revnet"
    help: [graph] lists nodes; a network with a name is [architecture]
""",
    )


def test_the_name_of_an_architecture_in_the_graph(validate):
    assert validate('[data]\nname = "digits"\n[graph]\nname = "revnet"\n') == (
        2,
        """\
a.toml:3:1: node is missing in [graph]
    [graph]
    help: one [[graph.node]] for each
a.toml:4:1: unknown key "name" in [graph]
    name = "revnet"
    help: [graph] lists nodes; a network with a name is [architecture]
2 problems
""",
    )


def test_options_as_a_text(validate):
    assert validate('[data]\nname = "digits"\n[architecture]\nname = "revnet"\noptions = "depth=18"\n') == (
        2,
        """\
a.toml:5:11: options in [architecture] must be a table (got "depth=18")
    options = "depth=18"
    help: write its keys in braces: options = { KEY = VALUE }
""",
    )


def test_a_list_with_the_name_of_a_plugin(validate):
    assert validate('optimizer = ["sgd"]\n' + SHORT_SPEC.replace("[optimizer]\noptions = { lr = 0.1 }\n", "")) == (
        2,
        """\
a.toml:1:13: optimizer must be a table (got ["sgd"])
    optimizer = ["sgd"]
    help: write its keys in braces: optimizer = { KEY = VALUE }
""",
    )


def test_a_list_of_tables_in_place_of_a_table(validate):
    assert validate(SPEC.replace("[method]", "[[method]]")) == (
        2,
        """\
a.toml:24:1: method must be a table (got [{ name = "petra", schedule = "lockstep", accumulation = ...)
    [[method]]
    help: single brackets make a table: [method]
""",
    )


def test_a_number_in_place_of_a_table(validate):
    assert validate(SPEC.replace("[[graph.node]]", "clip = 1.0\n[[graph.node]]", 1)) == (
        2,
        """\
a.toml:8:8: clip in [optimizer] must be a table (got 1.0)
    clip = 1.0
    help: write its keys in braces: clip = { KEY = VALUE }
""",
    )


def test_a_number_in_place_of_a_table_on_the_command_line(validate):
    assert validate(SPEC, "--set", "optimizer.clip=1.0", "--set", "checkpoint=1 epoch") == (
        2,
        """\
--set optimizer.clip=1.0: clip in [optimizer] must be a table (got 1.0)
    help: write its keys in braces: --set 'optimizer.clip={ KEY = VALUE }'
--set checkpoint=1 epoch: checkpoint must be a table (got "1 epoch")
    help: write its keys in braces: --set 'checkpoint={ KEY = VALUE }'
2 problems
""",
    )


def test_the_beginning_of_several_device_types(validate):
    assert validate(SPEC + '[partition]\ndevice_type = "A100"\n') == (
        2,
        """\
a.toml:29:15: unknown device type "A100"
    device_type = "A100"
    help: did you mean 'a100-40gb' or 'a100-80gb'? allowed: a10, a100-40gb, a100-80gb, a40, cpu, h100, h200, l4, l40, l40s, rtx3080, rtx3090, rtx4080, rtx4090, rtx5090, rtxa6000, t4, v100; [partition.device.A100] states one of your own
""",
    )


def test_a_name_in_capitals(validate):
    assert validate(SPEC.replace('"sgd"', '"SGD"')) == (
        2,
        """\
a.toml:5:8: unknown optimizer "SGD"
    name = "SGD"
    help: did you mean 'sgd'? allowed: adam, adamw, lars, muon, nadam, sgd, soap
""",
    )


def test_options_at_the_top_of_the_file(validate):
    assert validate("options = { depth = 18 }\n" + SPEC) == (
        2,
        """\
a.toml:1:1: unknown key "options" in the specification
    options = { depth = 18 }
    help: options is a key of [[graph.node]], [architecture], [loss], [optimizer], [lr_schedule], [data], [[logger]], [[callback]], [[metric]]
""",
    )


def test_a_key_in_the_wrong_table(validate):
    assert validate(SPEC + "[run]\nbatch = 4\nlr = 0.2\n\n[precision]\nepochs = 2\n") == (
        2,
        """\
a.toml:29:1: unknown key "batch" in [run]
    batch = 4
    help: batch is a key of [data]
a.toml:30:1: unknown key "lr" in [run]
    lr = 0.2
    help: did you mean optimizer.options.lr? lr is an option of optimizer "sgd"
a.toml:33:1: unknown key "epochs" in [precision]
    epochs = 2
    help: epochs is a key of [run]
3 problems
""",
    )


def test_a_number_for_a_text_on_the_command_line(validate):
    """A shell takes one pair of quotes away."""
    assert validate(SPEC, "--set", "name=3") == (
        2,
        """\
--set name=3: name must be a string (got 3)
    help: write it in quotes: --set 'name="3"'
""",
    )


def test_quotes_that_a_shell_leaves(validate):
    assert validate(SPEC, "--set", "run.epochs='3'", "--set", "graph.node.stem.options.features='8'") == (
        2,
        """\
--set run.epochs='3': epochs in [run] must be an integer (got "3")
    help: write it without quotes: --set run.epochs=3
--set graph.node.stem.options.features='8': features in the options of block "linear-stem" must be an integer (got "8")
    help: write it without quotes: --set graph.node.0.options.features=8
2 problems
""",
    )


def test_a_plugins_option_on_the_command_line_without_its_table(validate):
    assert validate(SPEC, "--set", "lr=0.1", "--set", "epochs=2") == (
        2,
        """\
--set lr=0.1: unknown key "lr" in the specification
    help: did you mean optimizer.options.lr? lr is an option of optimizer "sgd"
--set epochs=2: unknown key "epochs" in the specification
    help: epochs is a key of [run]
2 problems
""",
    )


def test_true_in_capitals(validate):
    assert validate(SPEC + "[partition]\nsync_batch_norm = True\n") == (
        2,
        """\
a.toml:29:19: invalid TOML: invalid value
    sync_batch_norm = True
    help: TOML writes it in small letters: sync_batch_norm = true
""",
    )


def test_none(validate):
    assert validate(SPEC + "[partition]\nmemory = None\n") == (
        2,
        """\
a.toml:29:10: invalid TOML: invalid value
    memory = None
    help: TOML has no such value: leave memory out
""",
    )


def test_a_number_without_its_zero(validate):
    assert validate(SPEC.replace("lr = 0.1", "lr = .1")) == (
        2,
        """\
a.toml:6:18: invalid TOML: invalid value
    options = { lr = .1 }
    help: TOML's numbers have digits on both sides of the point: lr = 0.1
""",
    )


def test_a_date_without_quotes(validate):
    assert validate("name = 2026-11-22\n" + SPEC) == (
        2,
        """\
a.toml:1:8: name must be a string (got 2026-11-22)
    name = 2026-11-22
    help: write it in quotes: name = "2026-11-22"
""",
    )


def test_a_version_without_quotes(validate):
    assert validate("name = 1.2.3\n" + SPEC) == (
        2,
        """\
a.toml:1:11: invalid TOML: expected newline or end of document after a statement
    name = 1.2.3
    help: text needs quotes: name = "1.2.3"
""",
    )


def test_extends_below_a_header(validate):
    """The network that it would have given is not missing besides."""
    assert validate('[data]\nname = "digits"\nextends = "base.toml"\n') == (
        2,
        """\
a.toml:3:1: extends stands below [data], and so belongs to that table
    extends = "base.toml"
    help: write it at the top of the file, above the first [table]
""",
    )


def test_extends_below_a_node(validate):
    assert validate(SPEC.replace("options = { hidden = 16 }", 'extends = "base.toml"')) == (
        2,
        """\
a.toml:17:1: extends stands below [[graph.node]], and so belongs to that table
    extends = "base.toml"
    help: write it at the top of the file, above the first [table]
""",
    )


def test_a_list_of_files_with_several_mistakes(validate):
    assert validate('extends = ["none.toml", 3, "neither.toml"]\n' + SPEC) == (
        2,
        """\
a.toml:1:12: extends "none.toml", but there is no such file
    extends = ["none.toml", 3, "neither.toml"]
    help: looked for 'none.toml'; the name is relative to the file that contains it
a.toml:1:25: extends must be a file's name or a list of them (got 3)
    extends = ["none.toml", 3, "neither.toml"]
a.toml:1:28: extends "neither.toml", but there is no such file
    extends = ["none.toml", 3, "neither.toml"]
    help: looked for 'neither.toml'; the name is relative to the file that contains it
3 problems
""",
    )


def test_a_node_that_reads_nothing(validate):
    """That the stem reaches no head follows from it, and is no second mistake."""
    assert validate(SPEC.replace('kind = "reversible"', "inputs = []")) == (
        2,
        """\
a.toml:16:10: node "middle" reads nothing
    inputs = []
    help: leave out `inputs` to read the node before it
""",
    )


def test_characters_that_control_a_terminal(validate):
    """A file of a stranger must not write over the message, nor turn the order of its letters."""
    assert validate(SPEC.replace('"rev-mlp"', '"rev-\u202emlp"')) == (
        2,
        """\
a.toml:15:9: unknown block "rev-\\u202emlp"
    block = "rev-\\u202emlp"
    help: did you mean 'rev-mlp'? allowed: add, conv-stem, down-basic, down-bottleneck, linear-stem, module, module-head, module-part, module-part-head, pool-linear, res-basic, res-bottleneck, rev-basic, rev-bottleneck, rev-mlp
""",
    )


def test_an_invisible_character_in_a_key(validate):
    assert validate(SPEC.replace("schedule =", "sched\u200bule =")) == (
        2,
        """\
a.toml:26:6: invalid TOML: expected '=' after a key in a key/value pair
    sched\\u200bule = "lockstep"
""",
    )
