"""Torch's compiler is not imported where nothing is compiled, and is itself afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from petra_graph.measure.without_compiler import uncompiled

def step():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.grad = torch.ones(2)
    optimizer.step()
    return parameter.detach().tolist()

with uncompiled():
    inside = step()
    # A library's own operators look for the file of every module, here while the library is still imported.
    import inspect
    inspect.getmodule(step.__code__)
    assert not hasattr(sys.modules["torch._dynamo"], "__file__")
assert "torch._dynamo" not in sys.modules
with uncompiled():
    import torch._dynamo as it
    assert callable(it.trace_rules.lookup)
    assert it.is_compiling() is False
assert step() == inside
import torch._dynamo
assert torch._dynamo.__file__
"""


@pytest.mark.processes
def test_the_compiler_is_imported_only_for_more_than_marks():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
