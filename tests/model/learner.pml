/* es_consumer.c: look. es_lease.c: take, release, give back. es_blocking.c: the waits of a learner.
 *
 * i counts slots of a scan, j is the physical batch, k counts batches tried.
 *
 * `phase` is the phase of es_blocking_take(): LOOK before the sleep flag is set, ARMED after
 * it is set, AGAIN after a wake-up or a timeout. `slept` means that the sleep timed out.
 */
/* The last lines of look_locked(), whatever the look found. */
inline look_ends() {
    if
    :: everywhere ->
        if :: !(given_back_moved & BIT) && !given_back -> given_back_unseen = given_back_unseen & ~BIT :: else fi;
        given_back_moved = given_back_moved | BIT; everywhere = 0; given_back = 0
    :: else
    fi
}

/* es_blocking_take() goes on after a look that took nothing. */
inline took_nothing() {
#if CLOSE
    fin = 0; shut = 0; open = 0; ended = 0;
#endif
    if
    :: phase == ARMED -> phase = LOOK; goto wait
    :: phase == AGAIN && slept -> phase = LOOK; slept = 0; goto sweep_now
    :: phase == LOOK || (phase == AGAIN && !slept) -> goto arm
    fi
}

/* The look took nothing: look_or_finish() and es_drain_finish() go on. */
inline to_empty() {
    look_ends();
    k = 0; pos = 0; j = 0; w = 0; best = 0; best_word = 0;
#if CLOSE
    if
    :: shut && fin == 0 -> goto finish
    :: shut && fin == 1 && !open -> fin = 2; goto look
    :: shut && fin == 2 -> goto nothing_left
    :: else
    fi;
#endif
    took_nothing()
}

#if CLOSE
#define ANY_ORDER shut
#define DONE_STATE(w) (STATE(w) == COMMITTED || STATE(w) == SEALED)
#else
#ifdef READY
#define ANY_ORDER true
#else
#define ANY_ORDER false
#endif
#define DONE_STATE(w) (STATE(w) == COMMITTED)
#endif

/* The batch is incomplete. The look goes on only with order="ready" or on a closed ring. */
inline look_on() {
    if
    :: ANY_ORDER && !everywhere && k < K - 1 -> k++; w = 0; goto look_from_head
    :: ANY_ORDER && everywhere -> goto everywhere_next
    :: else -> to_empty()
    fi
}

/* All slots are COMMITTED or SEALED. The gaps can be counted here, after the scan, because SEALED does not change. */
inline scanned() {
#if CLOSE
    d_step {
        x = 0; y = 0;
        do :: x < B -> if :: GAP(j * B + x) -> y++ :: else fi; x++ :: else -> break od;
        skip
    };
    if :: y > 0 && (fin != 2 || y == B) -> look_on() :: else fi;
#endif
    if
    :: ANY_ORDER && everywhere -> best = ROUND(w) * K + j; best_word = w; goto everywhere_next
    :: else -> goto lease
    fi
}

/* scan(): continues where the last scan of this lap stopped. */
inline to_takeable() {
    if :: scan_lap[j] != ROUND(w) + 1 -> scan_lap[j] = ROUND(w) + 1; scan_next[j] = 0 :: else fi;
    if :: scan_next[j] == B -> scanned() :: else -> goto takeable fi
}

#if CLOSE
#define FIRST_LOOK (fin == 0)
#else
#define FIRST_LOOK true
#endif
#define forget_got() d_step { x = 0; do :: x < B -> got[x] = 0; x++ :: else -> break od; skip }

