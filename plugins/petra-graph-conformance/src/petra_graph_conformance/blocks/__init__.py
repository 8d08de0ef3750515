"""The promises of blocks and architectures, which are checked in the executor's own runners: by a run, and by the kit."""
