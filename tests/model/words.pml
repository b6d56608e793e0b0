/* The shared words, what a step is, and what a death does.
 *
 * A step is one atomic operation of the C code and the private arithmetic after it.
 * Memory is sequentially consistent, so fences are not steps.
 *
 * A process only compares a sequence word with the value that it read before. So the
 * model keeps no number. For each reader it keeps one bit: "changed since you read it".
 * The behaviour is the same, and the state stays small.
 */
#ifndef NP
#define NP 2 /* producers */
#endif
#ifndef M
#define M 2 /* samples that each producer sends */
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
#define RUN 1 /* the longest bulk claim */
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
#define BACK 0 /* batches that are given back */
#endif
#ifndef EARLY
#define EARLY 0 /* sleeps that time out although nobody is dead */
#endif
#ifndef SPARE_L
#define SPARE_L 1 /* owner entries of learners beyond the first NL */
#endif
#ifndef SPARE_P
#define SPARE_P 0
#endif
#ifndef RESTART
#define RESTART 0 /* killed producers that are replaced; killed learners always are, unless NO_HEIR */
#endif
#ifndef NO_HEIR
#define NO_HEIR 0
#endif
#ifndef LATE
#define LATE 0 /* 1: producers are not registered at the start */
#endif
#ifndef CLOSE
#define CLOSE 0
#endif
#ifndef NW
#define NW 0 /* processes that wait for a batch and for room at once; NP + NW <= 3 */
#endif
#ifndef WAITS
#define WAITS 1 /* how often each of them waits */
#endif

/* death_by_timeout without the assertion of statement 6: shows the faults that follow. */
#ifdef M_death_unasserted
#define M_death_by_timeout
#endif

#define C (B * K)
#define NLE (NL + SPARE_L)
#define E (NLE + NP + SPARE_P) /* owner entries: learners first */
#define NPROC (NL + NP + NW)
#define WAITERS (((1 << NW) - 1) << (NL + NP))
#define ALL ((1 << NPROC) - 1)
#define EVERY_SAMPLE ((1 << (NP * M)) - 1)

#define id (_pid - 1) /* of a process: learners, producers, waiters; the owner index is the local `me` */
#define IS_LEARNER (id < NL)
#define BIT (1 << id)

/* es_word.h, with no more bits than needed. */
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
#define LOOK 0 /* phases of es_blocking_take(), see learner.pml */
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
byte count[K]; /* at most B + 1, which also stands for the alarm bit */
byte high = NLE + NP;
byte live;         /* owner entries that are LIVE */
byte locked;       /* owner entries whose lock byte is held */
byte lock[E];      /* id + 1 of the process that holds the lock byte */
byte second[NLE];  /* the same for learners' second bytes */
bit learner_sleeps, producers_sleep;
#if CLOSE
bit closed, late, close_done; /* late: ES_PATIENCE_NS have passed since the close */
#endif

/* One bit for each process.
 * reopen_seq, given_back_seq: _unseen: it differs from the process's seen_...; _moved: it
 * changed since the process loaded it for the search under way.
 * ready_seq, space_seq: _moved: as above; _asleep: the process is in the kernel's queue.
 * A bit that no process will read again is kept 1. */
byte reopen_unseen = ALL, reopen_moved = ALL;
byte given_back_unseen = ALL, given_back_moved = ALL;
byte ready_moved = ALL, ready_asleep;
byte space_moved = ALL, space_asleep;

#define bump_reopen reopen_unseen = ALL; reopen_moved = ALL
#define bump_given_back given_back_unseen = ALL; given_back_moved = ALL
#define bump_ready ready_moved = ALL
#define bump_space space_moved = ALL
#define wake_all(asleep) asleep = 0
/* Whichever: the kernel's order matters for fairness only. */
#define wake_producer(p) (space_asleep & (1 << (NL + p))) -> space_asleep = space_asleep & ~(1 << (NL + p))

/* --- what happens to the processes ------------------------------------------- */

byte kills[2]; /* kills that are left: of learners, of producers */
byte aborts = ABORTS, backs = BACK, early = EARLY, restarts = RESTART;
byte timed_out; /* processes whose sleep timed out */
byte finished;  /* processes that have done everything, or died and are not replaced */
byte placeless; /* processes that wait for an owner entry */

/* --- ghost variables: only the checks read them ------------------------------- */

#define TORN 15 /* half written, or not written */
#define READ 14 /* released, and still whole */
byte data[C];   /* the sample in the slot, counted from 1; or TORN, READ, 0 */
byte holder[C]; /* id + 1 of the living claimant */
byte lessee[K]; /* id + 1 of the living learner that leased the batch */
byte committed, released; /* samples whose commit succeeded; samples whose batch was released */
#define SAMPLE(n) (1 << ((n) - 1))

hidden byte x, y, z, seen, whole, failed;

#define NONE 255
#define take_byte(e) lock[e] = id + 1; locked = locked | (1 << (e))
#define drop_byte_of(e) lock[e] = 0; locked = locked & ~(1 << (e))
#define HAS_SECOND(e) ((e) < NLE)
#define SOMEBODY_DEAD ((live & ~locked) != 0)
#define LEARNER_ENTRIES ((1 << NLE) - 1)
#define PLACE_OR_DEAD ((~locked & (IS_LEARNER -> LEARNER_ENTRIES : (1 << E) - 1 - LEARNER_ENTRIES)) != 0)

/* Names the broken statement; checks.pml lists them. */
#define CHECK(n, cond) if :: (cond) :: else -> failed = n; assert(failed != n) fi

/* Every process has the same locals, so that a death at any step can clear them. */
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

/* SIGKILL: the kernel drops the lock bytes, and nothing else happens. */
inline die() {
    d_step {
        kills[1 - IS_LEARNER]--;
        x = 0; do :: x < E -> if :: lock[x] == id + 1 -> drop_byte_of(x) :: else fi; x++ :: else -> break od;
        x = 0; do :: x < NLE -> if :: second[x] == id + 1 -> second[x] = 0 :: else fi; x++ :: else -> break od;
        x = 0; do :: x < C -> if :: holder[x] == id + 1 -> holder[x] = 0 :: else fi; x++ :: else -> break od;
        x = 0; do :: x < K -> if :: lessee[x] == id + 1 -> lessee[x] = 0 :: else fi; x++ :: else -> break od;
        reopen_unseen = reopen_unseen | BIT; reopen_moved = reopen_moved | BIT;
        given_back_unseen = given_back_unseen | BIT; given_back_moved = given_back_moved | BIT;
        ready_moved = ready_moved | BIT; space_moved = space_moved | BIT;
        ready_asleep = ready_asleep & ~BIT; space_asleep = space_asleep & ~BIT;
        timed_out = timed_out & ~BIT; finished = finished & ~BIT; placeless = placeless & ~BIT;
        FORGET;
        skip
    }
}

/* The process can die instead of taking any step. */
#define MAY_DIE (kills[1 - IS_LEARNER] > 0)
#define STEP atomic { if :: MAY_DIE -> die(); goto dead :: true ->
#define WHEN(cond) atomic { if :: MAY_DIE -> die(); goto dead :: (cond) ->
#define END fi }

#define IS_LIVE(e) ((live & (1 << (e))) != 0)
