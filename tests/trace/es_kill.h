/* A scenario: an operation, and what stands around it when the process in it is killed. */
#ifndef ES_KILL_H
#define ES_KILL_H

#include "es_test.h"
#include "es_world.h"

/* What the kills of a scenario must have led to, each at least once. */
enum outcome {
    KEPT = 1,       /* a sample under way was delivered */
    LOST = 2,       /* ... was not */
    RELEASED = 4,   /* the dead learner had released its batch */
    GIVEN_BACK = 8, /* its lease came back */
    REAPED = 16,    /* the sweep found the dead */
    NOBODY = 32,    /* the sweep found nobody: not registered yet, or not any more */
    EVICTED = 64,   /* set by the scenario: a claim of the living was taken away */
    CLOSED = 128,   /* the ring was closed when the process died */
    WOKEN = 256     /* the sleeper came out without anybody's further doing than the sweep */
};

typedef struct es_scenario {
    const char *name;
    uint64_t batch_size, num_batches;
    uint32_t flags;             /* es_flag */
    const uint64_t *leaf_sizes; /* NULL: two leaves, of 8 and 24 bytes; else up to WORLD_LEAVES, the first 8 */
    uint32_t num_leaves;
    uint32_t role;                    /* the tracee's; 0: not registered */
    bool poison, streams;             /* of the tracee's attachment */
    void (*before)(es_world *w);      /* the tracer, before the tracee is there */
    void (*prepare)(es_world *w);     /* the tracee, at full speed */
    void (*between)(es_world *w);     /* the tracer, just before the operation */
    int64_t (*act)(es_world *w);      /* the tracee, killed at every instruction of this */
    int64_t want;                     /* what the operation returns */
    uint32_t sends;                   /* samples under way, from ID_TRACEE on */
    void (*when_asleep)(es_world *w); /* the tracer, once the tracee sleeps in a system call */
    void (*meddle)(es_world *w);      /* the tracer, half-way through the operation: */
    const char *meddle_in;            /* just before the first compare-and-exchange in this function, */
    uint32_t meddle_skip;             /* or, after that many, a later one; */
    const char *meddle_at;            /* or before the first instruction of this one; */
    bool (*meddle_when)(es_world *w); /* or as soon as this holds */
    bool must_not_sleep;              /* once the tracer has meddled */
    bool never_releases;              /* what it took, others release */
    bool drops_locks;                 /* the operation ends the tracee's locks and not its entry */
    void (*alive)(es_world *w);       /* the tracer, when the operation is over and nobody has died */
    unsigned (*check)(es_world *w);   /* the tracer, after the sweep: more outcomes */
    const char *through;              /* functions of the core that the operation must go through */
    unsigned outcomes;
} es_scenario;

void kill_everywhere(const es_scenario *s);

#define KILL_EVERYWHERE(id, ...)                                         \
    static const es_scenario scenario_##id = {.name = #id, __VA_ARGS__}; \
    TEST(id)                                                             \
    {                                                                    \
        kill_everywhere(&scenario_##id);                                 \
    }                                                                    \
    _Static_assert(1, "a semicolon follows")

#endif
