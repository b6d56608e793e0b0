/* es_drain.c: a closed ring. A learner seals free slots, evicts claims that stay open for
 * too long, takes the rest, and finds out when nothing is left.
 *
 * `late` means that ES_PATIENCE_NS are over. It can become 1 at any time after the close.
 *
 * The load and the CAS of es_slots_turn() are one step. A slot word that changes between
 * them fails the CAS. The batch word that es_slots_filling() reads cannot change while the
 * slot word stays the same.
 */
#if CLOSE
#define FILLING(q) (STATE(BW[(q) / B]) == FILL && CURRENT(q))

/* The creator of the ring, while it lives: es_drain_close(). */
proctype Closer() {
    byte i;
    atomic { closed = 1 };
    do
    :: atomic { count[i] = B + 1; i++; if :: i == K -> i = 0; break :: else fi }
    od;
    bump_ready;
    wake_all(ready_asleep);
    bump_space;
    wake_all(space_asleep);
    close_done = 1;
    late = 1
}

/* es_slots_turn(): i counts slots. */
inline es_slots_turn(from) {
    do
    :: STEP
        if
        :: STATE(S[i]) == from && FILLING(i) -> S[i] = W(LAP(S[i]), 0, SEALED); sealed = 1
        :: else
        fi;
        i++;
        if :: i == C -> i = 0; break :: else fi
    END
    od
}

inline claims_open() {
    do
    :: STEP
        if
        :: i == 0 -> open = 0
        :: else
        fi;
        if
        :: (STATE(S[i]) == CLAIMED || STATE(S[i]) == REOPEN) && FILLING(i) -> open = 1
        :: else
        fi;
        i++;
        if :: i == C || open -> i = 0; break :: else fi
    END
    od
}

/* Each stage has a label. The first is `finish`. Goes to look; to_empty() then goes to nothing_left. */
inline es_drain_finish() {
    es_slots_turn(REOPEN);
turn_positions: /* es_slots_turn_free() */
    STEP pos = tail END;
    STEP /* load S */
        w = S[pos % C];
        if :: LAP(w) > pos / C -> w = 0; goto turned :: else fi
    END;
    STEP /* load BW */
        if
        :: ROUND(BW[(pos % C) / B]) < pos / C -> pos = 0; w = 0; goto alarm
        :: ROUND(BW[(pos % C) / B]) > pos / C ||
           (ROUND(BW[(pos % C) / B]) == pos / C && (STATE(BW[(pos % C) / B]) != FILL || LAP(w) != pos / C)) ->
            pos = 0; w = 0; goto turn_positions
        :: else
        fi
    END;
    STEP /* CAS S */
        if
        :: S[pos % C] == w -> S[pos % C] = W(pos / C + 1, 0, SEALED); w = 0; sealed = 1
        :: else -> w = 0; pos = 0; goto turn_positions
        fi
    END;
turned:
    STEP /* CAS tail */
        help_tail(pos, pos + 1);
        pos = 0; goto turn_positions
    END;
alarm: /* es_wake_alarm() */
    do
    :: STEP count[i] = B + 1; i++; if :: i == K -> i = 0; break :: else fi END
    od;
    claims_open();
    STEP /* the clock */
        if
        :: open && late -> goto evict
        :: else -> goto tell
        fi
    END;
evict:
    es_slots_turn(CLAIMED);
    claims_open();
tell: /* es_wake_learners() */
    STEP if :: !sealed || !learner_sleeps -> goto told :: else fi END;
    STEP if :: !learner_sleeps -> goto told :: else -> learner_sleeps = 0 fi END;
    STEP bump_ready END;
    STEP wake_all(ready_asleep) END;
told:
    atomic { sealed = 0; given_back_unseen = given_back_unseen | BIT; fin = 1; goto look };

nothing_left: /* pos: the tail; j counts batches, i counts slots */
    STEP pos = tail END;
nothing_in:
    STEP /* load BW[j]; this learner holds no lease here, so a leased batch is another learner's */
        if
        :: STATE(BW[j]) == FILL -> k = ROUND(BW[j])
        :: STATE(BW[j]) == LEASED && !late -> pos = 0; j = 0; goto not_ended
        :: else -> i = B; goto nothing_on
        fi
    END;
nothing_at:
    STEP /* load S: holds_nothing() */
        if
        :: (LAP(S[j * B + i]) > k && STATE(S[j * B + i]) != SEALED) ||
           (LAP(S[j * B + i]) <= k && k * C + j * B + i < pos) -> i = 0; j = 0; k = 0; pos = 0; goto not_ended
        :: else -> i++
        fi
    END;
nothing_on:
    if
    :: i < B -> goto nothing_at
    :: i == B && j < K - 1 -> i = 0; k = 0; j++; goto nothing_in
    :: else -> i = 0; j = 0; k = 0
    fi;
    STEP /* load BW at the tail */
        if
        :: ROUND(BW[(pos % C) / B]) < pos / C ->
            pos = 0; fin = 0; shut = 0; phase = LOOK; slept = 0; ready_moved = ready_moved | BIT;
            /* echo_shm: it ends only after a sweep. ended is 1 during the sweep, which may give back a dead
             * learner's leases, and 2 when the sweep found nobody dead. */
            if
            :: ended == 2 -> ended = 0; finished = finished | BIT; goto over
            :: else -> ended = 1; goto sweep_now
            fi
        :: else -> pos = 0; goto not_ended
        fi
    END;
not_ended:
    atomic { took_nothing() };
over:
    WHEN(false) skip END
}
#endif
