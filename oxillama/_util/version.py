"""Version of the package, which pyproject.toml has too."""

__all__ = ["__version__"]

__version__ = "0.1.0"
