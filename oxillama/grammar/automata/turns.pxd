"""Turns of other threads in loops of C, which don't let go of the interpreter's lock by themselves."""

cdef enum:
    PASSES_PER_TURN = 1 << 11   # a power of two: about a millisecond where each pass touches new memory


cdef inline void give_way() noexcept:
    """Lets other threads run: nothing that they share may be in the middle of a change. A lock that they wait for may
    be held."""
    with nogil:
        pass


cdef inline void turn(Py_ssize_t i) noexcept:
    """`give_way` now and then: called with the number of each pass of a loop."""
    if i & (PASSES_PER_TURN - 1) == PASSES_PER_TURN - 1:
        give_way()
