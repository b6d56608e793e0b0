/* A process that waits for a batch and for room at once: es_blocking_wait_any() in es_blocking.c. Its caller takes and
 * claims nothing, which is the worst that it can do to the others. It has searched for re-opened slots before.
 *
 * The look for a batch is one step here: learner.pml has its steps. The process is not killed.
 */
#if NW
#undef STEP
#define STEP atomic { if :: true ->

/* es_consumer_has_batch(): in fifo order, the smallest batch that is not leased. */
inline look_for_batch() {
    d_step {
        y = NONE; z = 0;
        do
        :: z < K ->
            if
            :: STATE(BW[z]) == FILL && ROUND(BW[z]) * K + z < y -> y = ROUND(BW[z]) * K + z
            :: else
            fi;
            z++
        :: else -> break
        od;
        found = (y != NONE); x = 0;
        do
        :: x < B && y != NONE ->
            if :: CURRENT((y % K) * B + x) && STATE(S[(y % K) * B + x]) == COMMITTED :: else -> found = 0 fi;
            x++
        :: else -> break
        od;
        x = 0; y = 0; z = 0
    }
}

proctype Waiter() {
    byte waits, best;
    bit armed, found, woken;

call:
    atomic { if :: waits < WAITS -> waits++ :: else -> finished = finished | BIT; goto over fi };
look: /* first_ready() */
    STEP look_for_batch(); if :: found -> found = 0; goto ready :: else fi END;
    STEP /* load reopen_seq, tail */
        if :: reopen_unseen & BIT -> goto ready :: else -> best = tail fi
    END;
    STEP /* load BW */
        if
        :: ROUND(BW[(best % C) / B]) >= best / C -> best = 0; goto ready
        :: else -> best = 0; if :: armed -> goto queue :: else -> goto arm fi
        fi
    END;

arm:
    STEP /* load ready_seq */
        ready_moved = ready_moved & ~BIT
    END;
    STEP /* store learner_sleeps */
        learner_sleeps = 1
    END;
    STEP /* load space_seq */
        space_moved = space_moved & ~BIT
    END;
    STEP /* store producers_sleep */
#ifndef M_waiter_no_flag
        producers_sleep = 1;
#endif
        armed = 1;
#ifdef M_waiter_no_look
        goto queue
#else
        goto look
#endif
    END;

queue: /* futex_waitv: compares and queues at one word after the other */
#ifdef M_waiter_seq_late
    STEP ready_moved = ready_moved & ~BIT; space_moved = space_moved & ~BIT END;
#endif
    STEP
        armed = 0;
        if
        :: ready_moved & BIT -> space_moved = space_moved | BIT; goto look
        :: else -> ready_asleep = ready_asleep | BIT; ready_moved = ready_moved | BIT
        fi
    END;
    STEP
        if
        :: space_moved & BIT ->
            if :: !(ready_asleep & BIT) -> woken = 1 :: else -> ready_asleep = ready_asleep & ~BIT fi;
            goto look
        :: else -> space_asleep = space_asleep | BIT; space_moved = space_moved | BIT
        fi
    END;
parked: /* a wake-up takes it from one queue; it leaves the other when it runs */
    atomic {
        if
        :: timed_out & BIT -> timed_out = timed_out & ~BIT; goto ready
        :: !(timed_out & BIT) && !(ready_asleep & space_asleep & BIT) ->
            ready_asleep = ready_asleep & ~BIT; space_asleep = space_asleep & ~BIT; woken = 1;
            goto look
        fi
    };

ready: /* or the time is over. pass_on() */
    atomic {
        ready_moved = ready_moved | BIT; space_moved = space_moved | BIT; armed = 0;
#ifdef M_waiter_keeps_room
        woken = 0;
#endif
        if :: woken -> woken = 0 :: else -> goto call fi
    };
    STEP /* load reopen_seq, tail */
        if :: reopen_unseen & BIT -> goto wake_next :: else -> best = tail fi
    END;
    STEP /* load BW */
        if
        :: ROUND(BW[(best % C) / B]) >= best / C -> best = 0
        :: else -> best = 0; goto call
        fi
    END;
wake_next:
    es_wake_producer(call);

over:
    false
}
#endif
