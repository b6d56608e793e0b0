#include "ring/es_stats.h"

#include <string.h>

#include "base/es_clock.h"
#include "base/es_counter.h"
#include "ring/es_owner.h"
#include "ring/es_word.h"

void es_stats_record(es_map *map, int which, uint64_t ns)
{
    if (es_stats_detailed(map))
        es_histogram_record(&map->hists[which], ns);
}

void es_stats_reset(es_map *map)
{
    if (!es_stats_detailed(map))
        return;
    for (int h = 0; h < ES_STATS_HISTOGRAMS; h++)
        es_histogram_reset(&map->hists[h]);
}

void es_stats_count_take(es_map *m, uint64_t j)
{
    es_totals *totals = &m->hdr->totals;
    es_counter_add(&totals->batches_taken, 1);
    uint64_t claimed = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed);
    uint64_t released = es_counter_get(&totals->batches_released) * m->batch_size;
    if (claimed > released)
        es_counter_raise(&totals->occupancy_max, claimed - released);
    if (es_stats_detailed(m)) {
        uint64_t ready = atomic_load_explicit(&m->batches[j].ready_ns, memory_order_relaxed), now = es_clock_ns();
        if (ready != 0 && ready < now)
            es_stats_record(m, ES_STATS_DWELL, now - ready);
    }
}

/* A gauge for people, counted again each time for the reason given at es_owner_count_producers(). */
void es_stats_count_remotes(es_map *m)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->num_remotes; i++)
        n += es_word_remote_state(atomic_load_explicit(&m->remotes[i].word, memory_order_relaxed)) == ES_REMOTE_HERE;
    atomic_store_explicit(&m->hdr->totals.active_remotes, n, memory_order_relaxed);
}

/* relaxed: of a batch that was taken they are settled; elsewhere any of a slot's versions will do. A sample may be younger
 * than the latest version, which its publisher says last. Foreign processes write these numbers: none may overflow. */
void es_stats_ages(const _Atomic int64_t *versions, uint64_t n, es_snapshot *snap)
{
    int64_t latest = snap->latest_version, oldest = latest;
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        int64_t version = atomic_load_explicit(&versions[i], memory_order_relaxed);
        version = version < 0 ? 0 : version > latest ? latest : version;
        oldest = version < oldest ? version : oldest;
        sum += (double)(latest - version);
    }
    snap->age_max = latest - oldest;
    snap->age_mean = n > 0 ? sum / (double)n : 0;
}

static void fill_detailed(es_map *map, es_snapshot *out)
{
    uint32_t high = es_owner_high(map);
    for (uint32_t i = 0; i < high; i++) {
        if (atomic_load_explicit(&map->owners[i].state, memory_order_relaxed) != ES_OWNER_LIVE)
            continue;
        out->cas_success += es_counter_get(&map->owners[i].cas_success);
        out->cas_failure += es_counter_get(&map->owners[i].cas_failure);
        out->reservation_retries += es_counter_get(&map->owners[i].reservation_retries);
    }
    es_histogram_summarise(&map->hists[ES_STATS_LOOK], &out->look);
    es_histogram_summarise(&map->hists[ES_STATS_COPY], &out->copy);
    es_histogram_summarise(&map->hists[ES_STATS_DWELL], &out->dwell);
}

void es_stats_snapshot(es_map *map, es_snapshot *out)
{
    es_header *hdr = map->hdr;
    es_totals *totals = &hdr->totals;
    memset(out, 0, sizeof *out);
    out->samples_inserted = atomic_load_explicit(&hdr->tail, memory_order_relaxed);
    out->batches_taken = es_counter_get(&totals->batches_taken);
    uint64_t taken = out->batches_taken * map->batch_size;
    uint64_t released = es_counter_get(&totals->batches_released) * map->batch_size;
    out->store_size = out->samples_inserted > taken ? out->samples_inserted - taken : 0;
    out->occupancy = out->samples_inserted > released ? out->samples_inserted - released : 0;
    out->occupancy_max = es_counter_get(&totals->occupancy_max);
    out->push_blocked = es_counter_get(&totals->push_blocked);
    out->notify_count = es_counter_get(&totals->notify_count);
    out->active_producers = es_counter_get(&totals->active_producers);
    out->active_remotes = es_counter_get(&totals->active_remotes);
    out->refused_remotes = es_counter_get(&totals->refused_remotes);
    out->dead_producers = es_counter_get(&totals->dead_producers);
    out->stalled_producers = es_counter_get(&totals->stalled_producers);
    out->reopened_slots = es_counter_get(&totals->reopened_slots);
    out->too_old = es_counter_get(&totals->too_old);
    /* relaxed: a hint. Foreign processes write it: a negative one is none. */
    int64_t latest = atomic_load_explicit(&hdr->latest_version, memory_order_relaxed);
    out->latest_version = latest > 0 ? latest : 0;
    out->closed = atomic_load_explicit(&hdr->closed, memory_order_relaxed);
    if (es_stats_detailed(map))
        fill_detailed(map, out);
}
