#include "es_stats.h"

#include <string.h>

#include "es_owner.h"

void es_raise_to(_Atomic uint64_t *counter, uint64_t value)
{
    uint64_t seen = es_get(counter);
    while (seen < value &&
           !atomic_compare_exchange_weak_explicit(counter, &seen, value, memory_order_relaxed, memory_order_relaxed))
        ;
}

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

void es_hist_record(es_map *map, int which, uint64_t ns)
{
    if (!es_detailed(map))
        return;
    es_hist *hist = &map->hists[which];
    es_add(&hist->bucket[bucket_of(ns)], 1);
    es_add(&hist->sum, ns);
    es_raise_to(&hist->max, ns);
    es_raise_to(&hist->min_complement, ~ns); /* zero-filled memory means "no minimum yet" */
}

static uint64_t percentile(const uint64_t *bucket, uint64_t count, uint64_t percent)
{
    uint64_t rank = (count * percent + 99) / 100, below = 0;
    for (uint32_t b = 0; b < ES_HIST_BUCKETS; b++)
        if ((below += bucket[b]) >= rank)
            return upper_edge(b);
    return upper_edge(ES_HIST_BUCKETS - 1);
}

void es_hist_summarise(es_map *map, int which, es_hist_summary *out)
{
    memset(out, 0, sizeof *out);
    if (!es_detailed(map))
        return;
    es_hist *hist = &map->hists[which];
    uint64_t bucket[ES_HIST_BUCKETS];
    for (uint32_t b = 0; b < ES_HIST_BUCKETS; b++)
        out->count += bucket[b] = es_get(&hist->bucket[b]);
    if (out->count == 0)
        return;
    out->sum_ns = es_get(&hist->sum);
    out->max_ns = es_get(&hist->max);
    out->min_ns = ~es_get(&hist->min_complement);
    out->p50_ns = percentile(bucket, out->count, 50);
    out->p90_ns = percentile(bucket, out->count, 90);
    out->p99_ns = percentile(bucket, out->count, 99);
}

void es_hist_reset(es_map *map)
{
    if (!es_detailed(map))
        return;
    for (int h = 0; h < ES_HISTS; h++) {
        es_hist *hist = &map->hists[h];
        for (uint32_t b = 0; b < ES_HIST_BUCKETS; b++)
            atomic_store_explicit(&hist->bucket[b], 0, memory_order_relaxed);
        atomic_store_explicit(&hist->sum, 0, memory_order_relaxed);
        atomic_store_explicit(&hist->max, 0, memory_order_relaxed);
        atomic_store_explicit(&hist->min_complement, 0, memory_order_relaxed);
    }
}

static void fill_detailed(es_map *map, es_snapshot *out)
{
    uint32_t high = es_owners_high(map);
    for (uint32_t i = 0; i < high; i++) {
        if (atomic_load_explicit(&map->owners[i].state, memory_order_relaxed) != ES_OWNER_LIVE)
            continue;
        out->cas_success += es_get(&map->owners[i].cas_success);
        out->cas_failure += es_get(&map->owners[i].cas_failure);
        out->reservation_retries += es_get(&map->owners[i].reservation_retries);
    }
    es_hist_summarise(map, ES_HIST_LOOK, &out->look);
    es_hist_summarise(map, ES_HIST_COPY, &out->copy);
    es_hist_summarise(map, ES_HIST_DWELL, &out->dwell);
}

void es_snapshot_fill(es_map *map, es_snapshot *out)
{
    es_header *hdr = map->hdr;
    es_totals *totals = &hdr->totals;
    memset(out, 0, sizeof *out);
    out->samples_inserted = atomic_load_explicit(&hdr->tail, memory_order_relaxed);
    out->batches_taken = es_get(&totals->batches_taken);
    uint64_t taken = out->batches_taken * map->batch_size;
    uint64_t released = es_get(&totals->batches_released) * map->batch_size;
    out->store_size = out->samples_inserted > taken ? out->samples_inserted - taken : 0;
    out->occupancy = out->samples_inserted > released ? out->samples_inserted - released : 0;
    out->occupancy_max = es_get(&totals->occupancy_max);
    out->push_blocked = es_get(&totals->push_blocked);
    out->notify_count = es_get(&totals->notify_count);
    out->active_producers = es_get(&totals->active_producers);
    out->active_remotes = es_get(&totals->active_remotes);
    out->refused_remotes = es_get(&totals->refused_remotes);
    out->dead_producers = es_get(&totals->dead_producers);
    out->stalled_producers = es_get(&totals->stalled_producers);
    out->reopened_slots = es_get(&totals->reopened_slots);
    out->closed = atomic_load_explicit(&hdr->closed, memory_order_relaxed);
    if (es_detailed(map))
        fill_detailed(map, out);
}
