/* es_end.c, closed rings: a learner seals what nobody has claimed, evicts claims that
 * stay open for too long, takes what is left, and knows when nothing is.
 *
 * `late` stands for the patience being over; it comes at any time after the close. Load
 * and CAS of turn_words() are one step: a word that changes in between fails the CAS,
 * and the batch word that filling() reads cannot change while the slot word does not.
 */
#if CLOSE
#define FILLING(q) (STATE(BW[(q) / B]) == FILL && CURRENT(q))

/* Whoever made the ring, while it is alive: es_close_ring(). */
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

/* turn_words(): i counts slots. */
inline turn_words(from) {
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

/* A label for each stage, `finish` first; goes to look, and from there to nothing_left. */
inline es_finish() {
    turn_words(REOPEN);
turn_positions:
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
alarm: /* alarm_counts() */
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
    turn_words(CLAIMED);
    claims_open();
tell: /* es_wake_learners() */
    STEP if :: !sealed || !learner_sleeps -> goto told :: else fi END;
    STEP if :: !learner_sleeps -> goto told :: else -> learner_sleeps = 0 fi END;
    STEP bump_ready END;
    STEP wake_all(ready_asleep) END;
told:
    atomic { sealed = 0; returned_unseen = returned_unseen | BIT; fin = 1; goto look };

nothing_left: /* pos: the tail; j: batches, i: slots */
    STEP pos = tail END;
nothing_in:
    STEP /* load BW[j]; a learner holds no lease here: what is leased is another's */
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
            /* taker.py: ended is 1 while it looks for the dead, whose leases come back, 2 if there are none */
            if
            :: ended == 2 -> ended = 0; finished = finished | BIT; goto over
            :: else -> ended = 1; goto sweep_now
            fi
        :: else -> pos = 0; goto not_ended
        fi
    END;
not_ended:
    atomic { came_to_nothing() };
over:
    WHEN(false) skip END
}
#endif
