"""What it costs before the first token: import and load."""

from .common import load_engine, model_path


def timeraw_import() -> str:
    """In a fresh interpreter."""
    return "import oxillama"


def timeraw_import_engine() -> str:
    return "from oxillama import Engine"


def timeraw_first_token() -> str:
    """Of a process that has imported nothing."""
    return f"import oxillama; oxillama.load({model_path()!r}).generate('Once', max_tokens=1)"


class Load:
    """From a file in the page cache to an engine that can be asked."""

    timeout = 600

    def setup(self) -> None:
        load_engine().close()

    def time_load(self) -> None:
        load_engine().close()

    def time_open_file(self) -> None:
        import oxillama.gguf
        from oxillama.core.loading import shipped_model

        oxillama.gguf.open(model_path() or shipped_model()).close()
