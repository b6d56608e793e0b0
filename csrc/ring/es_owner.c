#include "ring/es_owner.h"

#include <string.h>

static uint64_t double_bits(double d)
{
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return bits;
}

static void raise_high(es_map *map, uint32_t index)
{
    uint32_t high = atomic_load_explicit(&map->hdr->owners_high, memory_order_relaxed);
    /* SYNC owner-live: acq_rel; before the entry is LIVE. */
    while (high <= index && !atomic_compare_exchange_weak_explicit(&map->hdr->owners_high, &high, index + 1,
                                                                   memory_order_acq_rel, memory_order_relaxed))
        ;
}

/* A gauge for people. It is counted again each time, not kept by +1 and -1: a crash in between
 * would leave it wrong forever. */
void es_owner_count_producers(es_map *map)
{
    uint64_t n = 0;
    uint32_t high = es_owner_high(map);
    for (uint32_t i = ES_MAX_LEARNERS; i < high; i++)
        n += atomic_load_explicit(&map->owners[i].state, memory_order_relaxed) == ES_OWNER_LIVE &&
             atomic_load_explicit(&map->owners[i].is_bridge, memory_order_relaxed) == 0;
    atomic_store_explicit(&map->hdr->totals.active_producers, n, memory_order_relaxed);
}

static void fill(es_owner *owner, const es_identity *id)
{
    atomic_store_explicit(&owner->role, id->role, memory_order_relaxed);
    atomic_store_explicit(&owner->pid, id->pid, memory_order_relaxed);
    atomic_store_explicit(&owner->pid_namespace, id->pid_namespace, memory_order_relaxed);
    atomic_store_explicit(&owner->start_time_bits, double_bits(id->start_time), memory_order_relaxed);
    atomic_store_explicit(&owner->is_bridge, 0, memory_order_relaxed);
    atomic_store_explicit(&owner->journal_remote, 0, memory_order_relaxed);
    atomic_store_explicit(&owner->samples, 0, memory_order_relaxed);
    atomic_store_explicit(&owner->blocked, 0, memory_order_relaxed);
    atomic_store_explicit(&owner->blocked_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&owner->cas_success, 0, memory_order_relaxed);
    atomic_store_explicit(&owner->cas_failure, 0, memory_order_relaxed);
    atomic_store_explicit(&owner->reservation_retries, 0, memory_order_relaxed);
    atomic_store_explicit(&owner->waiting, 0, memory_order_relaxed);
}

int64_t es_owner_register(es_map *map, es_locks *locks, const es_identity *id)
{
    bool learner = id->role == ES_ROLE_LEARNER;
    uint32_t first = learner ? 0 : ES_MAX_LEARNERS;
    uint32_t end = learner ? ES_MAX_LEARNERS : map->num_owners;
    for (uint32_t i = first; i < end; i++) {
        es_owner *owner = &map->owners[i];
        /* SYNC owner-free: acquire, here and again below; the sweep after the last owner is
         * visible. */
        if (atomic_load_explicit(&owner->state, memory_order_acquire) != ES_OWNER_FREE)
            continue;
        int rc = es_locks_seize(locks, i);
        if (rc == -EAGAIN || rc == -EBUSY)
            continue;
        if (rc != ES_OK)
            return rc;
        /* Again under the lock: meanwhile another owner may have taken the entry and died. */
        if (atomic_load_explicit(&owner->state, memory_order_acquire) != ES_OWNER_FREE) {
            es_locks_yield(locks, i);
            continue;
        }
        fill(owner, id);
        /* Before LIVE: a sweep that stops below a LIVE entry would never reap it. */
        raise_high(map, i);
        /* SYNC owner-live: release; publishes the identity to es_owner_next_dead(). */
        atomic_store_explicit(&owner->state, ES_OWNER_LIVE, memory_order_release);
        es_locks_keep(locks, i);
        es_owner_count_producers(map);
        return i;
    }
    return ES_ENOOWNER;
}

void es_owner_free(es_map *map, uint32_t index)
{
    /* SYNC owner-free: release; the sweep is visible to the next registrant. */
    atomic_store_explicit(&map->owners[index].state, ES_OWNER_FREE, memory_order_release);
    es_owner_count_producers(map);
}

uint32_t es_owner_high(const es_map *map)
{
    /* SYNC owner-live: acquire; owners_high was raised before the entry became LIVE: see
     * raise_high(). */
    uint32_t high = atomic_load_explicit(&map->hdr->owners_high, memory_order_acquire);
    return high < map->num_owners ? high : map->num_owners;
}

int64_t es_owner_next_dead(es_map *map, es_locks *locks, uint32_t start, uint32_t me, bool *unsure)
{
    uint32_t high = es_owner_high(map);
    for (uint32_t i = start; i < high; i++) {
        es_owner *owner = &map->owners[i];
        /* SYNC owner-live: acquire. */
        if (i == me || atomic_load_explicit(&owner->state, memory_order_acquire) != ES_OWNER_LIVE)
            continue;
        int rc = es_locks_seize(locks, i);
        *unsure = *unsure || rc == -EBUSY;
        if (rc == -EAGAIN || rc == -EBUSY)
            continue;
        if (rc != ES_OK)
            return rc;
        /* SYNC owner-live, owner-free: acquire. */
        if (atomic_load_explicit(&owner->state, memory_order_acquire) == ES_OWNER_LIVE)
            return i;
        es_locks_yield(locks, i); /* its owner has left, or was reaped, just now */
    }
    return ES_EMPTY;
}

int es_owner_learner_alive(es_map *map, es_locks *locks, uint32_t except)
{
    for (uint32_t i = 0; i < ES_MAX_LEARNERS; i++)
        /* SYNC owner-live: acquire. */
        if (i != except && atomic_load_explicit(&map->owners[i].state, memory_order_acquire) == ES_OWNER_LIVE &&
            es_locks_held(locks, i) != 0)
            return 1;
    return 0;
}

void es_owner_identity(const es_owner *owner, es_identity *out)
{
    es_owner *o = (es_owner *)(uintptr_t)owner;
    uint64_t bits = atomic_load_explicit(&o->start_time_bits, memory_order_relaxed);
    out->role = atomic_load_explicit(&o->role, memory_order_relaxed);
    out->pid = atomic_load_explicit(&o->pid, memory_order_relaxed);
    out->pid_namespace = atomic_load_explicit(&o->pid_namespace, memory_order_relaxed);
    memcpy(&out->start_time, &bits, sizeof out->start_time);
}
