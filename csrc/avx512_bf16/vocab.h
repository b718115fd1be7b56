/* What AVX512_BF16 adds to the vocabulary of avx512. The instructions take values below 2^-126 for zeros. */
#include "../avx512/vocab.h"

/* acc + the two products of bfloat16 in each lane. */
V vf vf_dot_bf16(vf w, vf x, vf acc) { return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x); }
/* Rounded to nearest even. */
V void vf_to_bf16(uint16_t *p, vf x) { _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(x)); }
