"""Corrections of late gradients, each around any optimizer."""
