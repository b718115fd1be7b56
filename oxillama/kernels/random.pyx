"""The generator behind everything that is drawn."""

from libc.stdint cimport uint64_t


cdef class XorShift64:
    """Marsaglia's 64-bit xorshift (shifts 13, 7, 17), started with `seed`; `state` is all there is to save.

    The state moves as plain xorshift. A uniform number is the top 53 bits of the state after the finaliser of
    SplitMix64 (Steele et al. 2014): without it, the first numbers of all small seeds would be almost zero, and the
    texts of seeds 1, 2, 3 would begin with the same word.

    moved: whether it was made, set or moved since `moved` was last made False, for what keeps its states.
    """

    cdef uint64_t _state
    cdef public bint moved

    def __init__(self, seed):
        # Zero is the one state that xorshift never leaves.
        self.state = seed if seed else 0x517CC1B727220A95

    @property
    def state(self):
        return self._state

    @state.setter
    def state(self, uint64_t state):
        self._state, self.moved = state, True

    def next(self):
        """Moves on and returns the new state."""
        cdef uint64_t x = self._state
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
        self._state, self.moved = x, True
        return x

    def uniform(self):
        """Moves on and returns a float in [0, 1)."""
        cdef uint64_t x = self._state
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
        self._state, self.moved = x, True
        x = (x ^ (x >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * <uint64_t> 0x94D049BB133111EB
        return <double> ((x ^ (x >> 31)) >> 11) * (1.0 / 9007199254740992.0)
