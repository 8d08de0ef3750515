"""A finished run at work: its network as an ordinary module, evaluated, asked for predictions, exported."""
