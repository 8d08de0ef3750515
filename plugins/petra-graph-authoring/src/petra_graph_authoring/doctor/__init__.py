"""What `petra-graph doctor` examines: the environment, its devices, and the installed plugins."""
