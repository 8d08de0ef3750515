"""What compiler, executors and simulators share: values, and pure functions of them; no torch."""
