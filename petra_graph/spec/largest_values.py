"""The largest values that a specification may have, each far beyond use, so that a digit too many fails at once.

Without them `repeat = 100000000` fills the memory before any message, and numbers beyond 64 bits overflow in a library.
"""

from __future__ import annotations

from petra_graph.spec.bounds import AtLeast, AtMost

NODES = 20_000
"""Nodes of a network: the planner's work and the page of a plan grow with them."""
MOST_LEVELS = 100
"""Tables and arrays in one another, before a specification is compared with its keys."""
MOST_NODES = AtMost(NODES)
MOST_DEVICES = AtMost(10_000)
MOST_WINDOW = AtMost(4_096)
"""Micro-batches of a window: the planner walks through three windows, operation by operation."""
MOST_DEPTH = AtMost(1_000_000)
"""Micro-batches in flight."""
MOST_SAMPLES = AtMost(2**24)
"""Of a batch."""
MOST_PROCESSES = AtMost(4_096)
"""Processes or threads of one machine."""
MOST_EPOCHS = AtMost(10**9)
MOST_MICRO_BATCHES = AtMost(10**9)
MOST_SECONDS = AtMost(10**9)
"""Thirty years."""
LEAST_RATE = AtLeast(10**8)
"""Of a device, a second: less is a number in units of 10**9 or 10**12, as data sheets have them."""
LARGEST_SEED = AtMost(2**63 - 1)
"""What torch's generators take."""
