"""Team: how many threads a parallel region gets, decided by what such regions have cost here and now.

A region ends when the last of its threads does. What a team saves is therefore not known from the work alone: its
threads may be asleep (tens of microseconds, more on a virtual machine), they may share a core with each other, and one
that another process keeps from its core holds up all of them for a quantum of the scheduler, some milliseconds, in each
of a token's hundred regions. So a :class:`Team`, of which each workspace has one, measures its regions by kind and
size, keeps what they cost with one thread and with all, and takes the cheaper.

- *Trials.* What isn't known is tried, and what is known is tried again, each time after twice as many regions. A trial
  costs what the other choice would have saved; that is paid from a credit of 1 % of the time measured. Threads that
  have just been woken are awake for the next region too, so teams are tried in bursts, which a region for itself could
  not judge.
- *Ratios.* Both choices are compared by what the team took of one thread's time when they were measured side by side.
  Memory that is slow for a while, since other machines of the host want it, slows down both, and costs that were
  measured at different times would tell of nothing else.
- *Neighbours.* Regions of the team that take longer than one thread would have taken add up (a CUSUM test). Once that
  is more than any waking takes, the team is in doubt, and some regions have one thread. If they aren't as slow, the
  cores are not ours alone: a region is then shared out only if one thread would take longer than the team and such a
  loss together. After a while, at first 4 times the loss, the team is tried again, and each loss soon after doubles the
  wait, to at most 256 times the loss.

One thread or all of them, nothing between: GNU OpenMP ends threads whenever a smaller team follows a larger one. No
result depends on the choice, as none depends on the number of threads.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

from oxillama.kernels._threads cimport start_team, usable_threads

cdef extern from *:
    """
    #include <stdint.h>
    #include <time.h>

    static inline int64_t ox_nanoseconds(void)
    {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }

    /* Sizes that differ by less than a fifth share a number: four to an octave. */
    static inline uint64_t ox_size_class(uint64_t work)
    {
        int octave = 63 - __builtin_clzll(work | 1);
        return (uint64_t)octave * 4 + (octave < 2 ? 0 : (work >> (octave - 2)) & 3);
    }
    """
    int64_t ox_nanoseconds() noexcept nogil
    uint64_t ox_size_class(uint64_t work) noexcept nogil

cdef enum:
    BRIEF = 20_000                  # ns below which the interpreter is held: letting go of it may cost a wait for it
    LEAST = 3_000                   # ns that a team whose threads are awake takes to begin and to end
    FEW = 4                         # measurements of which the best counts; then a moving average
    LEAST_WAIT = 4                  # measured regions between two trials, doubled each time
    MOST_WAIT = 256
    BURST = 64                      # regions that try the team together, about a token's
    PLACES = 8                      # of the table in which a key's costs may be
    SAMPLED = 16                    # of so many regions that stay with one thread, one is measured
    FIRST_CREDIT = 2_000_000        # ns
    MOST_CREDIT = 5_000_000
    LATE = 500_000                  # ns of delay that no waking explains, and a scheduler's quantum does
    LONG = 20_000                   # ns of a region of which each is measured, for what a clock takes is nothing to it
    LEAST_BACKOFF = 4
    MOST_BACKOFF = 256

# Where nothing is known yet: ns for a unit of work, and for waking a team.
cdef double GUESS = 0.05
cdef double WAKING = 15_000
cdef double GAIN = 0.95             # of the time of one thread, below which the team has a region
cdef double TOLERANCE = 1.1         # of the time of one thread, within which a team isn't late

cdef bint _always = False


def always_share(bint on):
    """Whether every region is shared out, whatever it costs: for tests. Returns what it was."""
    global _always
    before, _always = _always, on
    return before


cdef class Team:
    """The threads of a workspace: one step at a time."""

    def __init__(self, int n_threads):
        self.n_threads, self.credit, self.backoff = n_threads, FIRST_CREDIT, LEAST_BACKOFF

    cdef int begin(self, region *r, uint64_t kind, int64_t work) noexcept nogil:
        """The number of threads for a region of so many units of work, of which `end` has to be told."""
        cdef cost *c
        r.start, r.n, r.brief, r.trial = 0, 1, False, False
        if _always:
            r.n = start_team(self.n_threads)
            return r.n
        c = r.of = self.find(kind, work)
        r.work = <double>max(work, <int64_t>1)
        r.brief = c.n_one > 0 and c.one * r.work < BRIEF
        if c.skip > 0 and self.burst == 0:
            c.skip -= 1
            return 1
        r.start = ox_nanoseconds()
        r.n = self.choose(r, r.start)
        if r.n > 1:
            r.n = self.start(r)
        return r.n

    cdef int start(self, region *r) noexcept nogil:
        """The threads that a region of the team really has: less where they can't be created."""
        cdef int n = start_team(r.n)
        r.trial = r.trial and n == r.n
        return n

    cdef void end(self, region *r) noexcept nogil:
        cdef int64_t now
        if r.start:
            now = ox_nanoseconds()
            self.learn(r, now - r.start, now)

    cdef cost *slot(self, uint64_t key) noexcept nogil:
        """Slot of a key's costs: of a few places its own, a free one, or that of another in turn."""
        cdef uint64_t at = key * <uint64_t>0x9E3779B97F4A7C15 >> 56
        cdef int i
        for i in range(PLACES):
            if self.costs[(at + i) % N_COSTS].key in (key, 0):
                return &self.costs[(at + i) % N_COSTS]
        return &self.costs[(at + self.evicted % PLACES) % N_COSTS]

    cdef cost *find(self, uint64_t kind, int64_t work) noexcept nogil:
        """Costs known of such regions. Of a new size: what a size within three octaves costs per unit of work."""
        cdef uint64_t size = ox_size_class(<uint64_t>max(work, <int64_t>1)), key = kind << 8 | size, near
        cdef cost *c = self.slot(key)
        cdef cost *other
        cdef int i
        if c.key == key:
            return c
        self.evicted += c.key != 0
        c.key, c.one, c.team, c.ratio, c.n_one, c.n_team, c.skip = key, GUESS, 0, 1, 0, 0, 0
        c.left = c.wait = LEAST_WAIT
        for i in range(1, 25):
            near = kind << 8 | (size + <uint64_t>(i // 2) if i % 2 else size - <uint64_t>(i // 2)) & 255
            other = self.slot(near)
            if other.key == near and near != key and other.n_one + other.n_team:
                c.one = other.one
                break
        return c

    cdef int choose(self, region *r, int64_t now) noexcept nogil:
        cdef cost *c = r.of
        cdef int n = usable_threads(self.n_threads), best = 1
        cdef double one = c.one * r.work, team = one / n + WAKING
        if n == 1:
            c.skip = SAMPLED - 1 if c.n_one >= FEW else 0
            return 1
        if c.n_team:
            team = one * c.ratio if c.n_one else c.team * r.work
        if self.doubt > 0 and (one < 8 * LATE or self.over >= one):
            return 1
        if self.stall > 0:
            if now < self.resume:
                return n if team + self.stall < one else 1
            self.stall, self.resumed = 0, now
        if team < one * GAIN:
            best = n
        if self.burst > 0:
            self.burst -= 1
            if best == n or one > LEAST and one > 0.25 * team:
                r.trial = best == 1
                return n
        return self.try_other(r, best, n, one, team)

    cdef int try_other(self, region *r, int best, int n, double one, double team) noexcept nogil:
        """The choice that looks worse, where that is due and affordable."""
        cdef cost *c = r.of
        c.left -= 1
        if c.left <= 0 and one > LEAST and (team - one if best == 1 else one - team) <= self.credit:
            c.left = c.wait = min(2 * c.wait, <int32_t>MOST_WAIT)
            r.trial = True
            if best == 1:
                self.burst = BURST
                return n
            return 1
        if best == 1 and c.n_one >= FEW and one < LONG:
            c.skip = SAMPLED - 1
        return best

    cdef void learn(self, region *r, int64_t elapsed, int64_t now) noexcept nogil:
        cdef cost *c = r.of
        cdef double x = max(elapsed, <int64_t>1) / r.work, best = c.one
        cdef bint few = min(c.n_one, c.n_team) < FEW
        if c.n_team and c.team < best:
            best = c.team
        if r.trial and not few:
            self.compare(c, x / c.one if r.n > 1 else c.team / x)
        if r.n == 1:
            if self.doubt > 0 and c.n_one:
                self.test(elapsed, c.one * r.work, now)
            c.one = _blend(c.one, c.n_one, x)
            c.n_one = min(c.n_one + 1, <int32_t>FEW)
        else:
            c.team = _blend(c.team, c.n_team, x)
            c.n_team = min(c.n_team + 1, <int32_t>FEW)
            if not c.n_one:
                c.one = min(c.one, r.n * c.team)    # a guess, and the most that it can be
            self.watch(elapsed, (c.one if c.n_one else r.n * c.team) * r.work)
        if few and c.n_one and c.n_team:
            c.ratio = c.team / c.one
        self.credit = min(self.credit + 0.01 * elapsed, <double>MOST_CREDIT)
        if r.trial:
            self.credit -= max(elapsed - best * r.work, 0.)
            if self.credit < 0:
                self.burst = 0

    cdef void compare(self, cost *c, double ratio) noexcept nogil:
        """A trial against what the usual choice has cost lately; if it tells of the contrary, the next one is soon."""
        if ratio > 1.05 if c.ratio < GAIN else ratio < 0.9:
            c.left = c.wait = LEAST_WAIT
        c.ratio = _blend(c.ratio, FEW, ratio)

    cdef void watch(self, double elapsed, double one) noexcept nogil:
        """Adds up how much later than one thread the team is; when that is too much, the team is in doubt."""
        self.over += elapsed - one * TOLERANCE
        if self.over <= 0:
            self.over = self.spent = self.expected = self.doubt = 0
            return
        self.spent += elapsed
        self.expected += one
        if self.over >= LATE and self.doubt <= 0:
            self.doubt, self.tested, self.known, self.burst = LATE, 0, 0, 0

    cdef void test(self, double elapsed, double known, int64_t now) noexcept nogil:
        """A region of one thread while the team is in doubt: were such regions faster when they were measured, too?"""
        self.tested += elapsed
        self.known += known
        self.doubt -= known
        if self.doubt > 0:
            return
        if self.spent * self.known > 1.1 * self.tested * self.expected:
            self.leave(now)
        self.over = self.spent = self.expected = 0

    cdef void leave(self, int64_t now) noexcept nogil:
        """The cores are not the team's alone: one thread, for a while."""
        if self.hold and now - self.resumed < 4 * self.hold:
            self.backoff = min(2 * self.backoff, <int>MOST_BACKOFF)
        else:
            self.backoff = LEAST_BACKOFF
        self.stall, self.hold = self.over, <int64_t>(self.over * self.backoff)
        self.resume = now + self.hold

    def decide(self, kind, work, now):
        """Threads for a region that begins at ``now``, in nanoseconds of any clock: `begin`, for tests."""
        cdef region *r = &self.last
        r.of, r.work, r.trial = self.find(kind, work), max(work, 1), False
        r.brief = r.of.n_one > 0 and r.of.one * r.work < BRIEF
        r.start = now
        r.n = self.choose(r, now)
        r.of.skip = 0
        return r.n

    def record(self, int64_t elapsed):
        """The region that was decided last took so many nanoseconds."""
        self.learn(&self.last, elapsed, self.last.start + elapsed)

    @property
    def is_crowded(self):
        """Whether another process is taken to want the same cores."""
        return self.stall > 0


cdef double _blend(double known, int n, double x) noexcept nogil:
    """The best of the first few, then a moving average, where a region that waited counts as twice as long at most."""
    if n == 0:
        return x
    if n < FEW:
        return min(known, x)
    return known + (min(x, 2 * known) - known) / 8
