/* What products of rows as files store them share, which are for few tokens. After q8.h. */

/* Asks for a line, AHEAD of where it would be read, for the second-level cache: rows are more streams than the hardware
 * prefetches, and the first one would lose it before it is used. Files are mapped in small pages, and while one is
 * looked up, requests for its lines hold the core's few miss buffers: unless one of them, a page earlier, has had it
 * looked up, a row of F16 takes 1.2 times as long, and one of Q4_0 or Q5_1 between as long and twice as long, from
 * run to run. */
#define PAGE 4096
INLINE void fetch_page(const uint8_t *next) { __builtin_prefetch(next + AHEAD + PAGE, 0, 2); }
INLINE void fetch_line(const uint8_t *next) { __builtin_prefetch(next + AHEAD, 0, 2); }

/* Of more tokens at a time compilers would take long, and a panel in memory costs each of them less. */
#define ROWS_TILE 4
#define EACH_ROWS_TILE(f, ...) f(1, __VA_ARGS__) f(2, __VA_ARGS__) f(3, __VA_ARGS__) f(4, __VA_ARGS__)
#define CALL_ROWS_TILE(T, name) case T: tile_##T##_##name(a, t); break;
/* A slot's kernel, of its tiles. */
#define IN_ROWS_TILES(name)                                                      \
    static void gemm_rows_##name(const ox_gemm_args *a)                          \
    {                                                                            \
        for (int64_t t = 0; t < a->n_tokens; t += ROWS_TILE)                     \
            switch (a->n_tokens - t < ROWS_TILE ? a->n_tokens - t : ROWS_TILE) { \
            EACH_ROWS_TILE(CALL_ROWS_TILE, name)                                 \
            }                                                                    \
    }
