/* The storm's account: what was sent, what was delivered, and why a kill leaves no doubt about either. Ledgers,
 * deliveries and the balance are those of es_account.h, with each life as a sender. This file decides which samples
 * were delivered.
 *
 * A learner verifies a lease and writes its samples into a journal entry. It sets the entry to PENDING, releases the
 * lease, and sets the entry to RELEASED. Only the conductor counts entries, and the conductor is never killed. There is
 * one question: a learner may die while an entry is PENDING. Was the batch released? The batch word answers this until
 * the batch is leased to another learner, which releases it too. That cannot happen before the dead learner is reaped.
 * So each reaper of the storm looks at the batch word of each PENDING entry after it has found the dead learner and
 * before it reaps it. It holds the dead learner's lock byte then.
 *   LEASED(same round, dead owner)   not released. It will be delivered again: UNRELEASED
 *   anything else                    released
 * While a reaper holds the lock byte, no other process can change such a word, and the owner index cannot be used again
 * before the sweep is done. A reaper settles every entry before it reaps. So if it dies on the way, the next reaper
 * finds the same words. A settled entry is not settled again.
 *
 * A learner that leaves releases its leases in es_api_detach(). If it is killed after es_api_detach() has freed its
 * owner entry, no reaper finds it. So the conductor looks at the owner entry of each PENDING entry whose process it has
 * collected, and only then once more at the state. If the owner entry is no longer LIVE with this life and the state is
 * still PENDING, no reaper was there: a reaper settles the state before it frees the owner entry. So the learner freed
 * the owner entry itself, after it had released everything.
 *
 * An owner index that is used again causes no confusion. Entries are found by their life. The owner entry carries the
 * life as its start time, and no life is used twice.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "storm.h"

const char *const st_fault_name[ST_FAULTS] = {"lost",    "doubled", "torn",      "orphaned", "phantom", "evicted",
                                              "invalid", "hung",    "not woken", "repaired", "failed"};
const char *const st_phase_name[ST_PHASES] = {
    "starting", "attaching", "idle",     "sending", "waiting", "sending many", "reserving", "writing",   "committing",
    "aborting", "leaving",   "sweeping", "looking", "parking", "reading",      "holding",   "releasing", "giving back"};

const char *const st_path_name[ST_PATHS] = {"send",
                                            "send_wait",
                                            "send_many",
                                            "reserve and commit",
                                            "two reserves",
                                            "reserve and abort",
                                            "leave and attach again"};

/* The position of the sample that is being entered, for fault reports. */
static int64_t position_told = -1;
static st_account *account_told;

static void *pages(uint64_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void tell(enum es_account_fault fault, uint32_t life, int64_t seq, int64_t code, const char *text)
{
    static const enum st_fault_kind kinds[] = {ST_LOST, ST_DOUBLED, ST_TORN, ST_PHANTOM, ST_CODE};
    st_fault_add(account_told, kinds[fault], st_id(life, (uint32_t)seq), position_told, code, text);
}

st_account *st_account_new(void)
{
    st_account *a = account_told = pages(sizeof(st_account));
    if (a != NULL) {
        a->samples = es_account_new(ST_LIVES, ST_SEQS);
        a->samples->tell = tell;
    }
    return a;
}

void st_account_reset(st_account *a, uint32_t lives)
{
    es_account *samples = a->samples;
    memset(a, 0, sizeof *a);
    es_account_reset(a->samples = samples, lives);
}

void st_fault_add(st_account *a, enum st_fault_kind kind, uint64_t id, int64_t position, int64_t code, const char *text)
{
    atomic_fetch_add_explicit(&a->faults_of[kind], 1, memory_order_relaxed);
    uint32_t n = atomic_fetch_add_explicit(&a->num_faults, 1, memory_order_acq_rel);
    if (n >= sizeof a->fault / sizeof a->fault[0])
        return;
    st_fault *f = &a->fault[n];
    f->kind = kind;
    f->life = (uint32_t)(id >> 32);
    f->seq = (uint32_t)id;
    f->position = position;
    f->code = code;
    snprintf(f->text, sizeof f->text, "%s", text);
}

void st_resolve(st_account *a, es_ring *r, uint32_t life, uint32_t owner)
{
    for (uint32_t e = 0; e < ST_LEARNERS * ST_ENTRIES; e++) {
        st_entry *entry = &a->entry[e / ST_ENTRIES][e % ST_ENTRIES];
        if (atomic_load_explicit(&entry->state, memory_order_acquire) != ST_ENTRY_PENDING || entry->life != life)
            continue;
        uint64_t w = atomic_load_explicit(&r->map.batches[entry->batch].word, memory_order_acquire);
        bool leased = es_word_state(w) == ES_LEASED && es_word_round(w) == entry->round && es_word_owner(w) == owner;
        atomic_store_explicit(&entry->state, leased ? ST_ENTRY_UNRELEASED : ST_ENTRY_RELEASED, memory_order_release);
    }
}

void st_deliver(st_account *a, uint64_t id, int64_t position)
{
    position_told = position;
    es_account_deliver(a->samples, id);
    position_told = -1;
}

/* Whether the owner entry is free or carries another life. The comment at the top says what follows. */
static bool has_left(es_ring *r, const st_entry *entry)
{
    es_owner *o = &r->map.owners[entry->owner];
    es_identity id;
    if (atomic_load_explicit(&o->state, memory_order_acquire) != ES_OWNER_LIVE)
        return true;
    es_owner_identity(o, &id);
    return id.start_time != (double)entry->life;
}

uint64_t st_consume(st_account *a, es_ring *r)
{
    uint64_t batches = 0;
    for (uint32_t e = 0; e < ST_LEARNERS * ST_ENTRIES; e++) {
        st_entry *entry = &a->entry[e / ST_ENTRIES][e % ST_ENTRIES];
        uint32_t state = atomic_load_explicit(&entry->state, memory_order_acquire);
        if (state == ST_ENTRY_PENDING && a->gone[entry->life] && has_left(r, entry)) {
            state = atomic_load_explicit(&entry->state, memory_order_acquire);
            state = state == ST_ENTRY_PENDING ? ST_ENTRY_RELEASED : state;
        }
        if (state != ST_ENTRY_RELEASED && state != ST_ENTRY_UNRELEASED)
            continue;
        uint64_t first = entry->round * r->map.capacity + entry->batch * r->map.batch_size;
        for (uint32_t i = 0; state == ST_ENTRY_RELEASED && i < entry->n; i++)
            st_deliver(a, entry->ids[i], (int64_t)(first + i));
        batches += state == ST_ENTRY_RELEASED;
        atomic_store_explicit(&entry->state, ST_ENTRY_FREE, memory_order_release);
    }
    return batches;
}
