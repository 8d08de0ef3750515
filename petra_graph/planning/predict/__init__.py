"""The predict step: memory and speed of a placement, and how sure they are."""
