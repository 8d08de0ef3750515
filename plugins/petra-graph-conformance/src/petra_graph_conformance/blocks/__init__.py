"""The promises of blocks, which are checked in the executor's own runners."""
