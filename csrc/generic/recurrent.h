/* Layers that keep a state of fixed size: short convolutions and selective scans. Lane = channel: no sum is horizontal.
 *
 * Tokens pass a tile of the state in order while it stays in registers, so that a prompt reads and writes the state
 * once for each RUN tokens, and a single token is one pass over it. What happens to a value for a token does not depend
 * on how many tokens the call has. Included after rows.h. */
#include <math.h>

#define RUN 32 /* tokens whose inputs and sums wait in the nearest cache while the tiles of a panel take their turns */

/* The rest of channel c at token t, which may lie up to n_taps - 1 before the first. */
INLINE vf conv_input(const ox_conv1d_args *a, int64_t t, int64_t c)
{
    int64_t left = a->n_channels - c;
    if (t < 0)
        return a->read ? load_part(a->read + (t + a->n_taps - 1) * (int64_t)a->w_stride + c, left, 0) : vf_zero();
    size_t i = (size_t)t * a->x_stride + (size_t)c;
    vf x = load_part(a->x + i, left, 0);
    return a->in_gate ? vf_mul(x, load_part(a->in_gate + i, left, 0)) : x;
}

INLINE vf conv_output(const ox_conv1d_args *a, int64_t t, int64_t c)
{
    int64_t left = a->n_channels - c;
    vf sum = a->bias ? load_part(a->bias + c, left, 0) : vf_zero();
    for (int k = 0; k < a->n_taps; k++) {
        vf w = load_part(a->w + (size_t)k * a->w_stride + (size_t)c, left, 0);
        sum = vf_fma(w, conv_input(a, t - a->n_taps + 1 + k, c), sum);
    }
    if (a->silu)
        sum = vf_times_sigmoid(sum, sum);
    return a->out_gate ? vf_mul(sum, load_part(a->out_gate + (size_t)t * a->x_stride + (size_t)c, left, 0)) : sum;
}

static void conv1d(const ox_conv1d_args *args)
{
    const ox_conv1d_args copied = *args, *a = &copied; /* which no store can change */
    for (int64_t t = 0; t < a->n_tokens; t++)
        for (int64_t c = 0; c < a->n_channels; c += VL)
            store_rows(a->y + (size_t)t * a->y_stride + (size_t)c, conv_output(a, t, c), a->n_channels - c, 0);
    for (int k = 0; k < a->n_taps - 1; k++)
        for (int64_t c = 0; c < a->n_channels; c += VL)
            store_rows(a->write + (size_t)k * a->w_stride + (size_t)c,
                       conv_input(a, a->n_tokens - a->n_taps + 1 + k, c), a->n_channels - c, 0);
}

/* A panel of 16 channels over up to RUN tokens. */
typedef struct {
    _Alignas(64) float step[RUN * 16]; /* scan1: of each token and channel */
    float u[RUN * 16];                 /* step x */
    float y[RUN * 16];                 /* sums so far */
    float odd[RUN * 16];               /* of every other product of 16 values */
} scan_run;

/* Steps and decays of a head's next n tokens, lane = token. */
static void scan2_steps(const ox_scan_args *a, int64_t t, int64_t n, float *steps, float *decay)
{
    float dt[RUN + VL] = {0};
    vf bias = vf_set1(a->dt_bias ? *a->dt_bias : 0);
    for (int64_t i = 0; i < n; i++)
        dt[i] = a->dt[(size_t)(t + i) * a->dt_stride];
    for (int64_t i = 0; i < n; i += VL) {
        vf step = vf_softplus(vf_add(vf_load(dt + i), bias));
        vf_store(steps + i, step);
        vf_store(decay + i, vf_exp(vf_mul(step, vf_set1(*a->a))));
    }
}

/* What the tiles of the channels c.. of one vector need for tokens t..t+n-1: r->step, u and y at its place. */
INLINE void begin_run(const ox_scan_args *a, int64_t t, int64_t n, int64_t c, const float *steps, const int shared,
                      float *step_of, float *u, float *y)
{
    int64_t left = a->n_channels - c;
    vf bias = !shared && a->dt_bias ? load_part(a->dt_bias + c, left, 0) : vf_zero();
    vf d = shared ? vf_set1(*a->d) : load_part(a->d + c, left, 0);
    for (int64_t i = 0; i < n; i++) {
        vf x = load_part(a->x + (size_t)(t + i) * a->x_stride + (size_t)c, left, 0), step;
        if (shared) {
            step = vf_set1(steps[i]);
        } else {
            step = vf_softplus(vf_add(load_part(a->dt + (size_t)(t + i) * a->dt_stride + (size_t)c, left, 0), bias));
            vf_store(step_of + i * 16, step);
        }
        vf_store(u + i * 16, vf_mul(step, x));
        vf_store(y + i * 16, vf_mul(d, x));
    }
}

