"""The package of torchvision's networks installs beside the core with pip, works, and leaves nothing when it is uninstalled."""

from __future__ import annotations

import pytest

from tests.support.packages import copied, expect_it_installs_and_uninstalls

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]
OURS = {
    "blocks": {"torchvision-piece", "torchvision-head", "dual-residual-entry", "dual-residual"},
    "architectures": {"torchvision", "torchvision-dr2net"},
}


def test_it_installs_passes_its_tests_and_uninstalls(tmp_path):
    source = copied("petra-graph-torchvision", tmp_path)
    expect_it_installs_and_uninstalls(
        source, tmp_path, OURS, spec="resnet18_fashion_mnist.toml", architecture="torchvision"
    )
