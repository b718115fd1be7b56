"""What it costs before the first token: import and load."""

import os
import tempfile

from .common import load_engine, model_path


def timeraw_import() -> str:
    """In a fresh interpreter."""
    return "import oxillama"


def timeraw_import_engine() -> str:
    return "from oxillama import Engine"


def timeraw_first_token() -> str:
    """Of a process that has imported nothing."""
    return f"import oxillama; oxillama.load({model_path()!r}).generate('Once', max_tokens=1)"


class LoadPacked:
    """The same with packed weights: found in the cache, and made for it."""

    timeout = 600

    def setup(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        os.environ["OXILLAMA_CACHE"] = self.folder.name
        load_engine(packed=True).close()

    def teardown(self) -> None:
        del os.environ["OXILLAMA_CACHE"]
        self.folder.cleanup()

    def time_load_packed(self) -> None:
        load_engine(packed=True).close()

    def time_pack(self) -> None:
        from oxillama.models.packed import Cache

        Cache.default().clear()
        load_engine(packed=True).close()


class Load:
    """From a file in the page cache to an engine that can be asked."""

    timeout = 600

    def setup(self) -> None:
        load_engine().close()

    def time_load(self) -> None:
        load_engine().close()

    def time_load_mapped(self) -> None:
        load_engine(repack=False).close()

    def time_open_file(self) -> None:
        import oxillama.gguf
        from oxillama.core.loading import shipped_model

        oxillama.gguf.open(model_path() or shipped_model()).close()