INLINE void end_run(const ox_scan_args *a, int64_t t, int64_t n, int64_t c, const float *sums)
{
    int64_t left = a->n_channels - c;
    for (int64_t i = 0; i < n; i++) {
        vf y = vf_load(sums + i * 16);
        if (a->z) {
            vf z = load_part(a->z + (size_t)(t + i) * a->z_stride + (size_t)c, left, 0);
            y = vf_mul(y, vf_times_sigmoid(z, z));
        }
        store_rows(a->y + (size_t)(t + i) * a->y_stride + (size_t)c, y, left, 0);
    }
}

/* n tokens pass S values of each channel of a panel: h, a and out are where the first of them lie; h NULL: zeros. Of
 * each 16 values every other product goes to a second sum, so that tokens don't wait for one another's; it waits for the
 * next tile unless this one has the `last` of 16. Values behind whole 16s have a tile each. */
INLINE void scan_tile(const ox_scan_args *args, const float *b, const float *c, int64_t n, const float *h,
                      const float *a, float *out, int stream, const int S, int first, int last, const int shared,
                      const float *decay, scan_run *r)
{
    vf state[SCAN_STATES][NV];
    UNROLL for (int j = 0; j < S * NV; j++)
        state[j / NV][j % NV] = h ? vf_load(h + j * VL) : vf_zero();
    for (int64_t i = 0; i < n; i++, b += args->bc_stride, c += args->bc_stride)
        UNROLL for (int v = 0; v < NV; v++) {
            float *sum = r->y + i * 16 + v * VL, *odd = r->odd + i * 16 + v * VL;
            vf u = vf_load(r->u + i * 16 + v * VL), y[2] = {vf_load(sum), first ? vf_zero() : vf_load(odd)};
            vf f = shared ? vf_set1(decay[i]) : vf_load(r->step + i * 16 + v * VL);
            UNROLL for (int j = 0; j < S; j++) {
                vf keep = shared ? f : vf_exp(vf_mul(f, vf_load(a + 16 * j + v * VL)));
                state[j][v] = vf_fma(state[j][v], keep, vf_mul(u, vf_set1(b[j])));
                y[j % 2] = vf_fma(state[j][v], vf_set1(c[j]), y[j % 2]);
            }
            vf_store(sum, last ? vf_add(y[0], y[1]) : y[0]);
            if (!last)
                vf_store(odd, y[1]);
        }
    UNROLL for (int j = 0; j < S * NV; j++)
        if (stream)
            vf_stream(out + j * VL, state[j / NV][j % NV]);
        else
            vf_store(out + j * VL, state[j / NV][j % NV]);
}

#define TILE_OF_STATE(S, end, first, last)                                                                             \
    for (; s < (end); s += S)                                                                                          \
        scan_tile(a, b + s, c + s, n, h ? h + at + 16 * s : NULL, shared ? NULL : a->a + at + 16 * s,                  \
                  a->write + at + 16 * s, stream, S, first, last, shared, decay, r);

/* All tiles of the panel of channels c0.. over n tokens. */
INLINE void scan_panel(const ox_scan_args *a, int64_t t, int64_t n, int64_t c0, const float *h, int stream,
                       const int shared, const float *steps, const float *decay, scan_run *r)
{
    const float *b = a->b + (size_t)t * a->bc_stride, *c = a->c + (size_t)t * a->bc_stride;
    int64_t at = c0 * a->n_state;
    int s = 0;
    for (int v = 0; v < 16; v += VL)
        begin_run(a, t, n, c0 + v, steps, shared, r->step + v, r->u + v, r->y + v);
    TILE_OF_STATE(SCAN_STATES, a->n_state / 16 * 16, SCAN_STATES == 16 || s % 16 == 0,
                  SCAN_STATES == 16 || s % 16 == 16 - SCAN_STATES)
    TILE_OF_STATE(1, a->n_state, 1, 1)
    for (int v = 0; v < 16; v += VL)
        end_run(a, t, n, c0 + v, r->y + v);
}

/* Each run of tokens passes all panels; only the last leaves the state for long. */
INLINE void scan(const ox_scan_args *args, const int shared)
{
    const ox_scan_args copied = *args, *a = &copied; /* which no store can change */
    float steps[RUN + VL], decay[RUN + VL];
    scan_run r;
    const float *h = a->read;
    for (int64_t t = 0; t < a->n_tokens; t += RUN, h = a->write) {
        int64_t n = a->n_tokens - t < RUN ? a->n_tokens - t : RUN;
        int stream = a->stream && t + n == a->n_tokens;
        if (shared)
            scan2_steps(a, t, n, steps, decay);
        for (int64_t c = 0; c < a->n_channels; c += 16)
            scan_panel(a, t, n, c, h, stream, shared, steps, decay, &r);
    }
    if (a->stream)
        vf_fence();
}

static void scan1(const ox_scan_args *a) { scan(a, 0); }
static void scan2(const ox_scan_args *a) { scan(a, 1); }
