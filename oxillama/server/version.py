"""Version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["VERSION"]

try:
    VERSION = version("oxillama")
except PackageNotFoundError:  # a source tree that is not installed
    VERSION = "0"
