#include "xp.h"

const xp_known xp_known_orders[] = {
    {0},
};
