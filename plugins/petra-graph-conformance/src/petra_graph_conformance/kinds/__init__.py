"""What is asked of the plugins of each kind, one module for each kind: their trials, and the checks of their promises."""
