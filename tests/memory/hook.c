// The allocators of numpy and of Python with a count, and with a number that gets nothing. tests/memory/hook.py loads it.
//
// numpy: the functions of its default handler are replaced in place, so that arrays of every thread come here; those that
// were made before are freed by the same functions in the end. Python: two of its domains, from `least` bytes on: buffers
// such as bytes, bytearray, array and the items of a list, not the objects themselves. The third (raw) is for its own
// bookkeeping. Nothing that grows is denied: where a list can't, CPython frees the new item twice (its issue 151818), and
// so do comprehensions of Cython 3.3.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <numpy/arrayobject.h>

typedef struct { long made, live, refused; } Tally;   // refused: the number of `made` which gets nothing

Tally hook_numpy, hook_python;
static size_t least;

static int may(Tally *t) { return __atomic_add_fetch(&t->made, 1, __ATOMIC_SEQ_CST) != t->refused; }
static void *given(Tally *t, void *p) {
    if (p) __atomic_add_fetch(&t->live, 1, __ATOMIC_SEQ_CST);
    return p;
}
static void taken(Tally *t, void *p) {
    if (p) __atomic_sub_fetch(&t->live, 1, __ATOMIC_SEQ_CST);
}

// ---- numpy

static PyDataMemAllocator plain;

static void *np_malloc(void *ctx, size_t n) {
    return may(&hook_numpy) ? given(&hook_numpy, plain.malloc(plain.ctx, n)) : NULL;
}
static void *np_calloc(void *ctx, size_t n, size_t size) {
    return may(&hook_numpy) ? given(&hook_numpy, plain.calloc(plain.ctx, n, size)) : NULL;
}
static void *np_realloc(void *ctx, void *p, size_t n) {
    if (!may(&hook_numpy)) return NULL;
    void *moved = plain.realloc(plain.ctx, p, n);
    return p ? moved : given(&hook_numpy, moved);
}
static void np_free(void *ctx, void *p, size_t n) {
    taken(&hook_numpy, p);
    plain.free(plain.ctx, p, n);
}

// ---- Python

static PyMemAllocatorEx before[2];

static int passes(size_t n) { return n < least || may(&hook_python); }
static void *py_malloc(void *ctx, size_t n) {
    PyMemAllocatorEx *a = ctx;
    return passes(n) ? a->malloc(a->ctx, n) : NULL;
}
static void *py_calloc(void *ctx, size_t n, size_t size) {
    PyMemAllocatorEx *a = ctx;
    return passes(n * size) ? a->calloc(a->ctx, n, size) : NULL;
}
static void *py_realloc(void *ctx, void *p, size_t n) {
    PyMemAllocatorEx *a = ctx;
    return a->realloc(a->ctx, p, n);
}
static void py_free(void *ctx, void *p) {
    PyMemAllocatorEx *a = ctx;
    a->free(a->ctx, p);
}

// With the GIL. Installs the functions, which stay.
int hook_install(size_t n_bytes) {
    if (_import_array() < 0) return -1;
    PyDataMem_Handler *handler = PyCapsule_GetPointer(PyDataMem_DefaultHandler, "mem_handler");
    if (!handler) return -1;
    plain = handler->allocator;
    handler->allocator.malloc = np_malloc;
    handler->allocator.calloc = np_calloc;
    handler->allocator.realloc = np_realloc;
    handler->allocator.free = np_free;
    least = n_bytes;
    PyMemAllocatorDomain domains[] = {PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
    for (int i = 0; i < 2; i++) {
        PyMem_GetAllocator(domains[i], &before[i]);
        PyMemAllocatorEx ours = {&before[i], py_malloc, py_calloc, py_realloc, py_free};
        PyMem_SetAllocator(domains[i], &ours);
    }
    return 0;
}
