/* es_owner.c and es_reap.c: registration, the sweep for the dead, and the reap.
 *
 * Labels belong to the process, so a process can use each inline only once.
 *
 * The load and the CAS of a dead owner's word are one step here. No other process may
 * change that word, and a CAS that fails does nothing.
 */

/* es_locks_seize() of entry k. Goes to to_seized with the entry seized, to to_next with k + 1 when it cannot
 * be seized, or to to_second when only the second byte is held. */
#define es_locks_seize(to_next, to_seized, to_second) \
    STEP /* take_byte(), of a learner the second byte */ \
        if \
        :: HAS_SECOND(k) && second[k] != 0 -> unsure_of_the_end(); k++; goto to_next \
        :: HAS_SECOND(k) && second[k] == 0 -> second[k] = id + 1 \
        :: !HAS_SECOND(k) && lock[k] != 0 -> k++; goto to_next \
        :: !HAS_SECOND(k) && lock[k] == 0 -> take_byte(k); goto to_seized \
        fi \
    END; \
    STEP /* take_byte() */ \
        if \
        :: lock[k] != 0 -> goto to_second \
        :: else -> take_byte(k); goto to_seized \
        fi \
    END

/* Another process looks after this entry, so the end of the stream is not certain. */
inline unsure_of_the_end() {
#if CLOSE && !defined(M_unsure_ignored)
    ended = 0
#else
    skip
#endif
}

/* es_locks_yield(). Goes to to_next with k + 1 when the owner has no second byte; otherwise drop_second() follows. */
#define drop_first(to_next) \
    STEP \
        drop_byte_of(k); \
        if :: !HAS_SECOND(k) -> k++; goto to_next :: else fi \
    END

#define drop_second(to_next) \
    STEP second[k] = 0; k++; goto to_next END

/* es_owner_register(). k counts entries. Ends with an entry, or goes to no_place. */
inline es_owner_register() {
    k = (IS_LEARNER -> 0 : NLE);
register_next:
    STEP /* load state */
        if
        :: k == (IS_LEARNER -> NLE : E) -> k = 0; placeless = placeless | BIT; goto no_place
        :: k != (IS_LEARNER -> NLE : E) && IS_LIVE(k) -> k++; goto register_next
        :: else
        fi
    END;
    es_locks_seize(register_next, register_seized, register_yield);
register_seized:
#ifndef M_no_second_look
    STEP /* load state again, under the lock */
        if
        :: IS_LIVE(k) -> goto register_drop
        :: else -> goto register_live
        fi
    END;
register_drop:
    drop_first(register_next);
#else
    goto register_live;
#endif
register_yield:
    drop_second(register_next);
register_live:
    STEP /* raise_high() */
        if :: high <= k -> high = k + 1 :: else fi
    END;
    STEP /* store state: LIVE */
        check_registered(k);
        live = live | (1 << k);
        if :: !HAS_SECOND(k) -> me = k; k = 0; goto registered :: else -> me = k fi
    END;
    drop_second(register_done);
register_done:
    k = 0;
registered:
    skip
}

/* es_wake_producer(): load producers_sleep; space_seq; es_wait_wake_one(); xchg producers_sleep; space_seq; wake all.
 * A macro, because an inline cannot go to a label that it is given. */
#ifdef M_flag_cleared
#define ONCE_MORE(next) goto next
#else
#define ONCE_MORE(next) STEP bump_space END; STEP wake_all(space_asleep); goto next END
#endif
#define es_wake_producer(next) \
    STEP if :: !producers_sleep -> goto next :: else fi END; \
    STEP bump_space END; \
    STEP \
        if \
        :: wake_producer(0); goto next \
        :: wake_producer(1); goto next \
        :: wake_producer(2); goto next \
        :: else \
        fi \
    END; \
    STEP if :: !producers_sleep -> goto next :: else -> producers_sleep = 0 fi END; \
    ONCE_MORE(next)

/* es_wake_all() */
inline es_wake_all() {
    STEP bump_ready END;
    STEP wake_all(ready_asleep) END;
    STEP bump_space END;
    STEP wake_all(space_asleep) END
}

inline owner_free() {
    STEP /* es_owner_free(): store state */
#if !defined(M_free_first) && !defined(M_death_unasserted)
        check_freed(k);
#endif
        live = live & ~(1 << k)
    END
}

/* es_owner_next_dead(), and es_reap() of each owner that it finds, as the sweep in echo_shm
 * does. k counts entries, i counts words. */
inline sweep() {
    k = 0;
next_dead:
    STEP /* load state */
        if
        :: k >= high -> k = 0; goto swept
        :: k < high && !IS_LIVE(k) -> k++; goto next_dead
        :: else
        fi
    END;
#ifdef M_death_by_timeout
    STEP if :: k == me -> k++; goto next_dead :: else fi END;
#else
    es_locks_seize(next_dead, seized, second_byte);
#endif
seized:
    STEP /* load state again, under the lock */
        if
        :: IS_LIVE(k) -> check_dead(k); i = 0; unsure_of_the_end(); goto give_back_leases
        :: else -> goto drop_byte
        fi
    END;
give_back_leases: /* es_lease_give_back_all() */
#ifdef M_given_back_early
    STEP bump_given_back END;
#endif
#ifdef M_free_first
    owner_free();
#endif
    do
    :: STEP /* load BW[i], CAS */
        if
        :: STATE(BW[i]) == LEASED && OWNER(BW[i]) == k ->
            check_evict(lessee[i]);
            BW[i] = W(ROUND(BW[i]), GIVEN_BACK, FILL)
        :: else
        fi;
        i++;
        if :: i == K -> i = 0; break :: else fi
    END
    od;
#if !defined(M_given_back_early) && !defined(M_no_given_back_seq)
    STEP bump_given_back END;
#endif
reopen_claims: /* es_slots_reopen() */
#ifdef M_reopen_early
    STEP bump_reopen END;
#endif
    do
    :: STEP /* load S[i], CAS */
        if
        :: STATE(S[i]) == CLAIMED && OWNER(S[i]) == k ->
            check_evict(holder[i]);
            S[i] = W(LAP(S[i]), 0, REOPEN); data[i] = TORN;
#ifdef M_bump_if_found
            best = 1
#endif
        :: else
        fi;
        i++;
        if :: i == C -> i = 0; break :: else fi
    END
    od;
#ifdef M_free_before_reopen_seq
    owner_free();
#endif
#if defined(M_bump_if_found)
    STEP if :: best == 1 -> best = 0; bump_reopen :: else fi END;
#elif !defined(M_reopen_early)
    STEP bump_reopen END;
#endif
#ifndef M_no_alarm
    do
    :: STEP /* es_wake_alarm(): fetch_or of the alarm bit */
        count[i] = B + 1;
        i++;
        if :: i == K -> i = 0; break :: else fi
    END
    od;
#endif
#ifdef M_free_before_wake
    owner_free();
#endif
    es_wake_all();
#if !defined(M_free_first) && !defined(M_free_before_wake) && !defined(M_free_before_reopen_seq)
    owner_free();
#endif
drop_byte:
#ifdef M_death_by_timeout
    STEP if :: lock[k] == id + 1 -> drop_byte_of(k) :: else fi; k++; goto next_dead END;
#else
    drop_first(next_dead);
#endif
second_byte:
    drop_second(next_dead)
}
