"""What nodes cost: shapes, without allocating anything."""
