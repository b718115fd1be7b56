"""Thread counts, what a fork leaves of them, and what happens where no thread can be created.

GNU OpenMP keeps its threads between regions. A forked child inherits the bookkeeping but not the threads, and its next
region would wait for them for ever. So a child of a process that has run a region runs single-threaded: slower, never
stuck, and with the same results, since no result depends on the number of threads.

OpenMP libraries end the process where they can't create a thread (a limit on processes of a user, of a container, of
memory). So a team is started by `start_team` before its first region, and before it grows: as many threads as it lacks,
and a few more, are created, live side by side, and end; the region that follows creates the library's own, in the same
moment, under one lock. Where they can't be had, the team is smaller, at worst one thread, and a warning says so. Each
thread that computes has a team of its own, which the library keeps for it while its size stays the same.
"""

import logging
import os
import re

cdef extern from *:
    """
    #include <omp.h>
    #include <pthread.h>
    #include <sched.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <time.h>
    #ifdef __linux__
    #include <sys/syscall.h>
    #include <unistd.h>
    #endif

    #ifdef __clang__
    #define OX_LLVM_OPENMP 1
    #else
    #define OX_LLVM_OPENMP 0
    #endif

    enum {
        OX_SPARE = 4,       /* threads that can be created beside a team's: Python's, and those of a neighbour that
                               starts some in the moment between the trial and the library's own */
        OX_MOST_TRIED = 1024 + OX_SPARE,                /* as many as a team may have (config.MAX_THREADS) */
        OX_TRIES = 4,       /* with a millisecond between them: threads that have ended count for a while */
        OX_AGAIN = 5        /* seconds after which a team that is smaller than it was to be tries to grow */
    };

    typedef struct {
        pthread_mutex_t lock;
        pthread_cond_t end;
        int over;
    } ox_trial;

    typedef struct {
        ox_trial *trial;
        pthread_t thread;
        long id;                                        /* of the system */
    } ox_tried;

    static size_t ox_stack_bytes;                       /* of the library's threads; 0: the system's default */
    static pthread_mutex_t ox_starting = PTHREAD_MUTEX_INITIALIZER;
    static __thread int ox_team = 1;                    /* the calling thread and those that the library keeps for it */
    static __thread int ox_most = 0;                    /* threads of its team at most, where others couldn't be had */
    static __thread int64_t ox_retry = 0;               /* when they are tried again, in seconds */

    static int64_t ox_seconds(void)
    {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec;
    }

    static void *ox_wait_for_end(void *data)
    {
        ox_tried *own = data;
        ox_trial *trial = own->trial;
    #ifdef __linux__
        own->id = syscall(SYS_gettid);
    #endif
        pthread_mutex_lock(&trial->lock);
        while (!trial->over) pthread_cond_wait(&trial->end, &trial->lock);
        pthread_mutex_unlock(&trial->lock);
        return NULL;
    }

    static void ox_sleep_a_millisecond(void)
    {
        struct timespec t = {0, 1000000};
        nanosleep(&t, NULL);
    }

    /* Joins a thread, and waits until the system counts it no more, which is some microseconds later. */
    static void ox_see_off(const ox_tried *tried)
    {
        pthread_join(tried->thread, NULL);
    #ifdef __linux__
        for (int i = 0; i < 10000 && !syscall(SYS_tgkill, (long)getpid(), tried->id, 0); i++) sched_yield();
    #endif
    }

    /* How many of n threads can be created, all alive at once. They take no signals, and end before this returns. */
    static int ox_creatable(int n)
    {
        ox_trial trial = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
        ox_tried threads[OX_MOST_TRIED];
        pthread_attr_t attr;
        sigset_t all, before;
        int made = 0;
        if (n > OX_MOST_TRIED) n = OX_MOST_TRIED;
        if (pthread_attr_init(&attr)) return 0;
        if (ox_stack_bytes) pthread_attr_setstacksize(&attr, ox_stack_bytes);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        while (made < n) {
            threads[made].trial = &trial;
            if (pthread_create(&threads[made].thread, &attr, ox_wait_for_end, &threads[made])) break;
            made++;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_mutex_lock(&trial.lock);
        trial.over = 1;
        pthread_cond_broadcast(&trial.end);
        pthread_mutex_unlock(&trial.lock);
        for (int i = 0; i < made; i++) ox_see_off(&threads[i]);
        pthread_attr_destroy(&attr);
        return made;
    }

    /* An empty region: the library has the team's threads from here on, as many as it gave. */
    static int ox_run_team(int n)
    {
        int given = 1;
        if (omp_get_dynamic()) omp_set_dynamic(0);      /* it would end threads, and create them again untried */
        #pragma omp parallel num_threads(n)
        {
            if (omp_get_thread_num() == 0) given = omp_get_num_threads();
        }
        return given;
    }

    /* Threads that a region may have now: at most those that are wanted, more than one, and no others are created. */
    static int ox_start_team(int wanted)
    {
        int n = wanted, limit, lacking, made;
        if (omp_get_level() > 0) return 1;              /* inside another's region each team would be a new one */
        if (n == ox_team) return n;
        limit = omp_get_thread_limit();
        if (n > limit) n = limit;
        if (ox_most && n > ox_most && ox_seconds() < ox_retry) n = ox_most;
        if (n == ox_team || n <= 1) return n < 1 ? 1 : n;
        pthread_mutex_lock(&ox_starting);
        lacking = n - ox_team;
        if (lacking > 0) {
            made = ox_creatable(lacking + OX_SPARE);
            for (int i = 1; i < OX_TRIES && made < lacking + OX_SPARE; i++) {
                ox_sleep_a_millisecond();
                made = ox_creatable(lacking + OX_SPARE);
            }
            ox_most = 0;
            if (made < lacking + OX_SPARE) {
                n = ox_most = ox_team + (made > OX_SPARE ? made - OX_SPARE : 0);
                ox_retry = ox_seconds() + OX_AGAIN;
            }
        }
        if (n > 1 && n != ox_team) {
            ox_team = ox_run_team(n);
            if (ox_team < n) {
                n = ox_most = ox_team;
                ox_retry = ox_seconds() + OX_AGAIN;
            }
        }
        pthread_mutex_unlock(&ox_starting);
        return n;
    }

    /* Threads that `ox_start_team` would find. */
    static int ox_expected_team(int wanted)
    {
        return ox_most && wanted > ox_most ? ox_most : wanted;
    }
    """
    const bint OX_LLVM_OPENMP
    size_t ox_stack_bytes
    int omp_get_max_threads() nogil
    int ox_start_team(int wanted) noexcept nogil
    int ox_expected_team(int wanted) noexcept nogil

