"""The package of Hugging Face models installs beside the core and that of text with pip, and passes the short ones of its tests.

With installing and importing transformers, these take about a third of the processor time that all of them take.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.support.environments import environment
from tests.support.packages import copied

LIBRARIES = ("transformers", "tokenizers", "gguf")
MISSING = [name for name in LIBRARIES if find_spec(name) is None]
pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; the extra `test` has them"),
]


def test_it_installs_and_passes_the_short_ones_of_its_tests(tmp_path):
    source = copied("petra-graph-hf", tmp_path)
    made = environment(tmp_path, editable=True)
    made.install(copied("petra-graph-transformers", tmp_path), source)
    done = made.fork(
        "-q", "-m", "short", "-p", "no:cacheprovider", f"--rootdir={source}", str(source), program="pytest"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
