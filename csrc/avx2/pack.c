/* The avx2 tier's packing, of eight rows at a time. */
#include "../ox_dispatch.h"
#include "../ox_blocks.h"
#include "vocab.h"
#include "pack.h"
#include "../generic/pack.h"

void ox_avx2_pack(ox_kernels *t)
{
    fill_pack(t);
    ox_avx2_pack_words(t);
}
