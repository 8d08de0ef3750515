"""A specification of a small network on digits, which tests bend in one place."""

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
