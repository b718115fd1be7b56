/* What the parts of the driver share: guarded buffers, random numbers, and words for what failed. */
#ifndef CHECK_H
#define CHECK_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "../../../csrc/ox_kernels.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* The slot's function; notes that the slot was tested. */
#define CALL(t, slot) (note_slot((size_t)((const char *)&(t)->slot - (const char *)(t))), (t)->slot)
void note_slot(size_t offset);

/* What is being done now, for the message if it crashes or fails. */
void doing(const char *format, ...) __attribute__((format(printf, 1, 2)));
void expect(int holds, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same bits, or both NaN, in each of n places: csrc/README.md says what a NaN need not keep. */
void expect_same(const float *a, const float *b, int64_t n);
/* |a - b| <= bound, or both NaN, in each of n places: of products of bfloat16 alone, whose order is their own */
void expect_near(const float *a, const float *b, int64_t n, double bound);
void expect_equal(const void *a, const void *b, size_t bytes);

uint64_t random_bits(void);
float random_float(void); /* -1 to 1 */
void fill_floats(float *x, int64_t n, float scale);
/* Zeros of both signs, subnormals, the largest and the smallest numbers, infinities and NaN among others. */
void fill_specials(float *x, int64_t n);

/* n bytes at a multiple of `align`, otherwise at any address, often just before a page that can't be touched; bytes
 * around them are watched. Lives until release(). */
void *place(size_t n, size_t align);
/* A copy of n bytes that can be read only. */
const void *copy(const void *src, size_t n, size_t align);
void seal(const void *p);
/* Looks at what surrounds every buffer and frees them all. */
void release(void);

void check_rows(const ox_kernels *scalar, const ox_kernels *t);
void check_formats(const ox_kernels *scalar, const ox_kernels *t);
void check_products(const ox_kernels *scalar, const ox_kernels *t, int64_t most); /* of up to so many tokens */
void check_products_of(const ox_kernels *scalar, const ox_kernels *t, int kernel); /* of one format */
void check_attention(const ox_kernels *scalar, const ox_kernels *t);
void check_choice(const ox_kernels *scalar, const ox_kernels *t);
void check_recurrent(const ox_kernels *scalar, const ox_kernels *t);

/* Rows of a format: random bits, of which blocks whose values are NaN, huge or tiny are thrown away. */
typedef struct {
    const ox_format_info *format;
    int64_t k, n_rows;
    size_t row_bytes;
    uint8_t *rows;
    float *largest; /* magnitude in each block, [n_rows][k / values] */
} matrix;
matrix random_matrix(const ox_kernels *scalar, const ox_format_info *f, int64_t n_rows, int64_t k);
size_t panel_bytes(const matrix *m);
/* All panels of a matrix, packed by a tier; read only. */
const uint8_t *packed(const ox_kernels *t, const matrix *m);

#endif
