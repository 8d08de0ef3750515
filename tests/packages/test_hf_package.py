"""The package of Hugging Face models installs beside the core and that of text with pip, and passes its tests, except long ones.

With installing and importing transformers, these take about a third of the processor time that all of them take.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.support.environments import environment
from tests.support.packages import copied, expect_its_tests_pass

LIBRARIES = ("transformers", "tokenizers", "gguf")
MISSING = [name for name in LIBRARIES if find_spec(name) is None]
pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; the extra `test` has them"),
]


def test_it_installs_and_passes_its_tests(tmp_path):
    source = copied("petra-graph-hf", tmp_path)
    made = environment(tmp_path, editable=True)
    made.install(*(copied(f"petra-graph-{name}", tmp_path) for name in ("transformers", "vision")), source)
    expect_its_tests_pass(made, source)
