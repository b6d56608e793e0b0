/* The protocol of weights in es_version.c, with the reap of a reader in es_reap.c.
 *
 * One atomic operation is one step, as in words.pml; memory is sequentially consistent. A version's bytes are two words,
 * each of which has the version's number. The publisher, readers with leases and the reaper may be killed before any
 * step. The publisher's successor, which has its creator's byte, goes on at once. A reader's successor has another
 * owner entry, and gets the same one again only when it was reaped.
 *
 * Statements:
 * 11  latest names a slot that has all bytes of its version, after every step   check_latest
 * 12  while a lease holds, its slot's bytes stay as they are                     check_fill, read_leased
 * 13  a copy that counts has all bytes of its version                            check_copy
 * 14  latest never falls, and what a reader gets never does                      publish, check_copy, read_leased
 * 15  a publisher finds a slot within a number of tries, a reader a lease            next_slot, at_rest
 * 16  who frees a lease is its owner, or reaps its owner; at rest all are free        check_release, Reaper, at_rest
 * 17  no wake-up is lost: nobody sleeps at rest though its version is there      at_rest
 */
#ifndef L
#define L 1 /* leases */
#endif
#ifndef V
#define V 3 /* versions to publish: the first ones, or with WARM those after a version in each slot */
#endif
#ifndef NC
#define NC 0 /* processes that copy */
#endif
#ifndef COPIES
#define COPIES 2 /* that each of them makes */
#endif
#ifndef NR
#define NR 0 /* processes that lease */
#endif
#ifndef LEASES
#define LEASES 1 /* that each of them gets */
#endif
#ifndef KP
#define KP 0 /* kills of the publisher */
#endif
#ifndef KL
#define KL 0 /* kills of readers with leases */
#endif
#ifndef KR
#define KR 0 /* kills of the reaper */
#endif
#ifndef NW
#define NW 0 /* processes that wait for the last version */
#endif

#define SLOTS (L + 2)
#ifndef SPARE
#define SPARE 0
#endif
#define E (NR + SPARE) /* owner entries of readers with leases */
#ifdef WARM
#define LAST (SLOTS + V)
#else
#define LAST V
#endif
#define NOTHING 0
#define NONE 15 /* a lease's slot that is not named yet */
/* es_version.c: latest, sequence words, lease words. */
#define LATEST(n, s) ((n) * SLOTS + (s))
#define NUMBER(l) ((l) / SLOTS)
#define SLOT(l) ((l) % SLOTS)
#define WHOLE(n) ((n) * 2)
#define FILLING(n) ((n) * 2 + 1)
#define LEASE(owner, slot) (((owner) + 1) * 16 + (slot))
#define HOLDER(w) ((w) / 16 - 1)
#define NAMED(w) ((w) % 16)

/* --- the segment ------------------------------------------------------------ */

byte latest;
byte sequence[SLOTS];
byte lease[L];
byte bytes[SLOTS * 2];
bit reader_sleeps;
byte news_unseen, asleep; /* a bit for each process that waits: news_seq has changed; it is in the kernel's queue */

byte live, dead; /* owner entries that are LIVE; those of them whose lock byte is free */
byte kills_publisher = KP, kills_reader = KL, kills_reaper = KR;
byte finished; /* processes that have done everything */

/* --- ghosts ------------------------------------------------------------------- */

byte leased[SLOTS]; /* by how many living readers, which have found it whole */
bit died;           /* a publisher was killed */
hidden byte failed, x;

#define CHECK(n, cond) if :: (cond) :: else -> failed = n; assert(failed != n) fi
#define STEP atomic { if :: true ->
#define END fi }
/* Steps of processes that may be killed. */
#define WHEN(kills, cond) atomic { if :: kills > 0 -> kills--; goto killed :: (cond) ->
#define STEP_OF(kills) WHEN(kills, true)

inline check_latest() {
    d_step {
        if
        :: latest != NOTHING ->
            CHECK(11, sequence[SLOT(latest)] == WHOLE(NUMBER(latest)));
            CHECK(11, bytes[SLOT(latest) * 2] == NUMBER(latest) && bytes[SLOT(latest) * 2 + 1] == NUMBER(latest))
        :: else
        fi
    }
}

/* --- the publisher ---------------------------------------------------------------- */

#define PUBLISHER STEP_OF(kills_publisher)
#define DONE fi; check_latest() }

/* is_leased(). Goes to to_leased if a lease names slot s. */
#define is_leased(to_leased) \
    i = 0; \
    do \
    :: PUBLISHER \
        if :: lease[i] != 0 && NAMED(lease[i]) == s -> i = 0; goto to_leased :: else -> i++ fi; \
        if :: i == L -> i = 0; break :: else fi \
    DONE \
    od

/* Between two rounds at least one lease names another slot: of a latest that its owner had loaded before. Each does that
 * once. */
#define MOST_TRIES ((L + 1) * SLOTS)

inline check_fill() {
    d_step {
        CHECK(12, leased[s] == 0)
    }
}

