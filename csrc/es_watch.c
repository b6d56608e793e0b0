/* The roof, too: calls by which learners sweep up after the dead, and onlookers look. */
#include <string.h>

#include "es_api.h"
#include "es_ring.h"

int64_t es_next_dead(es_ring *r, uint32_t from, es_identity *id)
{
    /* Without enter(): a full table is swept by one who has no entry yet. */
    if (r->fork_generation != es_fork_generation())
        return ES_EFORK;
    if (r->locks == NULL)
        return ES_EREADONLY;
    id->index = ES_NOBODY;
    if (from == 0) {
        atomic_store_explicit(&r->last_sweep_ns, es_now_ns(), memory_order_relaxed);
        atomic_store_explicit(&r->unsure, false, memory_order_relaxed);
    }
    bool unsure = false;
    bool attached = atomic_load_explicit(&r->detached, memory_order_relaxed) == 0;
    int64_t index = es_owner_next_dead(&r->map, r->locks, from, attached ? r->me : ES_NOBODY, &unsure);
    if (unsure) {
        atomic_store_explicit(&r->unsure, true, memory_order_relaxed);
        /* What the end waits for here are no words, on which it may give up: its clock starts afresh. */
        atomic_store_explicit(&r->finish_ns, 0, memory_order_relaxed);
    }
    if (index == ES_EMPTY && atomic_load_explicit(&r->unsure, memory_order_relaxed))
        return ES_UNSURE;
    if (index >= 0) {
        es_owner_identity(&r->map.owners[index], id);
        id->index = (uint32_t)index;
    }
    return index;
}

int64_t es_settle(es_ring *r, es_identity *dead, int reap)
{
    uint32_t index = dead->index;
    if (r->fork_generation != es_fork_generation())
        return ES_EFORK;
    if (index == ES_NOBODY)
        return ES_EMPTY;
    dead->index = ES_NOBODY;
    if (reap)
        return es_reap(r, index);
    es_locks_yield(r->locks, index);
    return ES_OK;
}

/* Whether slot word w keeps its slot from others: claimed, or held in this lap by a learner. */
static bool keeps_slot(es_ring *r, uint64_t q, uint64_t w)
{
    uint64_t b = atomic_load_explicit(&r->map.batches[q / r->map.batch_size].word, memory_order_relaxed);
    return es_state(w) == ES_CLAIMED ||
           (es_state(w) == ES_HELD && es_state(b) == ES_FILL && es_lap(w) == es_round(b) + 1);
}

int64_t es_next_claim(es_ring *r, uint64_t from, uint64_t *word)
{
    for (uint64_t q = from; q < r->map.capacity; q++) {
        uint64_t w = atomic_load_explicit(&r->map.slots[q], memory_order_relaxed);
        if (keeps_slot(r, q, w)) {
            *word = w;
            return (int64_t)q;
        }
    }
    return ES_EMPTY;
}

int64_t es_committed_from(es_ring *r, uint64_t position)
{
    es_map *m = &r->map;
    uint64_t q = position % m->capacity, lap = position / m->capacity + 1, end = q - q % m->batch_size + m->batch_size;
    int64_t n = 0;
    for (; q < end; q++, n++) {
        /* SYNC slot-commit: acquire; the slot's bytes are visible. */
        uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
        if (es_lap(w) != lap || es_state(w) != ES_COMMITTED)
            break;
    }
    return n;
}

int64_t es_claimed(es_ring *r)
{
    es_map *m = &r->map;
    /* tail is a hint: whoever was to move it past our claim may stand still. Claims leave no gaps. relaxed: for what
     * others have claimed any answer will do, and our own stores we see. */
    uint64_t n = atomic_load_explicit(&m->hdr->tail, memory_order_relaxed);
    for (uint64_t q = 0; q < m->capacity; q++, n++)
        if (es_lap(atomic_load_explicit(&m->slots[n % m->capacity], memory_order_relaxed)) <= n / m->capacity)
            break;
    return (int64_t)n;
}

uint32_t es_claim_owner(uint64_t word)
{
    return es_word_owner(word);
}

uint32_t es_owner_count(const es_ring *r)
{
    return r->map.num_owners;
}

void es_count_held(es_ring *r, uint32_t *held, uint32_t count)
{
    for (uint64_t q = 0; q < r->map.capacity; q++) {
        uint64_t w = atomic_load_explicit(&r->map.slots[q], memory_order_relaxed);
        if (keeps_slot(r, q, w) && es_word_owner(w) < count)
            held[es_word_owner(w)]++;
    }
    for (uint64_t j = 0; j < r->map.num_batches; j++) {
        uint64_t w = atomic_load_explicit(&r->map.batches[j].word, memory_order_relaxed);
        if (es_state(w) == ES_LEASED && es_word_owner(w) < count)
            held[es_word_owner(w)]++;
    }
}

int64_t es_next_owner(es_ring *r, uint32_t from, es_owner_info *info)
{
    uint32_t high = es_owners_high(&r->map);
    for (uint32_t i = from; i < high; i++) {
        es_owner *o = &r->map.owners[i];
        /* SYNC owner-live: acquire; the identity is visible. */
        if (atomic_load_explicit(&o->state, memory_order_acquire) != ES_OWNER_LIVE)
            continue;
        es_owner_identity(o, &info->id);
        info->id.index = i;
        info->samples = es_get(&o->samples);
        info->blocked = es_get(&o->blocked);
        info->blocked_ns = es_get(&o->blocked_ns);
        info->waiting = atomic_load_explicit(&o->waiting, memory_order_relaxed);
        return i;
    }
    return ES_EMPTY;
}

int64_t es_next_remote(es_ring *r, uint32_t from, es_remote_info *info)
{
    es_map *m = &r->map;
    for (uint32_t i = from; i < m->num_remotes; i++) {
        es_remote *it = &m->remotes[i];
        /* SYNC remote: acquire; its figures are no older than it. */
        uint64_t w = atomic_load_explicit(&it->word, memory_order_acquire);
        if (es_remote_state(w) == ES_REMOTE_FREE)
            continue;
        info->index = i;
        info->state = es_remote_state(w);
        info->bridge = es_remote_bridge(w);
        info->committed = es_get(&it->committed);
        info->bytes = es_get(&it->bytes);
        info->frames = es_get(&it->frames);
        info->since_ns = es_get(&it->since_ns);
        memcpy(info->peer, it->peer, sizeof info->peer);
        info->peer[sizeof info->peer - 1] = 0;
        return i;
    }
    return ES_EMPTY;
}

void es_observe(es_ring *r, es_snapshot *snap)
{
    es_snapshot_fill(&r->map, snap);
    uint32_t high = es_owners_high(&r->map);
    for (uint32_t i = 0; i < high; i++)
        snap->producers_waiting +=
            atomic_load_explicit(&r->map.owners[i].state, memory_order_relaxed) == ES_OWNER_LIVE &&
            atomic_load_explicit(&r->map.owners[i].waiting, memory_order_relaxed) != 0;
}

void es_set_stalled(es_ring *r, uint64_t n)
{
    atomic_store_explicit(&r->map.hdr->totals.stalled_producers, n, memory_order_relaxed);
}
