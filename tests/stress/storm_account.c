/* The account: what was sent, what came, and why a kill leaves no doubt about either.
 *
 * Sent. Before an operation a producer writes into its ledger word how many samples it is about to send; when the core
 * has returned, one store moves what was sent from "in doubt" to "acked". A sample's sequence number is its place
 * in the ledger, and the core commits the samples of one call in their order. So of a life that was killed, samples
 * 0 .. acked-1 must come, beyond them a prefix of what was in doubt may, and nothing else. On a closed ring a
 * learner may seal some of a call's slots and not others: there the prefix becomes a subset, of the size that the
 * core said if it still could.
 *
 * Came. A learner verifies a lease, writes its samples into a journal entry, sets that PENDING, calls release, and sets
 * it RELEASED. The conductor alone counts entries, and it is never killed. Only a learner that dies while an entry
 * is PENDING leaves a question: had the release happened? The core's own word answers it, but only for as long
 * as nobody has given the batch to another learner, who would release it too. That cannot happen before a reaper
 * reaps the dead. So every reaper of the storm, in between finding a dead learner and reaping it, that is, while
 * it holds the dead one's lock byte, looks at the batch word of each pending entry:
 *   LEASED(same round, dead owner)   not released; it will be delivered again: UNRELEASED
 *   anything else                    released
 * While the byte is held, nobody but this reaper may change such a word, and the owner index cannot be used again
 * before the sweep. If the reaper dies on the way, the next one finds the same words, for reaping begins only when
 * every entry has its answer; and an answered entry is not asked again.
 *
 * A learner that leaves in an orderly way releases in es_api_detach(). Killed after that has freed its owner entry, it is
 * found by no reaper. So for a PENDING entry of a collected process the conductor looks at the owner entry, and only
 * then once more at the state: no longer LIVE with this life, and still PENDING, means that no reaper was there (it
 * would have answered before it freed the entry), so the learner freed it itself, after it had released everything.
 *
 * An owner index that is used again confuses nobody: entries are found by the life, which the owner entry carries in
 * place of a start time, and a life has no second one.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "storm.h"

const char *const st_fault_name[ST_FAULTS] = {"lost",    "doubled", "torn",      "orphaned", "phantom", "evicted",
                                              "invalid", "hung",    "not woken", "mended",   "failed"};
const char *const st_phase_name[ST_PHASES] = {
    "starting", "attaching", "idle",     "sending", "waiting", "sending many", "reserving", "writing",   "committing",
    "aborting", "leaving",   "sweeping", "looking", "parking", "reading",      "holding",   "releasing", "returning"};

const char *const st_path_name[ST_PATHS] = {
    "send", "send_wait", "send_many", "reserve and commit", "two reserves", "reserve and abort", "leave and return"};

/* One bit a sample; the conductor's own, kept out of its children. */
#define WORDS (ST_SEQS / 64)
static uint64_t (*came)[WORDS];
static uint64_t delivered;

static void *pages(uint64_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

st_account *st_account_new(void)
{
    came = pages(sizeof *came * ST_LIVES);
    if (came == NULL || madvise(came, sizeof *came * ST_LIVES, MADV_DONTFORK) != 0)
        return NULL;
    return pages(sizeof(st_account));
}

void st_account_reset(st_account *a, uint32_t lives)
{
    memset(came, 0, sizeof *came * lives);
    memset(a, 0, sizeof *a);
    delivered = 0;
}

uint64_t st_ledger_word(st_ledger l)
{
    return (uint64_t)l.acked << 40 | (uint64_t)l.doubt << 24 | (uint64_t)l.done << 8 | l.closed;
}

st_ledger st_ledger_of(const st_account *a, uint32_t life)
{
    uint64_t w = atomic_load_explicit(&((st_account *)(uintptr_t)a)->ledger[life], memory_order_acquire);
    return (st_ledger){(uint32_t)(w >> 40), (uint32_t)(w >> 24) & 0xffffu, (uint32_t)(w >> 8) & 0xffffu,
                       (uint32_t)w & 0xffu};
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
    uint32_t life = (uint32_t)(id >> 32), seq = (uint32_t)id;
    if (life == 0 || life >= ST_LIVES || seq >= ST_SEQS) {
        st_fault_add(a, ST_PHANTOM, id, position, 0, "nobody has such samples");
        return;
    }
    uint64_t bit = UINT64_C(1) << seq % 64;
    if (came[life][seq / 64] & bit)
        st_fault_add(a, ST_DOUBLED, id, position, 0, "released before");
    came[life][seq / 64] |= bit;
    delivered++;
}

/* See above: whether the owner entry has another life by now, or none. */
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

static bool has_come(uint32_t life, uint32_t seq)
{
    return came[life][seq / 64] >> seq % 64 & 1;
}

static uint32_t total_came(uint32_t life)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < WORDS; i++)
        n += (uint32_t)__builtin_popcountll(came[life][i]);
    return n;
}

/* Compares one life with its ledger: how many samples it sent. */
static uint32_t settle_life(st_account *a, uint32_t life, bool any_subset)
{
    st_ledger l = st_ledger_of(a, life);
    uint32_t in_doubt = 0, last = 0, total = total_came(life), found = 0;
    for (uint32_t seq = 0; seq < l.acked; seq++) {
        found += has_come(life, seq);
        if (!has_come(life, seq))
            st_fault_add(a, ST_LOST, st_id(life, seq), -1, l.acked, "acked, and never came");
    }
    for (uint32_t i = 0; i < l.doubt; i++)
        if (has_come(life, l.acked + i)) {
            in_doubt++;
            last = i + 1;
        }
    if (last != in_doubt && !any_subset && !l.closed)
        st_fault_add(a, ST_LOST, st_id(life, l.acked + in_doubt), -1, last, "came not, a later one of its call did");
    if (l.closed && in_doubt != l.done)
        st_fault_add(a, in_doubt < l.done ? ST_LOST : ST_PHANTOM, st_id(life, l.acked), -1, l.done,
                     "other than the core said of a call that the close cut short");
    if (total != found + in_doubt)
        for (uint32_t seq = l.acked + l.doubt; seq < ST_SEQS; seq++)
            if (has_come(life, seq))
                st_fault_add(a, ST_PHANTOM, st_id(life, seq), -1, l.acked, "came, and was never sent");
    return l.acked + in_doubt;
}

uint64_t st_settle_lives(st_account *a, uint32_t lives, bool closed_under_load)
{
    uint64_t sent = 0;
    for (uint32_t life = 1; life < lives; life++)
        sent += settle_life(a, life, closed_under_load);
    return sent;
}

uint64_t st_delivered(void)
{
    return delivered;
}
