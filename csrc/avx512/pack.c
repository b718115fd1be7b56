/* The avx512 tier's packing, of sixteen rows at a time. F16 stays the avx2 tier's. */
#include "../ox_dispatch.h"
#include "../ox_blocks.h"
#include "vocab.h"
#include "pack.h"
#include "../generic/pack.h"
#include "../generic/pack_words.h"

void ox_avx512_pack(ox_kernels *t)
{
    fill_pack(t);
    fill_pack_words(t);
}
