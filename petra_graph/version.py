"""The version of this package, below all that name it; the package's root shows it, too."""

__version__ = "0.3.0"
