"""Prefill throttle: prompt tokens that a step may compute beside decoding sequences."""

__all__ = [
    "LEAST_CHUNK",
    "MAX_DECODE_WAIT_MS",
    "PrefillThrottle",
]

# A decoding sequence waits for its next token no longer than this, or than a chunk of LEAST_CHUNK takes. On the shape
# of Llama 3.2 1B, chunks of 512 tokens take 1.7 seconds on two cores, during which every stream would stall.
MAX_DECODE_WAIT_MS = 100
# Smaller chunks amortise the unpacking of weights over too few tokens: in CPU time per token on that shape (Q4_K_M),
# chunks of 64 cost 1.15 times what those of 256 cost, those of 32 cost 1.36, and those of 16 1.66.
LEAST_CHUNK = 64


class PrefillThrottle:
    """Measures with each step how many prompt tokens fit in MAX_DECODE_WAIT_MS.

    It never changes what is computed, only in which step. chunk: prompt tokens of the next step at most, if it has
    decoding sequences too.
    """

    def __init__(self, most: int) -> None:
        """`most`: tokens of a step, however quick it is."""
        self.most = most
        self.chunk = most

    def observe(self, n_prompt: int, seconds: float) -> None:
        """A step with so many prompt tokens took so long.

        Only the last step counts, so that a step that was slow by chance is soon forgotten. Steps with fewer than
        LEAST_CHUNK prompt tokens say little about longer chunks, and change nothing.
        """
        if n_prompt >= LEAST_CHUNK:
            fitting = int(n_prompt * MAX_DECODE_WAIT_MS / 1000 / seconds) if seconds > 0 else self.most
            self.chunk = min(self.most, max(LEAST_CHUNK, fitting))
