"""Where executors run, and the channels between them."""
