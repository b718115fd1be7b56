/* Points of the IQ formats (tables/make_grids.py tells the layout), and tables of what codes stand for. */
#ifndef OX_GRIDS_H
#define OX_GRIDS_H
#include <stdint.h>

/* One entry more than there are points: a vector gather reads 32 bits. */
extern const uint16_t ox_grid_iq2_xxs[256 + 1], ox_grid_iq2_xs[512 + 1], ox_grid_iq2_s[1024 + 1]; /* 8 x 2 bits */
extern const uint16_t ox_grid_iq1_s[2048 + 1];                                                    /* 8 x 2 bits */
extern const uint16_t ox_grid_iq3_xxs[256 + 1], ox_grid_iq3_s[512 + 1];                           /* 4 x 4 bits */

extern const int8_t ox_codes_iq4[16];                       /* IQ4_NL and IQ4_XS */
extern const int8_t ox_codes_fp4[16];                       /* twice the values of E2M1: MXFP4 and NVFP4 */
extern const int8_t ox_codes_iq3_xxs[16], ox_codes_iq3_s[16];
/* Three levels, which kernels look up in either half of four bits: level n is entry n and entry 4n. */
extern const int8_t ox_codes_iq2[16], ox_codes_iq1[16];     /* IQ1: eight times -1, 0, 1 */

#endif
