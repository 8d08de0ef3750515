"""The check step: a specification checked against everything that is known without torch."""
