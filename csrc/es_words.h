/* The two kinds of word that are the truth about the ring, and how they are packed.
 *
 * Slot word  S[index]  [lap:44 | owner:16 | state:4]
 *
 *   FREE(lap 0) or a batch given back  --claim--->  CLAIMED(lap+1, owner)
 *   CLAIMED   --commit (its owner)------------->    COMMITTED
 *   CLAIMED   --abort (its owner), reap (holder of the dead owner's lock byte)--> REOPEN
 *   CLAIMED   --evict (a learner, closed ring only)--> SEALED
 *   REOPEN    --claim (any producer)----------->    CLAIMED, same lap
 *   REOPEN, FREE  --seal (a learner, closed ring only)--> SEALED: holds no sample
 *   REOPEN, FREE  --hold (a learner that takes a partial batch)--> HELD(learner)
 *   HELD  --let go (its learner), reap------------> REOPEN
 *   HELD  --evict, as a claim----------------------> SEALED
 *   COMMITTED, SEALED, and HELD in a leased batch, are left as they are by take and
 *   release: the batch word says whether the next lap may begin. So a HELD word may be
 *   of a past lap; then it means nothing.
 *
 * Batch word  BW[j]  [round:44 | owner:16 | state:4], batch number k = round * K + j
 *
 *   FILL(round)  --take (a learner, CAS)--> LEASED(round, learner)
 *   LEASED --release (its learner)--> FILL(round + 1), or RETIRED(round) on a closed ring
 *   LEASED --return (its learner), reap (holder of the dead learner's lock byte)-->
 *            FILL(round), marked ES_GIVEN_BACK: delivered again
 *   LEASED --(its learner, to overwrite the samples first)--> POISONING --(its learner, or
 *            reap)--> as by release: what is half overwritten is not delivered again
 *
 * es_mend.c alone writes otherwise, over what nobody can have written who keeps to this.
 *
 * A slot's lap is round + 1, so that zero-filled memory is a valid empty ring.
 */
#ifndef ES_WORDS_H
#define ES_WORDS_H

#include "es_base.h"

enum es_slot_state { ES_FREE = 0, ES_CLAIMED = 1, ES_COMMITTED = 2, ES_REOPEN = 3, ES_SEALED = 4, ES_HELD = 5 };
enum es_batch_state { ES_FILL = 0, ES_LEASED = 1, ES_RETIRED = 2, ES_POISONING = 3 };

/* In a FILL word's owner: it was leased in this round and given back, so head may have
 * passed it, or may yet, by the late step of a learner that saw the lease. */
#define ES_GIVEN_BACK 1u

static inline uint64_t es_word(uint64_t lap_or_round, uint32_t owner, uint32_t state)
{
    return lap_or_round << 20 | (uint64_t)(owner & 0xffffu) << 4 | state;
}

static inline uint64_t es_lap(uint64_t word)
{
    return word >> 20;
}

static inline uint64_t es_round(uint64_t word)
{
    return word >> 20;
}

static inline uint32_t es_word_owner(uint64_t word)
{
    return (uint32_t)(word >> 4) & 0xffffu;
}

static inline uint32_t es_state(uint64_t word)
{
    return (uint32_t)word & 0xfu;
}

/* The count of a batch in which somebody died, aborted or sealed: at least any
 * batch size, so that every further commit wakes the learners, and far enough
 * from the top that late increments cannot carry it round. */
#define ES_COUNT_ALARM (UINT32_C(1) << 31)

#endif
