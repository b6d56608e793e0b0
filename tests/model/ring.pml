/* The protocol of the ring in csrc/. README.md says what is modelled; words.pml has the parameters. */
#include "words.pml"
#include "checks.pml"
#include "owner.pml"
#include "producer.pml"
#include "end.pml"
#include "learner.pml"
#include "waiter.pml"

#if CLOSE
#define CLOSER_RESTS (!closed || close_done)
#else
#define CLOSER_RESTS true
#endif
/* A waiter sleeps while it is in both queues. */
#define ASLEEP (((ready_asleep | space_asleep) & ~WAITERS) | (ready_asleep & space_asleep & WAITERS))
/* No process can take a step. It can only die. */
#define STUCK (CLOSER_RESTS && (ASLEEP | finished | placeless) == ALL && \
               ((placeless & ((1 << NL) - 1)) == 0 || (~locked & LEARNER_ENTRIES) == 0) && \
               ((placeless >> NL) == 0 || (~locked & ((1 << E) - 1 - LEARNER_ENTRIES)) == 0))

/* Starts all processes. Then it is the clock.
 * When no process can move and an owner is dead and not reaped, a reap interval passes:
 * every sleep times out. When no process can move and no owner is dead, the ring is at
 * rest: no sleeper may have a reason to wake. */
init {
    atomic {
        kills[0] = KL; kills[1] = KP;
        x = 0;
        do :: x < NL -> live = live | (1 << x); lock[x] = x + 1; x++ :: else -> break od;
        x = 0;
        do :: x < NP && !LATE -> live = live | (1 << (NLE + x)); lock[NLE + x] = NL + x + 1; x++ :: else -> break od;
        locked = live;
        x = 0;
        do :: x < NL -> run Learner(x); x++ :: else -> break od;
        x = 0;
        do :: x < NP -> run Producer(NLE + x); x++ :: else -> break od;
#if NW
        reopen_unseen = ALL & ~WAITERS;
        x = 0;
        do :: x < NW -> run Waiter(); x++ :: else -> break od;
#endif
#if CLOSE
        run Closer();
#endif
        x = 0
    };
end: do
    :: d_step {
        STUCK && SOMEBODY_DEAD ->
        timed_out = ready_asleep | space_asleep; ready_asleep = 0; space_asleep = 0
    }
#ifdef CYCLES
    :: d_step { STUCK && !SOMEBODY_DEAD -> at_rest(); skip } -> break
#else
    :: d_step { STUCK && !SOMEBODY_DEAD -> at_rest(); skip }
#endif
    od
}