proctype Learner(byte me) {
    LOCALS;

woken:
look_or_finish:
#if CLOSE
    STEP /* load closed */
        shut = closed
    END;
#endif
look: /* look_locked() */
    STEP /* load given_back_seq */
        i = 0; j = 0; k = 0; given_back = 0; w = 0;
        if
        :: SOMEBODY_DEAD && phase == LOOK && FIRST_LOOK -> goto sweep_now /* echo_shm: a sweep may be due here */
        :: given_back_unseen & BIT ->
            everywhere = 1; given_back_moved = given_back_moved & ~BIT; best = NONE; goto look_everywhere
        :: !(given_back_unseen & BIT) -> everywhere = 0
        fi
    END;

    STEP /* look_from_head(): load head into pos */
        pos = head
    END;
look_from_head:
    STEP /* load BW[j] */
        j = (pos + k) % K; w = BW[j];
        if
        :: ROUND(w) > (pos + k) / K || (ROUND(w) == (pos + k) / K && STATE(w) != FILL) ->
            w = 0;
            if
            :: k == 0 -> j = 0; goto look_pass
            :: k > 0 && k < K - 1 -> k++; goto look_from_head
            :: k > 0 && k == K - 1 -> to_empty()
            fi
        :: ROUND(w) < (pos + k) / K ->
            w = 0;
            if
            :: k < K - 1 -> k++; goto look_from_head
            :: else -> to_empty()
            fi
        :: ROUND(w) == (pos + k) / K && STATE(w) == FILL -> to_takeable()
        fi
    END;
look_pass:
    STEP /* CAS head */
#ifdef M_head_fetch_add
        head++;
#else
        if :: head == pos -> head++ :: else fi;
#endif
        pos = 0; goto look
    END;

look_everywhere:
    STEP /* load BW[j] */
        if :: STATE(BW[j]) == FILL && OWNER(BW[j]) != 0 -> given_back = 1 :: else fi;
        if
        :: STATE(BW[j]) == FILL && ROUND(BW[j]) * K + j < best && ANY_ORDER -> w = BW[j]; to_takeable()
        :: STATE(BW[j]) == FILL && ROUND(BW[j]) * K + j < best && !ANY_ORDER ->
            best = ROUND(BW[j]) * K + j; w = BW[j]
        :: else
        fi;
        if :: ANY_ORDER -> goto everywhere_next :: else fi;
        j++;
        if
        :: j < K -> goto look_everywhere
        :: j == K && best == NONE -> best = 0; to_empty()
        :: j == K && best != NONE -> j = best % K; to_takeable()
        fi
    END;
everywhere_next: /* in any order, each batch is scanned in turn */
    atomic {
        j++;
        if
        :: j < K -> w = 0; goto look_everywhere
        :: j == K && best == NONE -> to_empty()
        :: j == K && best != NONE -> j = best % K; w = best_word; goto lease
        fi
    };

takeable:
#ifdef M_counter_trusted
    STEP if :: count[j] >= B -> goto lease :: else -> look_on() fi END;
#endif
    STEP /* load the next slot word */
        if
        :: S[j * B + scan_next[j]] / (8 * OWNERS) != scan_lap[j] || !DONE_STATE(S[j * B + scan_next[j]]) ->
            look_on()
        :: else ->
            scan_next[j]++;
            if :: scan_next[j] < B -> goto takeable :: else -> scanned() fi
        fi
    END;

lease: /* es_lease_take() */
    STEP /* CAS BW[j] */
        k = 0; pos = 0; best = 0; best_word = 0;
        if
#ifdef M_lease_by_store
        :: true ->
#else
        :: BW[j] == w ->
#endif
            check_lease(j);
            BW[j] = W(ROUND(w), me, LEASED); lessee[j] = id + 1;
            phase = LOOK; slept = 0; ready_moved = ready_moved | BIT;
            look_ends();
#if CLOSE
            fin = 0; shut = 0; open = 0; ended = 0
#endif
        :: else -> w = 0; j = 0; goto look
        fi
    END;

    STEP /* the first read of the batch */
        do :: i < B -> got[i] = (GAP(j * B + i) -> 0 : data[j * B + i]); i++ :: else -> i = 0; break od;
        if :: backs > 0 -> goto give_back :: true fi
    END;
#ifdef M_release_early
    STEP /* the store of es_lease_end() */
        count[j] = 0; check_release(j); lessee[j] = 0; BW[j] = W(ROUND(w) + 1, 0, FILL)
    END;
    STEP check_read(j); w = 0; j = 0; forget_got(); goto wake_producers END;
#endif
    STEP /* the last read */
        check_read(j);
        goto release
    END;

release: /* es_lease_end(), es_lease_tell() */
#ifdef M_count_after_word
    STEP /* store BW[j] */
        check_release(j); forget_got();
        BW[j] = W(ROUND(w) + 1, 0, FILL); lessee[j] = 0
    END;
    STEP count[j] = 0; w = 0; j = 0 END;
#else
    STEP /* store count[j] */
#ifdef M_wake_if_was_full
        everywhere = producers_sleep; /* re-uses a local: was the ring full? */
#endif
        count[j] = 0
    END;
#if CLOSE
    STEP /* load closed */
#ifndef M_closed_opens_space
        shut = closed
#else
        skip
#endif
    END;
    STEP /* store BW[j] */
        check_release(j); forget_got();
        BW[j] = (shut -> W(ROUND(w), 0, RETIRED) : W(ROUND(w) + 1, 0, FILL)); lessee[j] = 0; w = 0; j = 0; shut = 0
    END;
#else
    STEP /* store BW[j] */
        check_release(j); forget_got();
        BW[j] = W(ROUND(w) + 1, 0, FILL); lessee[j] = 0; w = 0; j = 0
    END;
#endif
#endif
wake_producers:
#ifdef M_wake_if_was_full
    STEP if :: !everywhere -> goto producers_woken :: else -> everywhere = 0 fi END;
#endif
    es_wake_producer(producers_woken);

producers_woken:
#if CLOSE
    STEP /* load closed again */
        if :: !closed -> goto woken :: else fi
    END;
    es_wake_learners();
#else
    goto woken;
#endif

give_back: /* es_lease_give_back(); no slots are held, so es_slots_let_go() has nothing to do */
    STEP /* store BW[j] */
        backs--;
        forget_got();
        scan_lap[j] = 0; scan_next[j] = 0;
        BW[j] = W(ROUND(w), GIVEN_BACK, FILL); lessee[j] = 0;
#ifdef M_head_lowered
        pos = ROUND(w) * K + j;
#endif
        w = 0; j = 0
    END;
#ifdef M_head_lowered
    STEP if :: pos < head -> head = pos :: else fi; pos = 0 END;
#else
    STEP bump_given_back END;
#endif
    es_wake_learners();

arm:
    STEP /* load ready_seq */
        phase = ARMED; ready_moved = ready_moved & ~BIT
    END;
    STEP /* store learner_sleeps */
        learner_sleeps = 1;
        goto look_or_finish
    END;
wait:
    STEP /* futex_wait */
        if
        :: ready_moved & BIT -> phase = AGAIN; goto look_or_finish
        :: else -> ready_asleep = ready_asleep | BIT; ready_moved = ready_moved | BIT
        fi
    END;
parked:
    atomic {
        if
        :: MAY_DIE -> die(); goto dead
        :: early > 0 && (ready_asleep & BIT) ->
            early--; ready_asleep = ready_asleep & ~BIT; phase = AGAIN; slept = 1; goto look_or_finish
        :: !(ready_asleep & BIT) ->
            phase = AGAIN;
            if
            :: timed_out & BIT -> timed_out = timed_out & ~BIT; slept = 1
            :: else
            fi;
            goto look_or_finish
        fi
    };

#if CLOSE
finish:
    es_drain_finish();
#endif

sweep_now:
    sweep();
swept:
#if CLOSE
#ifdef M_asks_once
    atomic { if :: ended == 1 -> ended = 0; finished = finished | BIT; goto over :: else fi };
#else
    atomic { if :: ended == 1 -> ended = 2 :: else fi };
#endif
#endif
    if :: me == NONE -> goto dead :: else -> goto look_or_finish fi;

dead:
#if NO_HEIR
    atomic { finished = finished | BIT; false };
#endif
    /* A new learner registers, reaps the dead, and then looks everywhere. */
    es_owner_register();
    goto sweep_now;
no_place:
    WHEN(PLACE_OR_DEAD) placeless = placeless & ~BIT; goto sweep_now END
}
