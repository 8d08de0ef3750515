"""What watches a run: callbacks that write what the head returns and a profile, loggers of services that keep runs."""
