"""Text to tokens and back."""

from .common import STORY, load_engine


class Tokenize:
    """2 kB of English."""

    def setup(self) -> None:
        self.engine = load_engine()
        self.text = STORY * 20
        self.ids = self.engine.tokenize(self.text)

    def teardown(self) -> None:
        self.engine.close()

    def time_tokenize(self) -> None:
        self.engine.tokenize(self.text)

    def time_detokenize(self) -> None:
        self.engine.detokenize(self.ids)

    def time_stream(self) -> None:
        """Token by token, as a reply is shown."""
        stream = self.engine.tokenizer.stream()
        for token in self.ids:
            stream.push(token)
        stream.flush()
