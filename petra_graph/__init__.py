"""Declarative training of reversible networks across stages with PETRA."""

__version__ = "0.1.0"
