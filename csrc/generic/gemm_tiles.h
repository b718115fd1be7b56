/* The product of a format where the CPU multiplies tiles (q8_tiles.h): by groups, from as many tokens on as that is
 * faster than the tier below, whose kernel takes the others. Included by q8.h. */

/* The slots of the tier below. */
static __attribute__((unused)) ox_gemm_fn *few[OX_N_KERNEL_FORMATS];

/* What is left of a product behind its first n tokens. */
INLINE void advance(ox_gemm_args *a, int64_t n)
{
    a->n_tokens -= n;
    if (a->x_rows)
        a->x_rows += n;
    else
        a->x = (const uint8_t *)a->x + (size_t)n * a->x_bytes;
    if (a->y_rows)
        a->y_rows += n;
    else
        a->y += (size_t)n * a->y_stride;
}

/* The first n tokens; not inlined, since its memory on the stack must be gone before the tier below takes the others. */
typedef void group_fn(const ox_gemm_args *a, int64_t n);

static __attribute__((unused)) void tiles_q8(const ox_gemm_args *a, int64_t from, group_fn *group,
                                             ox_gemm_fn *few_tokens)
{
    const int64_t least = a->k < TILES_COLUMNS ? INT64_MAX : (TILES_LEAST + a->k - 1) / a->k;
    ox_gemm_args rest = *a;
    from = from < least ? least : from;
    for (int64_t n; rest.n_tokens >= from; advance(&rest, n)) {
        n = rest.n_tokens < GROUP ? rest.n_tokens : GROUP;
        group(&rest, n);
        rest.from_memory = 0; /* any more */
    }
    if (rest.n_tokens)
        few_tokens(&rest);
}

#define GEMM_TILES(name, unpack, bytes, chunks, form)                                              \
    APART void group_##name(const ox_gemm_args *a, int64_t n)                                      \
    {                                                                                              \
        const q8_format f = {unpack, bytes, chunks, form_##form()};                                \
        group_q8(a, f, 0, n, adder_of(form_##form()));                                             \
    }                                                                                              \
    static void gemm_##name(const ox_gemm_args *a)                                                 \
    {                                                                                              \
        tiles_q8(a, TILES_FROM(form_##form()), group_##name, few[OX_##name]);                      \
    }
#define GEMM_NEVER GEMM_TILES
#define GEMM_ONE_TILE GEMM_TILES
#define GEMM_ALWAYS GEMM_TILES
#define GEMM_TOGETHER GEMM_TILES
