"""Reversible sequences in anyone's training loop, in plain PyTorch."""

from petra_graph.autograd.reversible_sequence import ReversibleSequence, reversible

__all__ = ["ReversibleSequence", "reversible"]
