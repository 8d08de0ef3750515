"""The measure step: what the nodes of a network are, what they share, and what they cost."""