proctype Publisher() {
    byte number, s, i, tries;
publish:
    PUBLISHER
        if :: NUMBER(latest) == LAST -> goto all_published :: else -> number = NUMBER(latest) + 1; s = SLOT(latest) fi;
        tries = 0
#ifdef M_latest_reused
        ; s = (s + SLOTS - 1) % SLOTS
#endif
    DONE;
next_slot:
    atomic {
        s = (s + 1) % SLOTS; tries++;
        CHECK(15, tries <= MOST_TRIES);
#ifndef M_latest_reused
        if :: latest != NOTHING && s == SLOT(latest) -> goto next_slot :: else fi
#endif
    };
    is_leased(next_slot);
#ifndef M_marked_late
    PUBLISHER sequence[s] = FILLING(number) DONE;
#endif
#ifndef M_not_asked_again
    is_leased(next_slot);
#endif
#ifdef M_latest_first
    PUBLISHER latest = LATEST(number, s) DONE;
#endif
    PUBLISHER check_fill(); bytes[s * 2] = number DONE;
    PUBLISHER check_fill(); bytes[s * 2 + 1] = number DONE;
    PUBLISHER sequence[s] = WHOLE(number) DONE;
    PUBLISHER
        CHECK(14, number >= NUMBER(latest));
        latest = LATEST(number, s);
        number = 0; tries = 0
    DONE;
    /* tell() */
#ifndef M_no_flag_seen
    PUBLISHER if :: !reader_sleeps -> s = 0; goto publish :: else fi DONE;
#else
    goto publish;
#endif
    PUBLISHER if :: !reader_sleeps -> s = 0; goto publish :: else -> reader_sleeps = 0 fi DONE;
    PUBLISHER news_unseen = (1 << NW) - 1 DONE;
    PUBLISHER asleep = 0; s = 0 DONE;
    goto publish;
killed: /* its successor goes on */
    atomic { number = 0; s = 0; i = 0; tries = 0; died = 1 };
    goto publish;
all_published:
    finished++
}

/* --- a process that copies ---------------------------------------------------------- */

proctype Copier() {
    byte l, mine, first, second, n;
    do
    :: n == COPIES -> break
    :: n < COPIES ->
        atomic { (latest != NOTHING); l = latest };
copy_again:
        STEP if :: sequence[SLOT(l)] != WHOLE(NUMBER(l)) -> goto lapped :: else fi END;
        STEP first = bytes[SLOT(l) * 2] END;
        STEP second = bytes[SLOT(l) * 2 + 1] END;
#ifndef M_not_looked_again
        STEP if :: sequence[SLOT(l)] != WHOLE(NUMBER(l)) -> goto lapped :: else fi END;
#endif
        d_step {
            CHECK(13, first == NUMBER(l) && second == NUMBER(l));
            CHECK(14, NUMBER(l) >= mine);
            mine = NUMBER(l); n++; l = 0; first = 0; second = 0
        };
        goto copied;
lapped:
        /* look() tells this from a scribbled word by latest. */
        STEP first = 0; second = 0; CHECK(11, latest != l); l = latest END;
        goto copy_again;
copied:
        skip
    od;
    atomic { mine = 0; n = 0; finished++ }
}

/* --- a process that leases ------------------------------------------------------------ */

#define READER STEP_OF(kills_reader)
/* Who finds none free sweeps, and waits: see Reaper. */
#if L == 1
#define SOME_LEASE_IS_FREE (lease[0] == 0)
#else
#define SOME_LEASE_IS_FREE (lease[0] == 0 || lease[1] == 0)
#endif
#define NEXT_LEASE i++; if :: i == L -> i = 0; goto none_free :: else -> goto claim_next fi

inline read_leased(h) {
    d_step {
        CHECK(12, bytes[SLOT(l) * 2 + h] == NUMBER(l));
        CHECK(14, NUMBER(l) >= mine)
    }
}

inline check_release(k) {
    d_step {
        CHECK(16, HOLDER(lease[k]) == me)
    }
}

