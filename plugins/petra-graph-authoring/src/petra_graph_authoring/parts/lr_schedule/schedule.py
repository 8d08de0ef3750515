def inverse_root(options, horizon):
    """One over the square root of the updates since the warm-up."""
    return lambda u: max(1, u - horizon.warmup_updates + 1) ** -0.5
