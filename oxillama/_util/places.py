"""Types of arguments: paths of files, and files as paths or bytes."""

import os

__all__ = ["Path", "Place"]

Path = str | os.PathLike[str]
Place = Path | bytes | bytearray | memoryview
