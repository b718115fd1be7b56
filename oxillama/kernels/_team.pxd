from libc.stdint cimport int32_t, int64_t, uint64_t

# Kinds of regions. Those of rows are told apart by the function that they call, products by format too.
cdef enum:
    PRODUCTS = 1
    GATED
    EXPERTS
    ATTENTION
    STORE
    INDEX_SCORES
    CHOSEN_KEYS
    DELTA
    DPLR
    CONVOLUTION
    SCAN
    ROUTING
    ROTATION
    TWINS
    ROW_WORK

cdef enum: N_COSTS = 256


# What regions of one kind and about one size cost, in nanoseconds per unit of work; 0 while it is unknown.
cdef struct cost:
    uint64_t key
    double one, team                # with one thread, and with all
    double ratio                    # of the team's to that of one thread, when both were measured
    int32_t n_one, n_team           # measurements of each, up to a few
    int32_t left, wait              # measured regions until the other choice is tried, and until it is tried again
    int32_t skip                    # regions until one is measured again, where the choice is settled


cdef struct region:
    cost *of
    double work
    int64_t start                   # ns; 0: not measured
    int n                           # threads that it gets
    bint brief                      # too short to let go of the interpreter
    bint trial                      # may be slower than the other choice would be


cdef class Team:
    cdef readonly int n_threads
    cdef cost costs[N_COSTS]
    cdef region last                # of decide() and record()
    cdef double credit, stall
    cdef double over                # ns that the team has been later than one thread, beyond TOLERANCE
    cdef double spent, expected     # ns of its regions since that began, and what one thread would have taken
    cdef double doubt               # ns of regions of one thread that are still to be compared; 0 or less: no doubt
    cdef double tested, known       # ns that those took, and what such regions took before
    cdef int64_t resume, resumed, hold
    cdef int backoff, burst
    cdef uint64_t evicted           # keys that another took the place of
    cdef int begin(self, region *r, uint64_t kind, int64_t work) noexcept nogil
    cdef int start(self, region *r) noexcept nogil
    cdef void end(self, region *r) noexcept nogil
    cdef cost *slot(self, uint64_t key) noexcept nogil
    cdef cost *find(self, uint64_t kind, int64_t work) noexcept nogil
    cdef int choose(self, region *r, int64_t now) noexcept nogil
    cdef int try_other(self, region *r, int best, int n, double one, double team) noexcept nogil
    cdef void learn(self, region *r, int64_t elapsed, int64_t now) noexcept nogil
    cdef void compare(self, cost *c, double ratio) noexcept nogil
    cdef void watch(self, double elapsed, double one) noexcept nogil
    cdef void test(self, double elapsed, double known, int64_t now) noexcept nogil
    cdef void leave(self, int64_t now) noexcept nogil
