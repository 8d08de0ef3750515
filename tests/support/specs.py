"""Specifications of small networks on digits, which tests bend in one place."""

SPEC = """\
[data]
name = "digits"

[optimizer]
name = "sgd"
options = { lr = 0.1 }

[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 16 }

[[graph.node]]
name = "middle"
block = "rev-mlp"
kind = "reversible"
options = { hidden = 16 }

[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }

[method]
name = "petra"
schedule = "lockstep"
accumulation = 2
"""
SHORT_SPEC = """\
[data]
name = "digits"
[optimizer]
options = { lr = 0.1 }
[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 8 }
[[graph.node]]
name = "middle"
block = "rev-mlp"
repeat = 2
options = { hidden = 8 }
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }
"""
"""Without what has a default; the middle node is two."""
