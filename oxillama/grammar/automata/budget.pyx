"""`Budget`: how much work compiling a grammar may take.

Work is counted in units, of half a microsecond to one on a machine of 2020, and never timed: a grammar that one machine
compiles, every machine does. What is kept from earlier compilations counts as if it were compiled again, so that
nothing depends on what came before.
"""

from libc.stdint cimport int64_t

from oxillama.errors import GrammarError
from oxillama.grammar.automata.turns cimport give_way

UNITS = 2_500_000
MAX_UNITS = 1 << 40

cdef enum:
    UNITS_PER_TURN = 1 << 10


cdef class Budget:
    """Units that are left of `limit`."""

    def __init__(self, limit=None):
        if limit is not None and (type(limit) is not int or not 1 <= limit <= MAX_UNITS):
            raise GrammarError(f"budget must be 1 to {MAX_UNITS} units of work or None, not {limit!r:.40}")
        self.limit = self.left = UNITS if limit is None else limit
        self.until_turn = UNITS_PER_TURN

    @property
    def spent(self):
        return self.limit - self.left

    cpdef int spend(self, int64_t units, str what) except -1:
        """Takes units off. what: "a pattern of 5000 characters", for the error.

        Other threads get their turn now and then: compiled loops, which don't let go of the interpreter by themselves,
        all come here. So nothing that threads share may be in the middle of a change. Raises GrammarError if there are
        too few units.
        """
        self.left -= units
        if self.left < 0:
            raise GrammarError(
                f"{what} is too large to compile: it takes more than the budget of {self.limit} units of work: make it "
                "smaller, or divide it"
            )
        self.until_turn -= units
        if self.until_turn < 0:
            self.until_turn = UNITS_PER_TURN
            give_way()
        return 0
