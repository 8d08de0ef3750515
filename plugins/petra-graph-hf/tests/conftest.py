"""Small networks, which one thread computes faster than several; each test has a folder with a model, a text and a specification."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import SPEC, VERSE, save_model

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a text, a specification, and the folder `model`."""
    monkeypatch.chdir(tmp_path)
    Path("verse.txt").write_text(VERSE * 40)
    Path("tiny.toml").write_text(SPEC)
    save_model("model")
    return tmp_path
