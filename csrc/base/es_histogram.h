/* Log-linear histograms of nanoseconds, over memory that processes share. */
#ifndef ES_HISTOGRAM_H
#define ES_HISTOGRAM_H

#include "base/es_base.h"

#define ES_HISTOGRAM_BUCKETS 496u /* 62 powers of two, 8 buckets each */

/* Zero-filled memory is an empty histogram. Any process adds, relaxed: readers want a
 * picture, not an instant. */
typedef struct es_histogram {
    _Atomic uint64_t sum, min_complement, max;
    _Atomic uint64_t bucket[ES_HISTOGRAM_BUCKETS];
} es_histogram;

void es_histogram_record(es_histogram *histogram, uint64_t ns);
void es_histogram_summarise(es_histogram *histogram, es_histogram_summary *out);
void es_histogram_reset(es_histogram *histogram);

#endif
