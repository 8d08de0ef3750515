"""Mistakes in keys, values and files, as their makers see them: the whole output, to the letter."""

from __future__ import annotations

from petra_graph.cli.main import main
from tests.support.specs import SPEC


def test_there_is_nothing_wrong_to_begin_with(write, capsys):
    write("a.toml", SPEC)
    assert main(["validate", "a.toml"]) == 0
    assert capsys.readouterr() == ("a.toml: ok (3 nodes; shapes not checked, use run --dry-run)\n", "")


def test_misspelt_key(validate):
    assert validate(SPEC.replace("schedule =", "schedul =")) == (
        2,
        """\
a.toml:26:1: unknown key "schedul" in [method]
    schedul = "lockstep"
    help: did you mean 'schedule'? allowed: accumulation, allow_stored, backward, buffered, flush, keep, last_stage, name, \
reversible, schedule
""",
    )


def test_misspelt_key_of_a_plugins_options(validate):
    assert validate(SPEC.replace("hidden", "hiden")) == (
        2,
        """\
a.toml:17:13: unknown key "hiden" in the options of block "rev-mlp"
    options = { hiden = 16 }
    help: did you mean 'hidden'? allowed: activation, dropout, hidden
""",
    )


def test_misspelt_table(validate):
    assert validate(SPEC.replace("[method]", "[metod]")) == (
        2,
        """\
a.toml:24:2: unknown key "metod" in the specification
    [metod]
    help: did you mean 'method'? allowed: architecture, callback, checkpoint, conversion, data, finetune, graph, init, logger, loss, lr_schedule, method, \
metric, name, optimizer, partition, precision, probe, run
""",
    )


def test_misspelt_key_on_the_command_line(validate):
    assert validate(SPEC, "--set", "method.acumulation=3") == (
        2,
        """\
--set method.acumulation=3: unknown key "acumulation" in [method]
    help: did you mean 'accumulation'? allowed: accumulation, allow_stored, backward, buffered, flush, keep, last_stage, name, \
reversible, schedule
""",
    )


def test_a_type_that_no_buffer_or_channel_has(validate):
    assert validate(SPEC + '\n[precision]\nchannel_dtype = "int4"\n', "--set", "precision.buffer_device='gpu'") == (
        2,
        """\
a.toml:30:17: channel_dtype in [precision] must be one of "as-streams", "float32", "bfloat16", "float16", "int8" (got "int4")
    channel_dtype = "int4"
    help: did you mean 'int8'? allowed: as-streams, bfloat16, float16, float32, int8
--set precision.buffer_device='gpu': buffer_device in [precision] must be one of "stage", "cpu" (got "gpu")
    help: did you mean 'cpu'? allowed: cpu, stage
2 problems
""",
    )


def test_a_compressed_channel_and_buffer_under_a_grid(validate):
    assert validate(SPEC + '\n[precision]\nstreams = "grid"\nchannel_dtype = "int8"\nbuffer_dtype = "float16"\n') == (
        2,
        """\
a.toml:31:17: channel_dtype = "int8" rounds streams once more, and streams = "grid" is there to reconstruct them to the bit
    channel_dtype = "int8"
    help: leave out channel_dtype, or set precision.streams = "float"
a.toml:32:16: buffer_dtype = "float16" rounds streams once more, and streams = "grid" is there to reconstruct them to \
the bit
    buffer_dtype = "float16"
    help: leave out buffer_dtype, or set precision.streams = "float"
2 problems
""",
    )


def test_compiled_blocks_on_a_grid_and_with_synchronised_normalisation(validate):
    text = SPEC + '\n[precision]\nstreams = "grid"\n\n[partition]\nsync_batch_norm = true\n\n[run]\ncompile = true\n'
    assert validate(text) == (
        2,
        """\
a.toml:36:11: streams = "grid" needs the same bits of a function in forward and backward, and compile = true compiles it for each
    compile = true
    help: leave out compile, or set precision.streams = "float"
a.toml:36:11: sync_batch_norm = true exchanges statistics within a block, which compile = true compiles whole
    compile = true
    help: leave out one of them
2 problems
""",
    )


def test_an_option_beside_the_table_of_options(validate):
    assert validate(SPEC, "--set", "optimizer.lr=0.2") == (
        2,
        """\
--set optimizer.lr=0.2: unknown key "lr" in [optimizer]
    help: did you mean optimizer.options.lr? lr is an option of optimizer "sgd"
""",
    )


def test_an_option_of_the_default_plugin_beside_its_options(validate):
    """Without a name it is still the default plugin's option."""
    plain = SPEC.replace('name = "sgd"\noptions = { lr = 0.1 }', "lr = 0.1")
    assert validate(plain) == (
        2,
        """\
a.toml:5:1: unknown key "lr" in [optimizer]
    lr = 0.1
    help: did you mean optimizer.options.lr? lr is an option of optimizer "sgd"
""",
    )


def test_a_blocks_option_beside_its_options(validate):
    assert validate(SPEC.replace("options = { features = 16 }", "features = 16")) == (
        2,
        """\
a.toml:8:1: features is missing in the options of block "linear-stem"
    [[graph.node]]
    help: features: features of each output stream
a.toml:11:1: unknown key "features" in node "stem"
    features = 16
    help: did you mean options.features? features is an option of block "linear-stem"
2 problems
""",
    )


