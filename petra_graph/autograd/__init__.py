"""Reversible sequences in anyone's training loop, in plain PyTorch."""

from petra_graph.autograd.sequence import ReversibleSequence, reversible

__all__ = ["ReversibleSequence", "reversible"]
