"""TOML text to frozen values, with the position of everything."""
