"""Processes of one run: rendezvous, watchdog, failure, launch."""
