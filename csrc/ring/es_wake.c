#include "ring/es_wake.h"

#include "base/es_counter.h"
#include "base/es_wait.h"
#include "ring/es_version.h"
#include "ring/es_word.h"

void es_wake_learners(es_ring *r)
{
    es_header *hdr = r->map.hdr;
    /* FENCE ready: pairs with the fences in es_blocking_take() and arm(). Either the sleeper's last look
     * sees the slot word, or this process sees the sleeper's flag. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&hdr->learner_sleeps, memory_order_relaxed) == 0)
        return;
    /* The waker clears the flag. If a sleeper cleared it on waking, it would erase the flag of
     * another sleeper. */
    if (atomic_exchange_explicit(&hdr->learner_sleeps, 0, memory_order_acq_rel) == 0)
        return;
    /* SYNC ready-seq: acq_rel; pairs with the acquire before parking. */
    atomic_fetch_add_explicit(&hdr->ready_seq, 1, memory_order_acq_rel);
    /* Before the wake-up, or the woken process would contend for the cache line. */
    es_counter_add(&hdr->totals.notify_count, 1);
    es_wait_wake(&hdr->ready_seq);
}

/* Wakes one producer of those that were woken in vain before, if any sleeps. A wrong hint costs
 * fairness only: es_wait_wake_one() finds these producers, too. So does a process that waits for
 * several rings and is woken here in place of one of them: it passes the wake-up on. */
static bool wake_passed_over(es_header *hdr)
{
    if (atomic_exchange_explicit(&hdr->passed_over, 0, memory_order_relaxed) == 0 ||
        !es_wait_wake_one(&hdr->space_seq, ES_WAIT_FIRST))
        return false;
    atomic_store_explicit(&hdr->passed_over, 1, memory_order_relaxed); /* there may be more */
    return true;
}

void es_wake_producer(es_ring *r)
{
    es_header *hdr = r->map.hdr;
    /* FENCE space: pairs with the fences in es_blocking_claim(), arm() and pass_on(). */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&hdr->producers_sleep, memory_order_relaxed) == 0)
        return;
    /* SYNC space-seq: acq_rel; pairs with the acquire before parking. The woken producer sees the
     * room. */
    atomic_fetch_add_explicit(&hdr->space_seq, 1, memory_order_acq_rel);
    /* The flag stays: others may sleep. */
    if (wake_passed_over(hdr) || es_wait_wake_one(&hdr->space_seq, ES_WAIT_IN_TURN))
        return;
    /* Nobody sleeps, so the flag is cleared. Somebody may have set it since, and may park now: the
     * sequence changes once more, and whoever is parked is woken. */
    if (atomic_exchange_explicit(&hdr->producers_sleep, 0, memory_order_acq_rel) == 0)
        return;
    /* SYNC space-seq: acq_rel. */
    atomic_fetch_add_explicit(&hdr->space_seq, 1, memory_order_acq_rel);
    es_wait_wake(&hdr->space_seq);
}

void es_wake_all(es_ring *r)
{
    es_header *hdr = r->map.hdr;
    /* SYNC ready-seq, space-seq: acq_rel. */
    atomic_fetch_add_explicit(&hdr->ready_seq, 1, memory_order_acq_rel);
    es_wait_wake(&hdr->ready_seq);
    atomic_fetch_add_explicit(&hdr->space_seq, 1, memory_order_acq_rel);
    es_wait_wake(&hdr->space_seq);
    if (r->map.weights != NULL)
        es_version_wake_all(&r->map);
}

void es_wake_alarm(es_ring *r)
{
    for (uint64_t j = 0; j < r->map.num_batches; j++)
        /* SYNC count: acq_rel; in the chain of the commits' increments, see es_producer_commit_run(). */
        atomic_fetch_or_explicit(&r->map.batches[j].count, ES_COUNT_ALARM, memory_order_acq_rel);
}
