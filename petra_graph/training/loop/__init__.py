"""The training loop: epochs, means, callbacks, warnings, and losses that are not finite."""
