/* Keys of 16 lanes put together by a tier's gather_rows_of_16; fewer are the scalar tier's. */

void ox_gather_keys_F32(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);
void ox_gather_keys_F16(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);
void ox_gather_keys_Q8_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);
void ox_gather_keys_Q4_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);

static void gather_keys_F32(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    if (n < 16)
        ox_gather_keys_F32(panels, lanes, n, panel, dim);
    else
        gather_rows_of_16(panels, lanes, dim, 0, panel);
}

static void gather_keys_F16(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    if (n < 16)
        ox_gather_keys_F16(panels, lanes, n, panel, dim);
    else
        gather_rows_of_16(panels, lanes, 0, dim, panel);
}

static void gather_keys_Q8_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    if (n < 16)
        ox_gather_keys_Q8_0(panels, lanes, n, panel, dim);
    else
        gather_rows_of_16(panels, lanes, (dim + 31) / 32 * 8, (dim + 31) / 32, panel);
}

static void gather_keys_Q4_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    if (n < 16)
        ox_gather_keys_Q4_0(panels, lanes, n, panel, dim);
    else
        gather_rows_of_16(panels, lanes, (dim + 31) / 32 * 4, (dim + 31) / 32, panel);
}

static void fill_gather(ox_kernels *t)
{
    t->gather_keys[OX_KV_F32] = gather_keys_F32;
    t->gather_keys[OX_KV_F16] = gather_keys_F16;
    t->gather_keys[OX_KV_Q8_0] = gather_keys_Q8_0;
    t->gather_keys[OX_KV_Q4_0] = gather_keys_Q4_0;
}
