// What the Cython modules call of GNU OpenMP, on plain pthreads, for the thread sanitiser: that library isn't
// instrumented and waits in ways of its own, so that the sanitiser would take every region for a race. Preloaded, this
// stands in its place: each region starts its threads and joins them, which the sanitiser understands. Regions are not
// nested. Compiled without the sanitiser, so that the counter which hands out iterations orders nothing: OpenMP promises
// no order between them, and a mutex here would hide races.
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { MAX_LOOPS = 8 };                      // work-sharing loops of one region

typedef struct {
    void (*body)(void *);
    void *data;
    int n_threads;
    pthread_barrier_t barrier;
    long next[MAX_LOOPS];                    // iterations that were handed out, by number
} Team;

typedef struct {
    Team *team;
    int id;
} Member;

static __thread Member me;
static __thread int loop;                    // the number of the current loop of this thread's region
static __thread long first, last, step, chunk;

static void *work(void *member) {
    me = *(Member *)member;
    loop = -1;
    me.team->body(me.team->data);
    me.team = NULL;
    return NULL;
}

void GOMP_parallel(void (*body)(void *), void *data, unsigned n_threads, unsigned flags) {
    (void)flags;
    int n = n_threads ? (int)n_threads : 2;
    Team team = {body, data, n, .next = {0}};
    Member *members = calloc((size_t)n, sizeof *members);
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    if (!members || !threads || me.team || pthread_barrier_init(&team.barrier, NULL, (unsigned)n)) abort();
    for (int i = 0; i < n; i++) members[i] = (Member){&team, i};
    for (int i = 1; i < n; i++)
        if (pthread_create(&threads[i], NULL, work, &members[i])) abort();
    work(&members[0]);
    for (int i = 1; i < n; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&team.barrier);
    free(threads);
    free(members);
}

void GOMP_barrier(void) {
    if (me.team) pthread_barrier_wait(&me.team->barrier);
}

bool GOMP_loop_nonmonotonic_dynamic_next(long *from, long *to) {
    long n = (last - first + step - (step > 0 ? 1 : -1)) / step;
    long at = __atomic_fetch_add(&me.team->next[loop], chunk, __ATOMIC_RELAXED);
    if (at >= n) return false;
    *from = first + at * step;
    *to = first + (at + chunk < n ? at + chunk : n) * step;
    return true;
}

bool GOMP_loop_nonmonotonic_dynamic_start(long start, long end, long incr, long n, long *from, long *to) {
    if (++loop >= MAX_LOOPS) abort();
    first = start, last = end, step = incr, chunk = n;
    return GOMP_loop_nonmonotonic_dynamic_next(from, to);
}

void GOMP_loop_end(void) { GOMP_barrier(); }
void GOMP_loop_end_nowait(void) {}

int omp_get_thread_num(void) { return me.team ? me.id : 0; }
int omp_get_num_threads(void) { return me.team ? me.team->n_threads : 1; }
int omp_get_max_threads(void) { return 2; }
int omp_get_level(void) { return me.team != NULL; }
int omp_get_thread_limit(void) { return 1 << 30; }
int omp_get_dynamic(void) { return 0; }
void omp_set_dynamic(int on) { (void)on; }
