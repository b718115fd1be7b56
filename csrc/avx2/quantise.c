/* The quantisers, eight blocks at a time: the bytes are those of the scalar tier. AVX-512 gains nothing more, for
 * want of a second unit of that width where it was measured (Zen 4), and takes these. */
#define LANES 8
#include "../generic/quantisers.h"

void ox_avx2_quantisers(ox_kernels *t) { fill_quantisers(t); }
