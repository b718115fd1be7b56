/* Functions that are always inlined, and loops of up to 16 rounds that are unrolled: vectors in an array that a loop
 * indexes stay in registers only where each index is a constant. */
#ifndef OX_INLINE_H
#define OX_INLINE_H

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
/* A function of its own wherever it is called: compilers take time that grows faster than a function's length. */
#define APART static __attribute__((noinline))
/* One that begins a line of the cache. Where the loops of attention lie in their lines made up to a tenth of its time on
 * Emerald Rapids, and changed with whatever was compiled before them; products of weights didn't care. */
#define APART_ON_LINE static __attribute__((noinline, aligned(64)))

#endif
