/* The words that are the truth about the ring, and how they are packed.
 *
 * Slot word  S[index]  [lap:44 | owner:16 | state:4]
 *
 *   FREE(lap 0), or any word of a past lap  --claim (a producer)--> CLAIMED(lap + 1, owner)
 *   CLAIMED    --commit (its owner)--> COMMITTED
 *   CLAIMED    --abort (its owner), reap (whoever holds the dead owner's lock byte)--> REOPEN
 *   CLAIMED    --evict (a learner, closed ring only)--> SEALED
 *   REOPEN     --claim (any producer)--> CLAIMED, same lap
 *   REOPEN, FREE  --seal (a learner, closed ring only)--> SEALED: holds no sample
 *   REOPEN, FREE  --hold (a learner that takes a partial batch)--> HELD(learner)
 *   HELD       --let go (its learner), reap--> REOPEN
 *   HELD       --evict, as a claim--> SEALED
 *
 *   Take and release leave COMMITTED and SEALED as they are, and HELD in a leased batch:
 *   the batch word says whether the next lap may begin. So a HELD word may be of a past
 *   lap. Then it means nothing.
 *
 * Batch word  BW[j]  [round:44 | owner:16 | state:4], batch number k = round * K + j
 *
 *   FILL(round)  --take (a learner, CAS)--> LEASED(round, learner)
 *   LEASED  --release (its learner)--> FILL(round + 1), or RETIRED(round) on a closed ring
 *   LEASED  --give back (its learner), reap (whoever holds the dead learner's lock byte)-->
 *             FILL(round), marked ES_GIVEN_BACK: delivered again
 *   LEASED  --poison (its learner, before it overwrites the samples)--> POISONING
 *   POISONING  --(its learner, or reap)--> as by release: a batch that is half overwritten
 *             is not delivered again
 *
 * Remote word  [bridge's owner index:56 | es_remote_state:8]; see es_bridge.c.
 *
 * Only es_repair.c writes otherwise, over words that no correct process can have written.
 *
 * A slot's lap is round + 1, so that zero-filled memory is a valid empty ring.
 */
#ifndef ES_WORD_H
#define ES_WORD_H

#include "base/es_base.h"

enum es_slot_state { ES_FREE = 0, ES_CLAIMED = 1, ES_COMMITTED = 2, ES_REOPEN = 3, ES_SEALED = 4, ES_HELD = 5 };
enum es_batch_state { ES_FILL = 0, ES_LEASED = 1, ES_RETIRED = 2, ES_POISONING = 3 };

/* The owner of a FILL word: the batch was leased in this round and given back. So head may
 * have passed it, or may do so yet, by the late step of a learner that saw the lease. */
#define ES_GIVEN_BACK 1u

static inline uint64_t es_word(uint64_t lap_or_round, uint32_t owner, uint32_t state)
{
    return lap_or_round << 20 | (uint64_t)(owner & 0xffffu) << 4 | state;
}

static inline uint64_t es_word_lap(uint64_t word)
{
    return word >> 20;
}

static inline uint64_t es_word_round(uint64_t word)
{
    return word >> 20;
}

static inline uint32_t es_word_owner(uint64_t word)
{
    return (uint32_t)(word >> 4) & 0xffffu;
}

static inline uint32_t es_word_state(uint64_t word)
{
    return (uint32_t)word & 0xfu;
}

static inline uint64_t es_word_remote(uint32_t bridge, uint32_t state)
{
    return (uint64_t)bridge << 8 | state;
}

static inline uint32_t es_word_remote_bridge(uint64_t word)
{
    return (uint32_t)(word >> 8);
}

static inline uint32_t es_word_remote_state(uint64_t word)
{
    return (uint32_t)(word & 0xff);
}

/* A bit in the count of every batch after a close, a drain step, a reap or a repair. It is at
 * least any batch size, so every further commit wakes the learners. It is far enough from the top
 * that late increments do not overflow the count. */
#define ES_COUNT_ALARM (UINT32_C(1) << 31)

#endif
