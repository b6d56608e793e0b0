/* The end of a round. All processes leave, are killed, or find the ring closed. Then the conductor sweeps, checks every
 * word, drains the ring and checks the balance. */
#include <stdio.h>

#include "storm.h"

/* Collects and counts until no slot of from .. to-1 runs. Returns false if they hang. A process may sleep in the core
 * to the end of its slice. */
static bool wait_for(st_storm *s, uint32_t from, uint32_t to, const char *what)
{
    uint64_t start = es_clock_ns();
    while (st_collect(s, from, to) > 0) {
        s->sum.batches += st_consume(s->w.account, s->watcher);
        if (st_failed(s->w.account) || *s->interrupted)
            return false;
        if (es_clock_ns() - start > s->watchdog_ns + 2 * s->w.slice_ns) {
            st_fault_add(s->w.account, ST_HUNG, 0, -1, 0, what);
            return false;
        }
        st_nap(100000);
    }
    return true;
}

static void continue_all(st_storm *s)
{
    for (uint32_t i = 0; i < ST_PROCS; i++)
        st_continue(s, i);
}

static void kill_range(st_storm *s, uint32_t from, uint32_t to, uint32_t one_in)
{
    for (uint32_t i = from; i < to; i++)
        if (es_random_below(&s->random, one_in) == 0)
            st_kill(s, i);
}

/* Producers leave or are killed, then learners. The ring stays open. */
static bool end_open(st_storm *s, bool kill)
{
    continue_all(s);
    kill_range(s, ST_LEARNERS, ST_PROCS, kill ? 1 : 4);
    atomic_store(&s->w.account->stage, ST_PRODUCERS_LEAVE);
    if (!wait_for(s, ST_LEARNERS, ST_PROCS, "a producer does not leave"))
        return false;
    st_nap(es_random_below(&s->random, 30000000)); /* the learners run on for a while */
    kill_range(s, 0, ST_LEARNERS, kill ? 1 : 4);
    atomic_store(&s->w.account->stage, ST_ALL_LEAVE);
    return wait_for(s, 0, ST_LEARNERS, "a learner does not leave");
}

/* The ring closes while all processes work. Learners are killed and replaced while they drain it. */
static bool end_closed(st_storm *s, bool evict)
{
    continue_all(s);
    if (evict) { /* its claim is evicted a second later */
        st_stop(s, ST_LEARNERS + es_random_below(&s->random, s->w.config.producers), UINT64_MAX / 2);
        st_nap(2000000);
    }
    es_api_close(s->watcher);
    kill_range(s, ST_LEARNERS, ST_PROCS, 8);
    for (int n = 0; n < 4 && s->next_life < ST_LIVES; n++) {
        st_nap(es_random_below(&s->random, 2000000));
        st_collect(s, 0, ST_PROCS);
        uint32_t slot = es_random_below(&s->random, s->w.config.learners);
        if (s->slot[slot].state == ST_EMPTY)
            st_spawn(s, slot);
        else if (s->w.config.learner_kill_rate > 0)
            st_kill(s, slot);
    }
    if (!wait_for(s, 0, ST_LEARNERS, "a learner does not find the end of a closed ring"))
        return false;
    continue_all(s);
    return wait_for(s, ST_LEARNERS, ST_PROCS, "a producer does not find the ring closed");
}

static void orphan(st_storm *s, int64_t where, int64_t word, const char *what)
{
    st_fault_add(s->w.account, ST_ORPHANED, 0, where, word, what);
}

/* All processes have ended and were swept: nothing in the ring may belong to a process. */
static void check_rest(st_storm *s)
{
    es_ring *r = s->watcher;
    uint64_t w;
    const char *wrong = es_valid(r);
    if (wrong != NULL)
        st_fault_add(s->w.account, ST_INVALID, 0, -1, 0, wrong);
    for (int64_t q = es_monitor_next_claim(r, 0, &w); q >= 0; q = es_monitor_next_claim(r, (uint64_t)q + 1, &w))
        orphan(s, q, (int64_t)w, "a slot is claimed or held, but has no owner");
    for (uint64_t j = 0; j < r->map.num_batches; j++) {
        w = atomic_load(&r->map.batches[j].word);
        if (es_word_state(w) == ES_LEASED || es_word_state(w) == ES_POISONING)
            orphan(s, (int64_t)j, (int64_t)w, "a batch is leased, but has no owner");
    }
    for (uint32_t i = 0; i < r->map.num_owners; i++) {
        if (atomic_load(&r->map.owners[i].state) != ES_OWNER_FREE)
            orphan(s, i, 0, "an owner entry without a process");
        if (es_locks_held(s->locks, i) != 0)
            orphan(s, i, 0, "a lock byte is held");
    }
    for (uint32_t e = 0; e < ST_LEARNERS * ST_ENTRIES; e++) {
        st_entry *entry = &s->w.account->entry[e / ST_ENTRIES][e % ST_ENTRIES];
        if (atomic_load(&entry->state) != ST_ENTRY_FREE)
            orphan(s, (int64_t)entry->batch, entry->life, "a lease that nobody knows to be released or not");
    }
}

/* Drains the closed ring to its end, as a learner. */
static void drain(st_storm *s)
{
    st_account *a = s->w.account;
    es_ring *r = s->watcher;
    es_identity id = {.role = ES_ROLE_LEARNER, .pid = s->conductor_pid};
    es_snapshot snap;
    uint64_t ids[ST_BATCH], start = es_clock_ns();
    int64_t batch = es_api_attach(r, &id);
    if (batch < 0)
        st_fault_add(a, ST_CODE, 0, -1, batch, "es_api_attach of the conductor");
    es_api_close(r);
    while (!st_failed(a) && (batch = es_api_take(r, 0, 1000000, &snap)) != ES_ENDED) {
        if (es_clock_ns() - start > s->watchdog_ns)
            st_fault_add(a, ST_HUNG, 0, -1, 0, "the closed ring does not end");
        if (batch < 0)
            continue;
        uint32_t n = st_read_batch(&s->w, r, (uint64_t)batch, &snap, ids);
        uint64_t first = snap.round * r->map.capacity + (uint64_t)batch * r->map.batch_size;
        for (uint32_t i = 0; i < n; i++)
            st_deliver(a, ids[i], (int64_t)(first + i));
        if (es_api_release(r, (uint64_t)batch, snap.round) != ES_OK)
            st_fault_add(a, ST_CODE, 0, batch, 0, "es_api_release of the conductor");
        s->sum.batches++;
    }
    es_api_detach(r);
}

void st_end_round(st_storm *s)
{
    st_account *a = s->w.account;
    enum st_ending ending = s->w.config.ending;
    bool closed = ending == ST_END_CLOSE || ending == ST_END_EVICT;
    if (!(closed ? end_closed(s, ending == ST_END_EVICT) : end_open(s, ending == ST_END_KILL)))
        return;
    st_sweep(a, s->watcher, NULL);
    s->sum.batches += st_consume(a, s->watcher);
    check_rest(s);
    if (st_failed(a))
        return;
    drain(s);
    if (st_failed(a))
        return;
    check_rest(s);
    uint64_t sent = es_account_settle(a->samples, s->next_life, closed), delivered = a->samples->delivered;
    if (sent != delivered && !st_failed(a))
        st_fault_add(a, ST_PHANTOM, 0, (int64_t)sent, (int64_t)delivered,
                     "the numbers of samples sent and delivered differ");
    s->sum.sent += sent;
}
