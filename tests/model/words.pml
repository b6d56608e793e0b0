/* The shared words, what a step is, and what a death does.
 *
 * A step is one atomic operation of the C and the private arithmetic after it.
 * Memory is sequentially consistent: fences are not steps.
 *
 * The four sequence words are only ever compared with what somebody read before.
 * So the model keeps, for each reader, one bit that says "changed since you read
 * it" instead of a number: the same behaviours, and no number grows.
 */
#ifndef NP
#define NP 2 /* producers */
#endif
#ifndef M
#define M 2 /* samples each of them sends */
#endif
#ifndef B
#define B 2
#endif
#ifndef K
#define K 2
#endif
#ifndef NL
#define NL 1 /* learners */
#endif
#ifndef RUN
#define RUN 1 /* longest bulk claim */
#endif
#ifndef KP
#define KP 0 /* kills of producers */
#endif
#ifndef KL
#define KL 0 /* kills of learners */
#endif
#ifndef ABORTS
#define ABORTS 0
#endif
#ifndef BACK
#define BACK 0 /* takes that are undone */
#endif
#ifndef EARLY
#define EARLY 0 /* sleeps that end without a reason: a timeout with nobody dead */
#endif
#ifndef SPARE_L
#define SPARE_L 1 /* owner entries of learners beyond the first NL */
#endif
#ifndef SPARE_P
#define SPARE_P 0
#endif
#ifndef RESTART
#define RESTART 0 /* killed producers that are replaced; killed learners are but for NO_HEIR */
#endif
#ifndef NO_HEIR
#define NO_HEIR 0
#endif
#ifndef LATE
#define LATE 0 /* producers are not registered at the start */
#endif
#ifndef CLOSE
#define CLOSE 0
#endif

/* death_by_timeout, and statement 6 not asserted: what follows from it. */
#ifdef M_death_unasserted
#define M_death_by_timeout
#endif

#define C (B * K)
#define NLE (NL + SPARE_L)
#define E (NLE + NP + SPARE_P) /* owner entries: learners first */
#define NPROC (NL + NP)
#define ALL ((1 << NPROC) - 1)
#define EVERY_SAMPLE ((1 << (NP * M)) - 1)

#define id (_pid - 1) /* of a process: learners first. It is not the owner index: that is local `me` */
#define IS_LEARNER (id < NL)
#define BIT (1 << id)

/* es_words.h, with as many bits as are needed. */
#if (NL + SPARE_L + NP + SPARE_P) <= 4
#define word_t byte
#define OWNERS 4
#define MAX_LAP 7
#else
#define word_t short
#define OWNERS 8
#define MAX_LAP 200
#endif
#define FREE 0
#define CLAIMED 1
#define COMMITTED 2
#define REOPEN 3
#define SEALED 4
#define FILL 0
#define LEASED 1
#define RETIRED 2
#define GIVEN_BACK 1
#define LOOK 0 /* phases of es_take_wait(): learner.pml */
#define ARMED 1
#define AGAIN 2
#define W(lap, owner, state) ((lap) * 8 * OWNERS + (owner) * 8 + (state))
#define LAP(w) ((w) / (8 * OWNERS))
#define ROUND(w) LAP(w)
#define OWNER(w) (((w) / 8) % OWNERS)
#define STATE(w) ((w) % 8)

/* --- the segment ------------------------------------------------------------ */

word_t S[C];
word_t BW[K];
byte tail, head;
byte count[K]; /* beyond B + 1 it stays there; so does one with the alarm bit */
byte high = NLE + NP;
byte live;         /* owner entries that are LIVE */
byte locked;       /* owner entries whose lock byte is held */
byte lock[E];      /* by process id + 1 */
byte second[NLE];  /* learners' second bytes, the same */
bit learner_sleeps, producers_sleep;
#if CLOSE
bit closed, late, close_done; /* late: ES_PATIENCE_NS have passed since */
#endif

/* reopen_seq, returned_seq: _unseen: differs from the process's seen_...; _moved: changed
 * since it was loaded for the search under way. ready_seq, space_seq: _moved as before;
 * _asleep: in the kernel's queue. A bit that nobody will read is kept 1. */
byte reopen_unseen = ALL, reopen_moved = ALL;
byte returned_unseen = ALL, returned_moved = ALL;
byte ready_moved = ALL, ready_asleep;
byte space_moved = ALL, space_asleep;

