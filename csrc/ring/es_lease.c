#include "ring/es_lease.h"

#include <string.h>

#include "base/es_counter.h"
#include "ring/es_slots.h"
#include "ring/es_wake.h"
#include "ring/es_word.h"

int64_t es_lease_take(es_ring *r, uint64_t j, uint64_t seen)
{
    uint64_t round = es_word_round(seen);
    /* SYNC batch-take: acq_rel; one learner wins. A process that sees the lease also sees this
     * learner's owner entry, so at the end of a stream it can tell whether the learner lives. */
    if (!atomic_compare_exchange_strong_explicit(&r->map.batches[j].word, &seen, es_word(round, r->me, ES_LEASED),
                                                 memory_order_acq_rel, memory_order_relaxed))
        return ES_AGAIN;
    r->held[j] = round + 1;
    return (int64_t)j;
}

void es_lease_note_time(es_ring *r, uint64_t j, uint64_t now_ns)
{
    atomic_store_explicit(&r->map.batches[j].leased_ns, now_ns, memory_order_relaxed);
}

/* Whether this thread is the one to end the lease. */
static bool end_lease(es_ring *r, uint64_t j, uint64_t round)
{
    pthread_mutex_lock(&r->look_lock);
    bool mine = j < r->map.num_batches && r->held[j] != 0 && r->held[j] == round + 1;
    if (mine)
        r->held[j] = 0;
    pthread_mutex_unlock(&r->look_lock);
    return mine;
}

static void poison(es_ring *r, uint64_t j, uint64_t round)
{
    /* First: if this process dies in here, the batch must not be given back. While it lives,
     * nobody treats POISONING differently from LEASED, so the compiler's order is enough. */
    atomic_store_explicit(&r->map.batches[j].word, es_word(round, r->me, ES_POISONING), memory_order_relaxed);
    ES_COMPILER_BARRIER();
    /* All ones: NaN as a float, -1 as a signed integer. */
    for (uint32_t l = 0; l < r->map.num_leaves; l++) {
        uint64_t bytes = r->map.batch_size * r->map.leaf_size[l];
        memset(r->map.leaf_data[l] + j * bytes, 0xff, bytes);
    }
}

/* What a batch word becomes by a release in that round. */
static uint64_t released_word(es_ring *r, uint64_t round)
{
    /* SYNC closed: acquire. A closed ring opens no new space: the producer of an evicted claim may
     * still write to its slot. */
    bool closed = atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0;
    return closed ? es_word(round, 0, ES_RETIRED) : es_word(round + 1, 0, ES_FILL);
}

int es_lease_end(es_ring *r, uint64_t j, uint64_t round)
{
    if (!end_lease(r, j, round))
        return ES_ESTALE;
    es_batch *b = &r->map.batches[j];
    if (r->poison)
        poison(r, j, round);
    /* Before the word. Afterwards it would erase the next lap's commits. */
    atomic_store_explicit(&b->count, 0, memory_order_relaxed);
    es_counter_add(&r->map.hdr->totals.batches_released, 1);
    /* SYNC batch-release: release; this learner's reads of the slots, and the count above, come
     * before any claim of the next lap. */
    atomic_store_explicit(&b->word, released_word(r, round), memory_order_release);
    return ES_OK;
}

void es_lease_tell(es_ring *r)
{
    es_wake_producer(r);
    /* SYNC closed: acquire. Again, after the fence in es_wake_producer(): the close may have
     * happened meanwhile. */
    if (atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0 ||
        /* FENCE shared: the fence in es_wake_producer() pairs with share() in es_api.c, too. */
        atomic_load_explicit(&r->map.hdr->shared, memory_order_relaxed) != 0)
        es_wake_learners(r); /* one may wait for this lease: the last one, or one that is older than itself */
}

int es_lease_release(es_ring *r, uint64_t j, uint64_t round)
{
    int rc = es_lease_end(r, j, round);
    if (rc == ES_OK)
        es_lease_tell(r);
    return rc;
}

void es_lease_release_all(es_ring *r)
{
    for (uint64_t j = 0; j < r->map.num_batches; j++)
        if (r->held[j] != 0)
            es_lease_release(r, j, r->held[j] - 1);
}

