"""What `petra-graph new` writes: packages of plugins, and specifications."""