#define bump_reopen reopen_unseen = ALL; reopen_moved = ALL
#define bump_returned returned_unseen = ALL; returned_moved = ALL
#define bump_ready ready_moved = ALL
#define bump_space space_moved = ALL
#define wake_all(asleep) asleep = 0

/* --- what happens to the processes ------------------------------------------- */

byte kills[2]; /* left, of learners and of producers */
byte aborts = ABORTS, backs = BACK, early = EARLY, restarts = RESTART;
byte timed_out; /* asleep until time was up */
byte finished;  /* producers that have sent everything, or died for good */
byte placeless; /* waits for an owner entry */

/* --- ghosts: no process decides anything by them ------------------------------ */

#define TORN 15 /* half written, or not written */
#define READ 14 /* released, and still whole */
byte data[C];   /* which sample, from 1, the slot's bytes are */
byte holder[C]; /* id + 1 of the living claimant */
byte lessee[K]; /* id + 1 of the living learner that leased the batch */
byte committed, released; /* samples whose commit's CAS succeeded; whose batch was released */
#define SAMPLE(n) (1 << ((n) - 1))

hidden byte x, y, z, seen, whole, failed;

#define NONE 255
#define take_byte(e) lock[e] = id + 1; locked = locked | (1 << (e))
#define drop_byte_of(e) lock[e] = 0; locked = locked & ~(1 << (e))
#define HAS_SECOND(e) ((e) < NLE)
#define SOMEBODY_DEAD ((live & ~locked) != 0)
#define LEARNER_ENTRIES ((1 << NLE) - 1)
#define PLACE_OR_DEAD ((~locked & (IS_LEARNER -> LEARNER_ENTRIES : (1 << E) - 1 - LEARNER_ENTRIES)) != 0)

/* Names the statement of the protocol page that does not hold. */
#define CHECK(n, cond) if :: (cond) :: else -> failed = n; assert(failed != n) fi

/* The same in every process, so that every step can forget them. */
#if CLOSE
#define CLOSING bit shut, open, sealed; byte fin, ended
#define FORGET_CLOSING shut = 0; open = 0; sealed = 0; fin = 0; ended = 0;
#else
#define CLOSING skip
#define FORGET_CLOSING
#endif
#define LOCALS \
    byte pos, n, i, j, k, best; \
    word_t w, best_word; \
    bit armed, everywhere, given_back, slept; \
    byte phase; \
    byte scan_lap[K], scan_next[K], got[B]; \
    CLOSING

#define FORGET \
    me = NONE; pos = 0; n = 0; i = 0; j = 0; k = 0; best = 0; w = 0; best_word = 0; \
    armed = 0; everywhere = 0; given_back = 0; slept = 0; phase = LOOK; FORGET_CLOSING \
    x = 0; do :: x < K -> scan_lap[x] = 0; scan_next[x] = 0; x++ :: else -> break od; \
    x = 0; do :: x < B -> got[x] = 0; x++ :: else -> break od

/* SIGKILL: the kernel drops the lock bytes; nothing else happens. */
inline die() {
    d_step {
        kills[1 - IS_LEARNER]--;
        x = 0; do :: x < E -> if :: lock[x] == id + 1 -> drop_byte_of(x) :: else fi; x++ :: else -> break od;
        x = 0; do :: x < NLE -> if :: second[x] == id + 1 -> second[x] = 0 :: else fi; x++ :: else -> break od;
        x = 0; do :: x < C -> if :: holder[x] == id + 1 -> holder[x] = 0 :: else fi; x++ :: else -> break od;
        x = 0; do :: x < K -> if :: lessee[x] == id + 1 -> lessee[x] = 0 :: else fi; x++ :: else -> break od;
        reopen_unseen = reopen_unseen | BIT; reopen_moved = reopen_moved | BIT;
        returned_unseen = returned_unseen | BIT; returned_moved = returned_moved | BIT;
        ready_moved = ready_moved | BIT; space_moved = space_moved | BIT;
        ready_asleep = ready_asleep & ~BIT; space_asleep = space_asleep & ~BIT;
        timed_out = timed_out & ~BIT; finished = finished & ~BIT; placeless = placeless & ~BIT;
        FORGET;
        skip
    }
}

/* Every step can be the one that does not happen. */
#define MAY_DIE (kills[1 - IS_LEARNER] > 0)
#define STEP atomic { if :: MAY_DIE -> die(); goto dead :: true ->
#define WHEN(cond) atomic { if :: MAY_DIE -> die(); goto dead :: (cond) ->
#define END fi }

#define IS_LIVE(e) ((live & (1 << (e))) != 0)
