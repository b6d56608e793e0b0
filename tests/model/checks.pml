/* The ten statements, and where CHECK(number, ...) asserts each.
 *
 *  1  a slot has at most one live writer         check_claim, check_write
 *  2  a delivered sample is committed, whole,    check_lease, check_read, check_release
 *     and delivered once
 *  3  a committed sample is released, or is      check_claim (no unreleased sample is overwritten),
 *     in exactly one slot                        at_rest
 *  4  a reaped owner has no CLAIMED word         check_freed, at_rest
 *  5  p < tail implies S[p mod C].lap >= LAP(p)  check_tail (laps only grow: check_claim), at_rest
 *  6  a live owner is never evicted              check_dead, check_evict
 *  7  a claim finishes, or the ring is full      check_full, at_rest; in the "cycles" configurations
 *                                                no run is endless
 *  8  no wake-up is lost                         at_rest: with nobody dead, the ring rests only when
 *                                                nothing can be taken or claimed; the clock ticks only
 *                                                when an owner is dead and not reaped
 *  9  reap and attach can be repeated            all of these, with reapers and registrants killed;
 *                                                at_rest checks the entries
 * 10  an index is re-used only after its sweep   check_registered
 */

/* Whether the next position of slot q can be claimed, whatever the tail says. */
#define CLAIMABLE(q) (STATE(BW[(q) / B]) == FILL && LAP(S[q]) == ROUND(BW[(q) / B]))
/* Whether the word of slot q is of its batch's current lap. */
#define CURRENT(q) (LAP(S[q]) == ROUND(BW[(q) / B]) + 1)

inline check_claim(q, lap) {
    d_step {
        CHECK(1, holder[q] == 0);
        CHECK(3, data[q] == 0 || data[q] >= READ || (committed & SAMPLE(data[q])) == 0);
        CHECK(5, lap >= LAP(S[q]) && lap < MAX_LAP);
#ifndef M_death_unasserted
        CHECK(10, IS_LIVE(me) && lock[me] == id + 1);
#endif
        skip
    }
}

inline check_write(q) {
    d_step {
        CHECK(1, holder[q] == id + 1)
    }
}

inline check_full() {
    d_step {
        z = 0; do :: z < C -> CHECK(7, !CLAIMABLE(z)); z++ :: else -> break od;
        skip
    }
}

/* Called before tail becomes upto. */
inline check_tail(upto) {
    d_step {
        z = tail; do :: z < upto -> CHECK(5, LAP(S[z % C]) > z / C); z++ :: else -> break od;
        skip
    }
}

/* A slot that is sealed in the current lap holds no sample. */
#define GAP(q) (STATE(S[q]) == SEALED && CURRENT(q))

inline check_lease(b) {
    d_step {
        CHECK(2, lessee[b] == 0);
        z = (b) * B;
        do
        :: z < ((b) + 1) * B && !GAP(z) ->
            CHECK(2, STATE(S[z]) == COMMITTED && CURRENT(z));
            CHECK(2, data[z] != 0 && data[z] < READ && (committed & SAMPLE(data[z])) != 0);
            CHECK(2, (released & SAMPLE(data[z])) == 0);
            z++
        :: z < ((b) + 1) * B && GAP(z) -> z++
        :: else -> break
        od;
        skip
    }
}

/* got: the samples delivered, 0 for a gap. */
inline check_read(b) {
    d_step {
        z = 0;
        do
        :: z < B ->
            CHECK(2, got[z] == 0 || data[(b) * B + z] == got[z] || data[(b) * B + z] == READ);
            z++
        :: else -> break
        od;
        skip
    }
}

inline check_release(b) {
    d_step {
        z = 0;
        do
        :: z < B && got[z] != 0 ->
            CHECK(2, (released & SAMPLE(got[z])) == 0);
            released = released | SAMPLE(got[z]);
            data[(b) * B + z] = READ;
            z++
        :: z < B && got[z] == 0 -> z++
        :: else -> break
        od;
        skip
    }
}

/* If the owner lived, the kernel would not have granted its lock byte. */
inline check_dead(e) {
    d_step {
#ifndef M_death_unasserted
        CHECK(6, lock[e] == 0 || lock[e] == id + 1);
#endif
        skip
    }
}

inline check_evict(ghost) {
    d_step {
#ifndef M_death_unasserted
        CHECK(6, ghost == 0);
#endif
        skip
    }
}

inline check_owns_nothing(statement, e) {
    d_step {
        z = 0;
        do
        :: z < C -> CHECK(statement, !(STATE(S[z]) == CLAIMED && OWNER(S[z]) == e)); z++
        :: else -> break
        od;
        z = 0;
        do
        :: z < K -> CHECK(statement, !(STATE(BW[z]) == LEASED && OWNER(BW[z]) == e)); z++
        :: else -> break
        od;
        skip
    }
}

#define check_freed(e) check_owns_nothing(4, e)
#define check_registered(e) check_owns_nothing(10, e)

#define SENT_ALL ((finished | ((1 << NL) - 1) | WAITERS) == ALL)
#define WAITED_ALL ((finished & WAITERS) == WAITERS)
#if CLOSE
#define CLOSED closed
#else
#define CLOSED false
#endif

/* Holds when every process is asleep or has finished, and every dead owner is reaped. */
inline at_rest() {
    /* 7, 8: no producer sleeps while a position can be claimed, and with learners alive no ring stays full. */
    z = 0;
    do
    :: z < C ->
        CHECK(8, (SENT_ALL && WAITED_ALL) || CLOSED || (!CLAIMABLE(z) && STATE(S[z]) != REOPEN));
        CHECK(4, STATE(S[z]) != CLAIMED);
        /* 3: collects the committed samples that are in slots. */
        if
        :: CURRENT(z) && STATE(S[z]) == COMMITTED && STATE(BW[z / B]) != RETIRED ->
            CHECK(3, data[z] != 0 && data[z] < READ);
            CHECK(3, (seen & SAMPLE(data[z])) == 0 && (released & SAMPLE(data[z])) == 0);
            seen = seen | SAMPLE(data[z])
        :: else
        fi;
        z++
    :: else -> break
    od;
    CHECK(3, (seen | released) == committed);
    seen = 0;
    CHECK(7, SENT_ALL);
#if CLOSE
    CHECK(3, !closed || released == committed);
    CHECK(8, !closed || finished == ALL);
#endif
#ifndef M_death_unasserted
    CHECK(9, placeless == 0 && live == locked);
#endif
    /* 8: no batch waits to be taken. In fifo order only the smallest unleased batch can be taken. */
    y = NONE; z = 0;
    do
    :: z < K ->
        CHECK(2, STATE(BW[z]) != LEASED);
#ifdef READY
        whole = 1; x = 0;
        do
        :: x < B -> if :: CURRENT(z * B + x) && STATE(S[z * B + x]) == COMMITTED :: else -> whole = 0 fi; x++
        :: else -> break
        od;
        CHECK(8, !whole || CLOSED);
#endif
        if :: ROUND(BW[z]) * K + z < y -> y = ROUND(BW[z]) * K + z :: else fi;
        z++
    :: else -> break
    od;
    y = y % K; whole = 1; x = 0;
    do
    :: x < B -> if :: CURRENT(y * B + x) && STATE(S[y * B + x]) == COMMITTED :: else -> whole = 0 fi; x++
    :: else -> break
    od;
    CHECK(8, !whole || CLOSED);
    whole = 0;
    z = 0;
    do :: z < tail -> CHECK(5, LAP(S[z % C]) > z / C); z++ :: else -> break od;
    skip
}
