"""Texts of control tokens: each token's, and those within another text."""

from collections.abc import Iterable, Iterator, Mapping

__all__ = ["ControlTexts"]


class ControlTexts(Mapping[int, str]):
    """The texts of a vocabulary's control tokens by their ids."""

    def __init__(self, tokens: Iterable[tuple[int, str]]) -> None:
        self._texts = {token: text for token, text in tokens if text}
        self._known = set(self._texts.values())
        self._first = {text[0] for text in self._known}
        self._lengths = sorted({len(text) for text in self._known})

    def __getitem__(self, token: int) -> str:
        return self._texts[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __reduce__(self) -> tuple[type["ControlTexts"], tuple[list[tuple[int, str]]]]:
        return type(self), (list(self._texts.items()),)

    def are_in(self, text: str) -> bool:
        """Whether one of the texts stands within another text. Takes time for that text, and not for each token."""
        return any(
            first in self._first and any(text[start : start + n] in self._known for n in self._lengths)
            for start, first in enumerate(text)
        )
