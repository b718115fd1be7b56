/* The quantisers of the scalar tier: four blocks at a time, as the baseline's vectors have it. */
#define LANES 4
#include "../generic/quantisers.h"

void ox_scalar_quantisers(ox_kernels *t) { fill_quantisers(t); }
