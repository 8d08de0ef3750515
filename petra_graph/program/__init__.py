"""Values that compiler, executors and simulators share; no behaviour, no torch."""
