"""The programs of tools/: their commands are ones that petra-graph accepts, and each tells what is wrong from what is right."""

import tomllib

import pytest

from petra_graph.planning.check_spec import check_spec
from tests.support import ROOT
from tools.fuzz import right_files, tried
from tools.gpu import CUDA_TESTS, Day
from tools.studies.study import HERE, STUDIES, command

STUDY_ROWS = [(one, row) for one in STUDIES for row in tomllib.loads((HERE / f"{one}.toml").read_text())["rows"]]


def settings(words):
    return [word for at, word in enumerate(words) if at and words[at - 1] == "--set"]


@pytest.mark.parametrize(("study", "row"), STUDY_ROWS)
def test_a_row_of_a_study_is_a_specification(study, row, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "text").write_text("".join(map(chr, range(32, 97))) * 20)
    listed = tomllib.loads((HERE / f"{study}.toml").read_text())
    root = f"data.options.root={tmp_path / ('text' if study == 'delay' else '.')}"
    words = command(listed, row, [], [root], tmp_path)
    first_of_each = [f"{word.partition(',')[0]}" for word in words[6:] if word in listed.get("vary", ())]
    check_spec(words[4], [*settings(words), *first_of_each])


@pytest.mark.parametrize("rehearsal", [True, False])
def test_a_training_on_gpus_is_a_specification(rehearsal, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    commands = [one for piece in Day(folder=tmp_path, gpus=2, rehearsal=rehearsal).pieces() for one in piece.commands]
    trainings = {tuple(one[one.index("run") + 1 :]) for one in commands if "run" in one}
    assert len(trainings) > 15
    for words in trainings:
        check_spec(words[0], [text for text in settings(words) if "profile.json" not in text])


def test_all_tests_that_need_cuda_are_in_the_list():
    skipped = "skipif(not " + "torch.cuda"
    needing = [path for path in (ROOT / "tests").rglob("test_*.py") if skipped in path.read_text()]
    assert {str(path.relative_to(ROOT)) for path in needing} == set(CUDA_TESTS)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("specs", 2), ("plans", 1), ("runs", 1)])
def test_damaged_files_are_refused(kind, count, tmp_path):
    files = right_files(kind, tmp_path)
    assert [tried(kind, files, seed, tmp_path / "case") for seed in range(count)] == [""] * count