int es_lease_give_back(es_ring *r, uint64_t j, uint64_t round)
{
    if (!end_lease(r, j, round))
        return ES_ESTALE;
    pthread_mutex_lock(&r->partial_lock);
    pthread_mutex_lock(&r->look_lock);
    r->scan[j].lap = 0; /* the scan of a partial batch counts held slots, which are let go of below */
    pthread_mutex_unlock(&r->look_lock);
    es_counter_sub(&r->map.hdr->totals.batches_taken, 1);
    /* SYNC batch-take: release; the next learner that takes it sees what this one saw. */
    atomic_store_explicit(&r->map.batches[j].word, es_word(round, ES_GIVEN_BACK, ES_FILL), memory_order_release);
    /* SYNC given-back-seq: release; after the word, which may lie below head. */
    atomic_fetch_add_explicit(&r->map.hdr->given_back_seq, 1, memory_order_release);
    es_slots_let_go(r);
    pthread_mutex_unlock(&r->partial_lock);
    es_wake_learners(r);
    return ES_OK;
}

int64_t es_lease_give_back_all(es_ring *r, uint32_t index)
{
    es_map *m = &r->map;
    int64_t n = 0;
    for (uint64_t j = 0; j < m->num_batches; j++) {
        /* SYNC batch-take: acquire. */
        uint64_t w = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
        bool poisoning = es_word_state(w) == ES_POISONING;
        if (es_word_owner(w) != index || (es_word_state(w) != ES_LEASED && !poisoning))
            continue;
        uint64_t to =
            poisoning ? released_word(r, es_word_round(w)) : es_word(es_word_round(w), ES_GIVEN_BACK, ES_FILL);
        /* SYNC batch-take, batch-release: acq_rel. A CAS, although nobody else may write a dead
         * learner's lease: it must not cause a second delivery in a segment that somebody
         * scribbles on. */
        if (!atomic_compare_exchange_strong_explicit(&m->batches[j].word, &w, to, memory_order_acq_rel,
                                                     memory_order_relaxed))
            continue;
        n++;
        if (poisoning)
            es_counter_add(&m->hdr->totals.batches_released, 1);
        else
            es_counter_sub(&m->hdr->totals.batches_taken, 1);
    }
    /* SYNC given-back-seq: release; after the words, and unconditionally: an earlier reaper may
     * have died between its words and this. */
    atomic_fetch_add_explicit(&m->hdr->given_back_seq, 1, memory_order_release);
    return n;
}

int64_t es_lease_committed(es_ring *r, uint64_t j, uint64_t round, uint8_t *mask)
{
    es_map *m = &r->map;
    int64_t n = 0;
    pthread_mutex_lock(&r->look_lock);
    bool mine = j < m->num_batches && r->held[j] != 0 && r->held[j] == round + 1;
    pthread_mutex_unlock(&r->look_lock);
    if (!mine)
        return ES_ESTALE;
    for (uint64_t i = 0; i < m->batch_size; i++) {
        /* SYNC slot-commit: acquire. */
        uint64_t w = atomic_load_explicit(&m->slots[j * m->batch_size + i], memory_order_acquire);
        mask[i] = es_word_lap(w) == round + 1 && es_word_state(w) == ES_COMMITTED;
        n += mask[i];
    }
    return n;
}

/* Relaxed: whoever has acquired the lease sees the flag, which a bridge sets before its first take. If the learner is
 * dead and its entry another one's by now, either answer will do: the lease ends. */
static bool is_bridges(const es_map *m, uint32_t owner)
{
    return owner < m->num_owners && atomic_load_explicit(&m->owners[owner].is_bridge, memory_order_relaxed) != 0;
}

void es_lease_note_older(es_ring *r)
{
    pthread_mutex_lock(&r->look_lock);
    for (uint64_t j = 0; j < r->map.num_batches; j++) {
        /* SYNC batch-take: acquire; the flag of its learner's entry. */
        uint64_t w = atomic_load_explicit(&r->map.batches[j].word, memory_order_acquire);
        bool leased = es_word_state(w) == ES_LEASED || es_word_state(w) == ES_POISONING;
        r->older[j] = leased && es_word_owner(w) != r->me && !is_bridges(&r->map, es_word_owner(w)) ? w : 0;
    }
    pthread_mutex_unlock(&r->look_lock);
}

bool es_lease_left_to_others(es_ring *r, uint64_t j, uint64_t round)
{
    uint64_t next = j + 1 == r->map.num_batches ? 0 : j + 1, w = r->older[next];
    /* Producers need that batch for the first number after this one. */
    if (w == 0 || round != es_word_round(w) + (next != 0))
        return false;
    /* SYNC batch-release, closed: acquire. A closed ring fills no batch again. */
    if (atomic_load_explicit(&r->map.batches[next].word, memory_order_acquire) == w &&
        atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) == 0)
        return true;
    r->older[next] = 0;
    return false;
}