proctype Reader() {
    byte me, l, mine, i, n;
    bit holds;
attach: /* es_owner_register(): one that is free */
    atomic {
        (live != (1 << E) - 1);
        me = 0;
        do :: live & (1 << me) -> me++ :: else -> break od;
        live = live | (1 << me)
    };
    do
    :: n == LEASES -> break
    :: n < LEASES ->
none_free:
        WHEN(kills_reader, latest != NOTHING && SOME_LEASE_IS_FREE) i = 0 END;
claim_next:
#ifdef M_claimed_by_store
        READER if :: lease[i] != 0 -> NEXT_LEASE :: else fi END;
        READER lease[i] = LEASE(me, NONE) END;
#else
        READER /* CAS */
            if
            :: lease[i] != 0 -> NEXT_LEASE
            :: else -> lease[i] = LEASE(me, NONE)
            fi
        END;
#endif
name_again:
        READER l = latest END;
#ifdef M_named_late
        READER if :: sequence[SLOT(l)] != WHOLE(NUMBER(l)) -> goto name_again :: else fi END;
#endif
        READER
            lease[i] = LEASE(me, SLOT(l));
#ifdef M_named_late
            leased[SLOT(l)]++; holds = 1
#endif
        END;
#ifndef M_named_late
        READER /* look() */
#ifndef M_lease_not_checked
            if :: sequence[SLOT(l)] != WHOLE(NUMBER(l)) -> goto lease_lapped :: else fi;
#endif
            leased[SLOT(l)]++; holds = 1
        END;
#endif
        READER read_leased(0) END;
        READER read_leased(1) END;
        READER read_leased(0); mine = NUMBER(l) END;
#ifdef M_released_early
        READER lease[i] = 0 END;
        READER read_leased(1) END;
        READER leased[SLOT(l)]--; holds = 0; i = 0; l = 0; n++ END;
#else
        READER
            check_release(i);
            leased[SLOT(l)]--; holds = 0; lease[i] = 0; i = 0; l = 0; n++
        END;
#endif
        goto leased_one;
lease_lapped:
        READER CHECK(11, latest != l) END;
        goto name_again;
leased_one:
        skip
    od;
    /* es_api_detach(): its leases, then its entry */
    atomic { live = live & ~(1 << me); me = 0; mine = 0; n = 0; finished++ };
    goto left;
killed:
    atomic {
        dead = dead | (1 << me);
        if :: holds -> leased[SLOT(l)]-- :: else fi;
        me = 0; l = 0; mine = 0; i = 0; n = 0; holds = 0
    };
    goto attach;
left:
    skip
}

/* --- the reaper ------------------------------------------------------------------------- */

#define REAPER STEP_OF(kills_reaper)

/* es_reap() of each dead owner. Its lock byte is held from the look at the entry to its end. */
proctype Reaper() {
    byte k, i, w;
end_again:
    do
    :: atomic {
        (dead != 0);
        k = 0;
        do :: !(dead & (1 << k)) -> k++ :: else -> break od;
        CHECK(16, live & (1 << k))
    };
#ifdef M_entry_freed_first
        REAPER live = live & ~(1 << k); dead = dead & ~(1 << k) END;
#endif
#ifndef M_dead_keep
        do /* es_version_release_all() */
        :: REAPER w = lease[i] END;
            if
#ifdef M_reaps_all
            :: w != 0 ->
#else
            :: w != 0 && HOLDER(w) == k ->
#endif
                REAPER
                    CHECK(16, lease[i] == w);
                    lease[i] = 0
                END
            :: else
            fi;
            atomic { w = 0; i++; if :: i == L -> i = 0; break :: else fi }
        od;
#endif
        /* es_wake_all() */
        REAPER news_unseen = (1 << NW) - 1; asleep = 0 END;
#ifndef M_entry_freed_first
        REAPER live = live & ~(1 << k); dead = dead & ~(1 << k); k = 0 END
#endif
    od;
killed:
    atomic { k = 0; i = 0; w = 0 };
    goto end_again
}

/* --- a process that waits ------------------------------------------------------------------ */

proctype Waiter(byte me) {
again:
#ifdef M_news_seq_late
    STEP reader_sleeps = 1 END;
    STEP if :: NUMBER(latest) >= LAST -> goto came :: else fi END;
    STEP news_unseen = news_unseen & ~(1 << me) END;
#else
    STEP news_unseen = news_unseen & ~(1 << me) END;
#ifdef M_flag_after_look
    STEP if :: NUMBER(latest) >= LAST -> goto came :: else fi END;
    STEP reader_sleeps = 1 END;
#else
    STEP reader_sleeps = 1 END;
    STEP if :: NUMBER(latest) >= LAST -> goto came :: else fi END;
#endif
#endif
    STEP if :: news_unseen & (1 << me) -> goto again :: else -> asleep = asleep | (1 << me) fi END;
    STEP if :: !(asleep & (1 << me)) -> goto again fi END;
came:
    finished++
}

/* --- rest -------------------------------------------------------------------------------------- */

/* No process can move. If a publisher was killed, a slice of the wait passes. */
inline at_rest() {
    if
    :: asleep != 0 -> CHECK(17, died || NUMBER(latest) < LAST); asleep = 0
    :: else ->
        CHECK(15, finished == 1 + NC + NR + NW);
        CHECK(16, live == 0);
        x = 0;
        do :: x < L -> CHECK(16, lease[x] == 0); x++ :: else -> break od;
        x = 0;
        break
    fi
}

init {
    atomic {
#ifdef WARM
        x = 0;
        do
        :: x < SLOTS -> sequence[x] = WHOLE(x + 1); bytes[x * 2] = x + 1; bytes[x * 2 + 1] = x + 1; x++
        :: else -> break
        od;
        latest = LATEST(SLOTS, SLOTS - 1);
#endif
        run Publisher();
        x = 0; do :: x < NC -> run Copier(); x++ :: else -> break od;
        x = 0; do :: x < NR -> run Reader(); x++ :: else -> break od;
        x = 0; do :: x < NW -> run Waiter(x); x++ :: else -> break od;
        if :: NR > 0 -> run Reaper() :: else fi;
        x = 0
    };
    do :: atomic { timeout -> at_rest() } od
}
