"""What a kind of plugin is, one module for each kind: what is declared, what is built, and what a broken one is called."""
