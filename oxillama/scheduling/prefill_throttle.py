"""Prefill throttle: prompt tokens that a step may compute beside decoding sequences."""

__all__ = [
    "LEAST_CHUNK",
    "MAX_DECODE_WAIT_MS",
    "PrefillThrottle",
]

# Who decodes waits for his next token no longer than this, or than a chunk of LEAST_CHUNK takes. On the shape of Llama
# 3.2 1B, chunks of 512 tokens take 1.7 seconds on two cores, in which everybody's text would stand still.
MAX_DECODE_WAIT_MS = 100
# Fewer tokens share the work of unpacking weights among too few: in CPU time for each token on that shape (Q4_K_M),
# chunks of 64 cost 1.15 times what those of 256 cost, those of 32 cost 1.36, and those of 16 1.66.
LEAST_CHUNK = 64


class PrefillThrottle:
    """Learns from each step how many prompt tokens fit in MAX_DECODE_WAIT_MS.

    It never changes what is computed, only in which step. chunk: prompt tokens that the next step is to have at most,
    if somebody decodes in it.
    """

    def __init__(self, most: int) -> None:
        """`most`: tokens of a step, however quick it is."""
        self.most = most
        self.chunk = most

    def observe(self, n_prompt: int, seconds: float) -> None:
        """A step with so many prompt tokens took so long.

        The last one counts alone, so that one that was slow by chance is soon forgotten. Those of less than
        LEAST_CHUNK tell little of longer ones, and change nothing.
        """
        if n_prompt >= LEAST_CHUNK:
            fitting = int(n_prompt * MAX_DECODE_WAIT_MS / 1000 / seconds) if seconds > 0 else self.most
            self.chunk = min(self.most, max(LEAST_CHUNK, fitting))
