"""Couplings, one family a module; each docstring has the formula, its inverse, its rounding and its source."""
