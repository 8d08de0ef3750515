"""what compiler and executors share: values, and pure functions of them; no torch."""
