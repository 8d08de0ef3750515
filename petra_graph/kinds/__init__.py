"""What a kind of plugin is, one module for each kind: its declaration, its form, and its promises with when each is asked."""
