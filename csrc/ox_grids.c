#include "ox_grids.h"
#include "tables/iq_grids.h"

const int8_t ox_codes_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t ox_codes_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
const int8_t ox_codes_iq3_xxs[16] = {4, 12, 20, 28, 36, 44, 52, 62};
const int8_t ox_codes_iq3_s[16] = {1, 3, 5, 7, 9, 11, 13, 15};
const int8_t ox_codes_iq2[16] = {8, 25, 43, 0, 25, 0, 0, 0, 43};
const int8_t ox_codes_iq1[16] = {-8, 0, 8, 0, 0, 0, 0, 0, 8};
