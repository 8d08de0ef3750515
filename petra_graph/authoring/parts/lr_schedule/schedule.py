def inverse_root(options, horizon):
    """Return the factor of update u."""
    return lambda u: max(1, u - horizon.warmup_updates + 1) ** -0.5
