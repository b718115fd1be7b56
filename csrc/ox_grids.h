/* Points of the IQ formats, one 32-bit word each (tables/make_grids.py tells the layout), and tables of 16 codes. */
#ifndef OX_GRIDS_H
#define OX_GRIDS_H
#include <stdint.h>

extern const uint32_t ox_grid_iq2_xxs[256], ox_grid_iq2_xs[512], ox_grid_iq2_s[1024]; /* levels 0..2 in nibbles */
extern const uint32_t ox_grid_iq1_s[2048];                                            /* levels 0..2 in nibbles */
extern const uint32_t ox_grid_iq3_xxs[256];                                           /* bytes, 64 added */
extern const uint32_t ox_grid_iq3_s[512];                                             /* bytes, 64 added */

extern const int8_t ox_codes_iq4[16]; /* IQ4_NL and IQ4_XS */
extern const int8_t ox_codes_fp4[16]; /* twice the values of E2M1: MXFP4 and NVFP4 */
extern const int8_t ox_codes_iq2[16]; /* what the three levels of IQ2 stand for */

#endif
