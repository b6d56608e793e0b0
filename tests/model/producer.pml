/* es_producer.c: claim, write, commit, abort; and the waits of a producer in es_blocking.c.
 *
 * pos is the first claimed position, n is how many are claimed. During a claim, pos + n is
 * the position that is tried.
 */
#define Q ((pos + n) % C)
#define P (pos + n)
#define MINE(state) W(pos / C + 1, me, state)
#define FIRST_SAMPLE ((id - NL) * M + 1)

/* help_tail(): CAS of tail, from -> upto */
#define help_tail(from, upto) if :: tail == (from) -> check_tail(upto); tail = (upto) :: else fi

inline es_wake_learners() {
    STEP /* load learner_sleeps */
        if :: !learner_sleeps -> goto woken :: else fi
    END;
    STEP /* xchg */
        if :: !learner_sleeps -> goto woken :: else -> learner_sleeps = 0 fi
    END;
    STEP bump_ready END;
    STEP wake_all(ready_asleep); goto woken END
}

/* es_blocking_claim() after ES_FULL. It sleeps only after the second one. */
inline to_full() {
    if :: armed -> goto wait :: else -> goto arm fi
}

inline to_next() {
    if :: sent < M -> goto claim :: else -> finished = finished | BIT; goto over fi
}

proctype Producer(byte me) {
    LOCALS;
    byte sent;

#if LATE
    atomic { me = NONE; goto born };
#endif

claim: /* es_producer_claim() */
#if CLOSE
    STEP /* load closed */
        if :: closed -> armed = 0; space_moved = space_moved | BIT; finished = finished | BIT; goto over :: else fi
    END;
#endif
    STEP /* load reopen_seq */
        n = 0;
        if
        :: reopen_unseen & BIT -> reopen_moved = reopen_moved & ~BIT; i = 0; best = NONE; goto claim_reopened
        :: else -> goto claim_tail
        fi
    END;

claim_reopened:
    STEP /* load S[i] */
        if
        :: STATE(S[i]) == REOPEN && (LAP(S[i]) - 1) * C + i < best ->
            best = (LAP(S[i]) - 1) * C + i; best_word = S[i]
        :: else
        fi;
        i++;
        if
        :: i < C -> goto claim_reopened
        :: i == C && best == NONE -> /* seen_reopen = seq */
            i = 0; best = 0;
#ifdef M_seen_reopen_late
            reopen_unseen = reopen_unseen & ~BIT;
#else
            if :: !(reopen_moved & BIT) -> reopen_unseen = reopen_unseen & ~BIT :: else fi;
#endif
            reopen_moved = reopen_moved | BIT;
            goto claim_tail
        :: i == C && best != NONE -> i = 0; goto claim_reopened_word
        fi
    END;
claim_reopened_word: /* claim_word() */
    STEP /* CAS S[best] */
        if
#ifdef M_reopen_without_lap
        :: STATE(S[best % C]) == REOPEN ->
#else
        :: S[best % C] == best_word ->
#endif
            check_claim(best % C, LAP(best_word));
            pos = best; n = 1; best = 0; best_word = 0;
            S[pos % C] = MINE(CLAIMED); holder[pos % C] = id + 1;
            reopen_moved = reopen_moved | BIT;
            goto claimed
        :: else -> best = NONE; best_word = 0; goto claim_reopened
        fi
    END;

claim_tail:
#ifdef M_cursor_first
    STEP pos = tail; if :: CURRENT(Q) || !CLAIMABLE(Q) -> goto full_or_again :: else -> tail++ fi END;
    STEP S[Q] = MINE(CLAIMED); holder[Q] = id + 1; n = 1; goto claimed END;
full_or_again:
    STEP if :: ROUND(BW[Q / B]) < P / C -> to_full() :: else -> goto claim fi END;
#endif
    STEP pos = tail; goto try_claim END;

try_claim:
    STEP /* load S[Q] */
        w = S[Q];
        if
        :: LAP(w) > P / C -> w = 0; goto try_help
        :: else -> goto try_batch
        fi
    END;
try_help: /* help_tail() past a position that is claimed */
    STEP /* CAS tail */
#if defined(M_tail_fetch_add)
        check_tail(tail + 1); tail++;
#elif !defined(M_tail_not_helped)
        help_tail(P, P + 1);
#endif
        if :: n == 0 -> pos = 0; goto claim_tail :: else -> goto claim_over fi
    END;
try_batch:
    STEP /* load BW */
        if
        :: ROUND(BW[Q / B]) < P / C ->
            w = 0;
            if :: n == 0 -> check_full(); pos = 0; to_full() :: else -> goto claim_over fi
        :: ROUND(BW[Q / B]) > P / C || (ROUND(BW[Q / B]) == P / C && STATE(BW[Q / B]) != FILL) ->
            w = 0;
#ifdef M_full_on_stale
            if :: n == 0 -> check_full(); pos = 0; to_full() :: else -> goto claim_over fi
#else
            if :: n == 0 -> pos = 0; goto claim_tail :: else -> goto claim_over fi
#endif
        :: ROUND(BW[Q / B]) == P / C && STATE(BW[Q / B]) == FILL && LAP(w) != P / C ->
            w = 0;
            if :: n == 0 -> pos = 0; goto claim_tail :: else -> goto claim_over fi
        :: ROUND(BW[Q / B]) == P / C && STATE(BW[Q / B]) == FILL && LAP(w) == P / C -> goto try_word
        fi
    END;
try_word: /* claim_word() */
    STEP /* CAS S[Q] */
        if
        :: S[Q] == w ->
            w = 0;
            check_claim(Q, P / C + 1);
            S[Q] = W(P / C + 1, me, CLAIMED); holder[Q] = id + 1; n++;
            if
            :: n < RUN && n < M - sent && P % B != 0 -> goto try_claim
            :: else -> goto claim_over
            fi
        :: else ->
            w = 0;
            if :: n == 0 -> pos = 0; goto claim_tail :: else -> goto claim_over fi
        fi
    END;
claim_over:
    STEP /* CAS tail */
#ifdef M_position_overwritten
        if :: tail == pos -> check_tail(pos + n); tail = pos + n :: else -> pos = tail fi;
#else
        help_tail(pos, pos + n);
#endif
        goto claimed
    END;

arm: /* es_blocking_claim(), from a claim that found the ring full */
#ifdef M_seq_after_look
    STEP producers_sleep = 1; armed = 1; goto claim END;
wait:
    STEP space_moved = space_moved & ~BIT END;
#else
    STEP /* load space_seq */
        space_moved = space_moved & ~BIT
    END;
    STEP /* store producers_sleep */
        producers_sleep = 1; armed = 1; goto claim
    END;
wait:
#endif
    STEP /* futex_wait */
        armed = 0;
        if
        :: space_moved & BIT -> goto arm
        :: else -> space_asleep = space_asleep | BIT; space_moved = space_moved | BIT
        fi
    END;
parked:
    atomic {
        if
        :: MAY_DIE -> die(); goto dead
        :: early > 0 && (space_asleep & BIT) -> early--; space_asleep = space_asleep & ~BIT; goto claim
        :: !(space_asleep & BIT) ->
            if
            :: timed_out & BIT -> timed_out = timed_out & ~BIT; goto claim
            :: else -> goto arm
            fi
        fi
    };

claimed: /* es_producer_has_room(), if this process may have slept */
    atomic { if :: armed -> armed = 0 :: else -> goto write fi };
#ifndef M_wake_one
    STEP /* load reopen_seq, tail */
        if :: reopen_unseen & BIT -> goto wake_next :: else -> best = tail fi
    END;
    STEP /* load BW */
        if
        :: ROUND(BW[(best % C) / B]) >= best / C -> best = 0
        :: else -> best = 0; goto write
        fi
    END;
wake_next:
    es_wake_producer(write);
#endif
write:
    STEP /* the first byte */
        space_moved = space_moved | BIT;
        do :: i < n -> check_write(pos % C + i); data[pos % C + i] = TORN; i++ :: else -> i = 0; break od
    END;
    STEP /* the last byte, or an abort before it */
        if
        :: aborts > 0 && n == 1 -> aborts--; goto abort
        :: true ->
            do
            :: i < n -> check_write(pos % C + i); data[pos % C + i] = FIRST_SAMPLE + sent + i; i++
            :: else -> i = 0; goto commit
            od
        fi
    END;

commit: /* es_producer_commit_run(), and the wake-up */
    STEP /* CAS S[pos % C + i] */
        if
#ifdef M_plain_store
        :: true ->
#else
        :: S[pos % C + i] == MINE(CLAIMED) ->
#endif
            S[pos % C + i] = MINE(COMMITTED);
            committed = committed | SAMPLE(data[pos % C + i]);
            holder[pos % C + i] = 0; sent++;
            i++
        :: else -> /* evicted: the rest is not committed */
            do :: i < n -> holder[pos % C + i] = 0; sent++; i++ :: else -> break od
        fi;
        if :: i < n -> goto commit :: else -> i = 0 fi
    END;
    STEP /* fetch_add of the count */
        count[(pos % C) / B] = (count[(pos % C) / B] + n <= B -> count[(pos % C) / B] + n : B + 1);
        if
#ifdef M_count_equals
        :: count[(pos % C) / B] == B -> pos = 0; n = 0
#else
        :: count[(pos % C) / B] >= B -> pos = 0; n = 0
#endif
        :: else -> pos = 0; n = 0; to_next()
        fi
    END;
    es_wake_learners();

abort: /* es_producer_abort() */
    STEP /* CAS S[pos % C] */
        n = 0; sent++; /* an aborted sample is not sent again */
        if
        :: S[pos % C] == MINE(CLAIMED) ->
            S[pos % C] = W(pos / C + 1, 0, REOPEN); holder[pos % C] = 0; data[pos % C] = TORN; pos = 0
        :: else -> pos = 0; to_next()
        fi
    END;
    STEP bump_reopen END;
#ifndef M_abort_wakes_nobody
    es_wake_producer(abort_wakes_learners);
#endif
abort_wakes_learners:
    es_wake_learners();

woken:
    atomic { to_next() };
over: /* attached and idle */
    WHEN(false) skip END;

dead:
    atomic {
        if
        :: restarts > 0 -> restarts--; goto born
        :: else -> finished = finished | BIT; false
        fi
    };
#if RESTART || LATE
born:
    es_owner_register();
    goto woken;
no_place: /* echo_shm reaps the dead and registers again */
    WHEN(PLACE_OR_DEAD) placeless = placeless & ~BIT END;
    sweep();
swept:
    goto born
#else
born:
    false
#endif
}