cdef int _started = 0
cdef int _forked = 0
cdef int _told = 0


cdef int usable_threads(int wanted) noexcept nogil:
    return 1 if wanted <= 1 or _forked else ox_expected_team(wanted)


cdef int start_team(int wanted) noexcept nogil:
    global _started
    cdef int n
    if wanted <= 1 or _forked:
        return 1
    _started = 1
    n = ox_start_team(wanted)
    if n < wanted and ox_expected_team(wanted) == n and not _told:
        with gil:
            _tell(wanted, n)
    return n


cdef _tell(int wanted, int n):
    """Logs, once for the process, that a team is smaller than it was to be."""
    global _told
    if not _told:
        _told = 1
        logging.getLogger("oxillama").warning(
            "%d threads can't be created here: computing with %d; raise the limit on processes (ulimit -u, a "
            "container's pids limit) or on memory, or set num_threads to what there is room for", wanted, n
        )


def _after_fork_in_child():
    global _forked
    if _started and not _forked:
        _forked = 1
        logging.getLogger("oxillama").warning(
            "forked after inference: this process computes with one thread; start workers with 'spawn', or load after "
            "the fork"
        )


os.register_at_fork(after_in_child=_after_fork_in_child)


def single_threaded_after_fork():
    """Whether this process must compute with one thread, being forked from one whose threads had started."""
    return bool(_forked)


def team_of(int wanted):
    """Starts a team for the calling thread: how many threads its next regions have, of those that are wanted."""
    cdef int n
    with nogil:
        n = start_team(wanted)
    return n


def stack_size(env):
    """Bytes that the OpenMP library's threads get for their stacks by the environment; 0 for the system's default."""
    for name in ("OMP_STACKSIZE", "GOMP_STACKSIZE"):
        found = re.fullmatch(r"\s*([0-9]{1,15})\s*([bkmg]?)\s*", env.get(name, ""), re.ASCII | re.IGNORECASE)
        if found:
            return min(int(found[1]) << {"b": 0, "": 10, "k": 10, "m": 20, "g": 30}[found[2].lower()], 1 << 62)
    return 0


def start_openmp():
    """Have the OpenMP library read its environment now; LLVM's would do so at the first region. Starts no threads."""
    global ox_stack_bytes
    omp_get_max_threads()
    ox_stack_bytes = stack_size(os.environ)


def openmp_variable():
    """The variable of the environment in which this build's OpenMP library finds how long idle threads spin."""
    return "KMP_BLOCKTIME" if OX_LLVM_OPENMP else "GOMP_SPINCOUNT"
