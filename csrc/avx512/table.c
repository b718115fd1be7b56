/* The avx512 tier: the generic bodies over this folder's vocabulary. */
#include "../ox_dispatch.h"
#include "vocab.h"
#include "../generic/q8.h"
#include "../generic/q8_words.h"
#include "../generic/q8_grid.h"
#include "../generic/float.h"
#include "../generic/rows.h"
#include "../generic/quantise.h"
#include "../generic/attention.h"
#include "../generic/table.h"

void ox_avx512_init(ox_kernels *t) { fill_table(t); }
