"""Access order of pages, learned from products. Computes with page numbers only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["AccessOrder"]


class AccessOrder:
    """Predictor of the pages that products request next. Each token needs all matrices but the experts.

    Experts are not prefetched before the router chooses them; then a request for their first matrix predicts the
    second.
    """

    def __init__(self, first_page: Sequence[int], n_stack: Sequence[int], then: Mapping[int, int | None]) -> None:
        """`first_page` of each matrix, and last the number of pages; `n_stack` of each matrix.

        `then`: for each stack of experts, the stack whose same experts are requested next, or None.
        """
        self._first, self._n_stack, self._then = list(first_page), list(n_stack), then
        self._next: dict[int, int] = {}
        self._last: int | None = None
        self._chosen: list[int] = []

    def follow(self, matrices: Sequence[int]) -> None:
        """Sets the order of the paged matrices, until another order is observed."""
        self._next = dict(zip(matrices, [*matrices[1:], *matrices[:1]], strict=True))
        self._last = matrices[-1] if matrices else None
        self._chosen = []

    def asked_for(self, pages: Sequence[int]) -> None:
        """Takes note of the pages that a product requested."""
        chosen: dict[int, None] = {}
        before = -1
        for page in pages:
            if self._first[before] <= page < self._first[before + 1] and before >= 0:
                matrix = before
            else:
                matrix = bisect_right(self._first, page) - 1
            if matrix in self._then:
                chosen.update(dict.fromkeys(self._of_same_expert(page, matrix)))
            elif matrix != before:
                if self._last is not None:
                    self._next[self._last] = matrix
                self._last = matrix
            before = matrix
        if chosen or before in self._then:
            self._chosen = list(chosen)

    def _of_same_expert(self, page: int, matrix: int) -> range:
        then = self._then[matrix]
        if then is None:
            return range(0)
        per_expert = (self._first[matrix + 1] - self._first[matrix]) // self._n_stack[matrix]
        expert = (page - self._first[matrix]) // per_expert
        n = (self._first[then + 1] - self._first[then]) // self._n_stack[then]
        return range(self._first[then] + expert * n, self._first[then] + (expert + 1) * n)

    def experts(self, n: int) -> list[int]:
        """Up to n pages of chosen experts that will be requested."""
        return self._chosen[: max(n, 0)]

    def upcoming(self, n: int) -> Iterator[int]:
        """Up to n pages of matrices, from the one after the last request."""
        seen: set[int] = set()
        matrix = self._next.get(self._last) if self._last is not None else None
        while n > 0 and matrix is not None and matrix not in seen:
            seen.add(matrix)
            for page in range(self._first[matrix], self._first[matrix + 1])[:n]:
                yield page
                n -= 1
            matrix = self._next.get(matrix)
