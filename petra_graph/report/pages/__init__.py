"""Plans and runs as pages: each is one file, without scripts, that fetches nothing. matplotlib draws, jinja2 writes."""
