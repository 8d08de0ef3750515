"""What a run leaves in its directory: its resolved specification, plan, measurements, summary or failure."""
