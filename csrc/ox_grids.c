#include "ox_grids.h"
#include "tables/iq_grids.h"

const int8_t ox_codes_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t ox_codes_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
const int8_t ox_codes_iq2[16] = {8, 25, 43};
