/* Included before the files of a replay that read and change a store, in the store target. Between any two of their
 * steps fuzz_race() may change the store, as a hostile process can. */
#ifndef FUZZ_STORE_RACE_H
#define FUZZ_STORE_RACE_H

#include <math.h>

#include "base/es_base.h"
#include "fuzz_race.h"

#undef ES_COMPILER_BARRIER
#define ES_COMPILER_BARRIER() fuzz_race()
#undef isnan
#define isnan(x) (fuzz_race(), __builtin_isnan(x))

#endif
