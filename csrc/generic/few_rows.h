/* What products of rows as files store them share, which are for few tokens. After q8.h. */

/* Asks for a few lines, AHEAD of where they would be read, for the second-level cache: rows are more streams than the
 * hardware prefetches, and the first one would lose them before they are used. Mapped files have small pages, and requests
 * for a page wait until it is found, all of the core's few: unless one, a page earlier, has had it looked up, one row of
 * Q5_1 took 1.9 times as long, and of Q4_0 1.2 times. */
#define PAGE 4096
INLINE void fetch_page(const uint8_t *next) { __builtin_prefetch(next + AHEAD + PAGE, 0, 2); }
INLINE void fetch_line(const uint8_t *next) { __builtin_prefetch(next + AHEAD, 0, 2); }

/* Of more tokens at a time compilers would take long, and a panel in memory costs each of them less. */
#define ROWS_TILE 4
#define EACH_ROWS_TILE(f, ...) f(1, __VA_ARGS__) f(2, __VA_ARGS__) f(3, __VA_ARGS__) f(4, __VA_ARGS__)
/* A slot's kernel, of its tiles. */
#define IN_ROWS_TILES(name)                                                      \
    static void gemm_rows_##name(const ox_gemm_args *a)                          \
    {                                                                            \
        for (int64_t t = 0; t < a->n_tokens; t += ROWS_TILE)                     \
            switch (a->n_tokens - t < ROWS_TILE ? a->n_tokens - t : ROWS_TILE) { \
            EACH_ROWS_TILE(CALL_TILE, name)                                      \
            }                                                                    \
    }
