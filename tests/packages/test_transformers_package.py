"""The package of transformers installs beside the core with pip, works, and leaves nothing when it is uninstalled."""

from __future__ import annotations

import pytest

from tests.support.packages import copied, expect_it_installs_and_uninstalls

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]
OURS = {
    "blocks": {"token-embedding", "patch-embedding", "rev-transformer", "token-logits", "pooled-logits"},
    "architectures": {"gpt", "vit"},
    "losses": {"token-cross-entropy"},
    "datasets": {"text-bytes", "text-characters"},
    "callbacks": {"text-samples"},
}


def test_it_installs_passes_its_tests_and_uninstalls(tmp_path):
    source = copied("petra-graph-transformers", tmp_path)
    expect_it_installs_and_uninstalls(source, tmp_path, OURS, spec="gpt_tinyshakespeare.toml", architecture="gpt")