def test_wrong_type(validate):
    assert validate(SPEC.replace("accumulation = 2", 'accumulation = "2"')) == (
        2,
        """\
a.toml:27:16: accumulation in [method] must be an integer (got "2")
    accumulation = "2"
    help: write it without quotes: accumulation = 2
""",
    )


def test_out_of_range(validate):
    assert validate(SPEC.replace("accumulation = 2", "accumulation = 0")) == (
        2,
        """\
a.toml:27:16: accumulation in [method] must be at least 1 (got 0)
    accumulation = 0
""",
    )


def test_not_one_of_the_choices(validate):
    assert validate(SPEC.replace('"lockstep"', '"lockstp"')) == (
        2,
        """\
a.toml:26:12: schedule in [method] must be one of "lockstep", "1f1b", "sequential", "fill-drain", "auto", or a \
list of integers (got "lockstp")
    schedule = "lockstp"
    help: did you mean 'lockstep'? allowed: 1f1b, auto, fill-drain, lockstep, sequential
""",
    )


def test_unknown_block(validate):
    assert validate(SPEC.replace('"rev-mlp"', '"rev-mpl"')) == (
        2,
        """\
a.toml:15:9: unknown block "rev-mpl"
    block = "rev-mpl"
    help: did you mean 'rev-mlp'? allowed: add, conv-stem, down-basic, down-bottleneck, linear-stem, module, \
module-head, module-part, module-part-head, pool-linear, res-basic, res-bottleneck, rev-basic, rev-bottleneck, rev-mlp
""",
    )


def test_missing_table_and_missing_network(validate):
    assert validate("[run]\nepochs = 3\n") == (
        2,
        """\
a.toml: [data] is missing
    help: data: the data set and its batches
a.toml: neither [graph] nor [architecture] is given
    help: [architecture] with name = "revnet", or one [[graph.node]] for each node
2 problems
""",
    )


def test_missing_option(validate):
    assert validate(SPEC.replace("options = { features = 16 }\n", "")) == (
        2,
        """\
a.toml:8:1: features is missing in the options of block "linear-stem"
    [[graph.node]]
    help: features: features of each output stream
""",
    )


def test_every_mistake_of_a_file_at_once(validate):
    text = SPEC.replace("schedule =", "schedul =").replace("accumulation = 2", "accumulation = 0")
    assert validate(text.replace("hidden", "hiden").replace('"pool-linear"', '"pool-liner"'), "--set", "run.sed=3") == (
        2,
        """\
a.toml:17:13: unknown key "hiden" in the options of block "rev-mlp"
    options = { hiden = 16 }
    help: did you mean 'hidden'? allowed: activation, dropout, hidden
a.toml:21:9: unknown block "pool-liner"
    block = "pool-liner"
    help: did you mean 'pool-linear'? allowed: add, conv-stem, down-basic, down-bottleneck, linear-stem, module, \
module-head, module-part, module-part-head, pool-linear, res-basic, res-bottleneck, rev-basic, rev-bottleneck, rev-mlp
a.toml:26:1: unknown key "schedul" in [method]
    schedul = "lockstep"
    help: did you mean 'schedule'? allowed: accumulation, allow_stored, backward, buffered, flush, keep, last_stage, name, \
reversible, schedule
a.toml:27:16: accumulation in [method] must be at least 1 (got 0)
    accumulation = 0
--set run.sed=3: unknown key "sed" in [run]
    help: did you mean 'seed'? allowed: compile, cuda_graphs, directory, epochs, evaluate_every, evaluation_batches, log_every, \
micro_batches, overfit, scheduling, seed, self_check, threads, transport, watchdog
5 problems
""",
    )


def test_unreadable_file(validate, here):
    assert validate(None) == (
        2,
        """\
a.toml: no such file
    help: there is no TOML file there
""",
    )
    (here / "a.toml").mkdir()
    assert validate(None) == (
        2,
        """\
a.toml: a folder, not a file
    help: there is no TOML file there
""",
    )


def test_a_file_without_permission(validate, here, monkeypatch):
    # Whoever runs the tests may be allowed to read everything, so the refusal is the file system's in name only.
    def refuse(_path, _mode):
        raise PermissionError(13, "Permission denied")

    (here / "a.toml").write_text(SPEC)
    monkeypatch.setattr("petra_graph.spec.source.FilePath.open", refuse)
    assert validate(None) == (
        2,
        """\
a.toml: no permission to read it
    help: see the file's owner and mode
""",
    )


def test_not_text(validate, here):
    (here / "a.toml").write_bytes(b"\x89PNG\r\n")
    assert validate(None) == (
        2,
        """\
a.toml:1: not UTF-8 text (byte 0x89)
    help: a specification is a TOML file; save it as UTF-8
""",
    )


def test_empty_file(validate):
    assert validate("") == (
        2,
        """\
a.toml: the file is empty
    help: a specification needs [data] and one of [graph] and [architecture]
""",
    )


def test_invalid_toml(validate):
    assert validate(SPEC.replace('"petra"', "petra")) == (
        2,
        """\
a.toml:25:8: invalid TOML: invalid value
    name = petra
    help: text needs quotes: name = "petra"
""",
    )
