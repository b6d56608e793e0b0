/* Monitoring: who is attached, what each owner has, and the counters. Nothing here writes to the
 * segment. */
#include <string.h>

#include "api/es_api.h"
#include "base/es_clock.h"
#include "base/es_counter.h"
#include "ring/es_owner.h"
#include "ring/es_ring.h"
#include "ring/es_slots.h"
#include "ring/es_stats.h"
#include "ring/es_word.h"

/* Whether slot word w keeps its slot from others: claimed, or held in this lap by a learner. */
static bool keeps_slot(es_ring *r, uint64_t q, uint64_t w)
{
    return es_word_state(w) == ES_CLAIMED || (es_word_state(w) == ES_HELD && es_slots_filling(r, q, w));
}

int64_t es_monitor_next_claim(es_ring *r, uint64_t start, uint64_t *word)
{
    for (uint64_t q = start; q < r->map.capacity; q++) {
        uint64_t w = atomic_load_explicit(&r->map.slots[q], memory_order_relaxed);
        if (keeps_slot(r, q, w)) {
            *word = w;
            return (int64_t)q;
        }
    }
    return ES_EMPTY;
}

uint32_t es_monitor_claim_owner(uint64_t word)
{
    return es_word_owner(word);
}

uint32_t es_monitor_owner_entries(const es_ring *r)
{
    return r->map.num_owners;
}

void es_monitor_count_held(es_ring *r, uint32_t *held, uint32_t count)
{
    for (uint64_t q = 0; q < r->map.capacity; q++) {
        uint64_t w = atomic_load_explicit(&r->map.slots[q], memory_order_relaxed);
        if (keeps_slot(r, q, w) && es_word_owner(w) < count)
            held[es_word_owner(w)]++;
    }
    for (uint64_t j = 0; j < r->map.num_batches; j++) {
        uint64_t w = atomic_load_explicit(&r->map.batches[j].word, memory_order_relaxed);
        if (es_word_state(w) == ES_LEASED && es_word_owner(w) < count)
            held[es_word_owner(w)]++;
    }
}

void es_monitor_lease_ages(es_ring *r, uint64_t *ages_ns, uint32_t count)
{
    for (uint64_t j = 0; j < r->map.num_batches; j++) {
        uint64_t w = atomic_load_explicit(&r->map.batches[j].word, memory_order_relaxed);
        uint64_t leased = es_counter_get(&r->map.batches[j].leased_ns), now = es_clock_ns();
        uint32_t owner = es_word_owner(w);
        if (es_word_state(w) == ES_LEASED && owner < count && leased != 0 && leased < now &&
            now - leased > ages_ns[owner])
            ages_ns[owner] = now - leased;
    }
}

/* The committed samples of batch j that were not released, at positions below that one. */
static uint64_t committed_in(es_ring *r, uint64_t j, uint64_t position)
{
    uint64_t size = r->map.batch_size, n = 0;
    uint64_t b = atomic_load_explicit(&r->map.batches[j].word, memory_order_relaxed), round = es_word_round(b);
    if (es_word_state(b) == ES_RETIRED)
        return 0;
    for (uint64_t q = j * size; q < (j + 1) * size; q++) {
        uint64_t w = atomic_load_explicit(&r->map.slots[q], memory_order_relaxed);
        n += es_word_state(w) == ES_COMMITTED && es_word_lap(w) == round + 1 &&
             round * size * r->map.num_batches + q < position;
    }
    return n;
}

uint64_t es_monitor_count_committed(es_ring *r, uint64_t *full)
{
    uint64_t total = 0;
    *full = 0;
    for (uint64_t j = 0; j < r->map.num_batches; j++) {
        uint64_t n = committed_in(r, j, UINT64_MAX);
        total += n;
        *full += n == r->map.batch_size;
    }
    return total;
}

uint64_t es_monitor_committed_before(es_ring *r, uint64_t position)
{
    uint64_t total = 0;
    for (uint64_t j = 0; j < r->map.num_batches; j++)
        total += committed_in(r, j, position);
    return total;
}

int64_t es_monitor_next_owner(es_ring *r, uint32_t start, es_owner_info *info)
{
    uint32_t high = es_owner_high(&r->map);
    for (uint32_t i = start; i < high; i++) {
        es_owner *o = &r->map.owners[i];
        /* SYNC owner-live: acquire; the identity is visible. */
        if (atomic_load_explicit(&o->state, memory_order_acquire) != ES_OWNER_LIVE)
            continue;
        es_owner_identity(o, &info->id);
        info->id.index = i;
        info->is_bridge = atomic_load_explicit(&o->is_bridge, memory_order_relaxed);
        info->samples = es_counter_get(&o->samples);
        info->blocked = es_counter_get(&o->blocked);
        info->blocked_ns = es_counter_get(&o->blocked_ns);
        info->waiting = atomic_load_explicit(&o->waiting, memory_order_relaxed);
        return i;
    }
    return ES_EMPTY;
}

int64_t es_monitor_next_remote(es_ring *r, uint32_t start, es_remote_info *info)
{
    es_map *m = &r->map;
    for (uint32_t i = start; i < m->num_remotes; i++) {
        es_remote *it = &m->remotes[i];
        /* SYNC remote: acquire; its figures are no older than the word. */
        uint64_t w = atomic_load_explicit(&it->word, memory_order_acquire);
        if (es_word_remote_state(w) == ES_REMOTE_FREE)
            continue;
        info->index = i;
        info->state = es_word_remote_state(w);
        info->bridge = es_word_remote_bridge(w);
        info->committed = es_counter_get(&it->committed);
        info->bytes = es_counter_get(&it->bytes);
        info->frames = es_counter_get(&it->frames);
        info->since_ns = es_counter_get(&it->since_ns);
        memcpy(info->peer, it->peer, sizeof info->peer);
        info->peer[sizeof info->peer - 1] = 0;
        return i;
    }
    return ES_EMPTY;
}

void es_monitor_places(const es_ring *r, es_places *at)
{
    const uint8_t *base = r->map.base;
    *at = (es_places){
        .tail = offsetof(es_header, tail),
        .owners_high = offsetof(es_header, owners_high),
        .learner_sleeps = offsetof(es_header, learner_sleeps),
        .slots = (uint64_t)((const uint8_t *)r->map.slots - base),
        .owners = (uint64_t)((const uint8_t *)r->map.owners - base),
        .owner_bytes = sizeof(es_owner),
        .state = offsetof(es_owner, state),
        .role = offsetof(es_owner, role),
        .pid = offsetof(es_owner, pid),
        .start_time = offsetof(es_owner, start_time_bits),
        .samples = offsetof(es_owner, samples),
        .blocked_ns = offsetof(es_owner, blocked_ns),
        .waiting = offsetof(es_owner, waiting),
        .batches = (uint64_t)((const uint8_t *)r->map.batches - base),
        .batch_bytes = sizeof(es_batch),
        .word = offsetof(es_batch, word),
        .leased_ns = offsetof(es_batch, leased_ns),
    };
}

void es_monitor_observe(es_ring *r, es_snapshot *snap)
{
    es_stats_snapshot(&r->map, snap);
    uint32_t high = es_owner_high(&r->map);
    for (uint32_t i = 0; i < high; i++)
        snap->producers_waiting +=
            atomic_load_explicit(&r->map.owners[i].state, memory_order_relaxed) == ES_OWNER_LIVE &&
            atomic_load_explicit(&r->map.owners[i].waiting, memory_order_relaxed) != 0;
}
