#include "base/es_histogram.h"

#include <string.h>

#include "base/es_counter.h"

/* Buckets 0..7 hold 0..7 ns; from there on eight to each power of two. */
static uint32_t bucket_of(uint64_t ns)
{
    if (ns < 8)
        return (uint32_t)ns;
    uint32_t power = 63u - (uint32_t)__builtin_clzll(ns);
    return (power - 2) * 8 + (uint32_t)(ns >> (power - 3) & 7);
}

static uint64_t upper_edge(uint32_t bucket)
{
    if (bucket < 8)
        return bucket;
    uint32_t power = bucket / 8 + 2;
    return (UINT64_C(1) << power) + ((uint64_t)(bucket % 8 + 1) << (power - 3)) - 1;
}

void es_histogram_record(es_histogram *histogram, uint64_t ns)
{
    es_counter_add(&histogram->bucket[bucket_of(ns)], 1);
    es_counter_add(&histogram->sum, ns);
    es_counter_raise(&histogram->max, ns);
    es_counter_raise(&histogram->min_complement, ~ns); /* zero-filled memory means "no minimum yet" */
}

static uint64_t percentile(const uint64_t *bucket, uint64_t count, uint64_t percent)
{
    uint64_t rank = (count * percent + 99) / 100, below = 0;
    for (uint32_t b = 0; b < ES_HISTOGRAM_BUCKETS; b++)
        if ((below += bucket[b]) >= rank)
            return upper_edge(b);
    return upper_edge(ES_HISTOGRAM_BUCKETS - 1);
}

void es_histogram_summarise(es_histogram *histogram, es_histogram_summary *out)
{
    memset(out, 0, sizeof *out);
    uint64_t bucket[ES_HISTOGRAM_BUCKETS];
    for (uint32_t b = 0; b < ES_HISTOGRAM_BUCKETS; b++)
        out->count += bucket[b] = es_counter_get(&histogram->bucket[b]);
    if (out->count == 0)
        return;
    out->sum_ns = es_counter_get(&histogram->sum);
    out->max_ns = es_counter_get(&histogram->max);
    out->min_ns = ~es_counter_get(&histogram->min_complement);
    out->p50_ns = percentile(bucket, out->count, 50);
    out->p90_ns = percentile(bucket, out->count, 90);
    out->p99_ns = percentile(bucket, out->count, 99);
}

void es_histogram_reset(es_histogram *histogram)
{
    /* relaxed: a sample recorded meanwhile may survive the reset in part. */
    for (uint32_t b = 0; b < ES_HISTOGRAM_BUCKETS; b++)
        atomic_store_explicit(&histogram->bucket[b], 0, memory_order_relaxed);
    atomic_store_explicit(&histogram->sum, 0, memory_order_relaxed);
    atomic_store_explicit(&histogram->max, 0, memory_order_relaxed);
    atomic_store_explicit(&histogram->min_complement, 0, memory_order_relaxed);
}
