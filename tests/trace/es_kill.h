/* A scenario: an operation in which a process is killed, and what other processes do before, during and after it. */
#ifndef ES_KILL_H
#define ES_KILL_H

#include "es_test.h"
#include "es_world.h"

/* Outcomes of kills. Each outcome that a scenario lists must occur at least once. */
enum outcome {
    KEPT = 1,       /* a sample that was being sent was delivered */
    LOST = 2,       /* a sample that was being sent was not delivered */
    RELEASED = 4,   /* the dead learner had released its batch */
    GIVEN_BACK = 8, /* the dead learner's lease was given back */
    REAPED = 16,    /* the sweep found the dead process */
    NOBODY = 32,    /* the sweep found no dead process: it was not registered yet, or no longer */
    EVICTED = 64,   /* set by the scenario: a living process lost its claim */
    CLOSED = 128,   /* the ring was closed when the process died */
    WOKEN = 256     /* nothing but the operation or the sweep was needed to wake the sleeper */
};

typedef struct es_scenario {
    const char *name;
    uint64_t batch_size, num_batches;
    uint32_t flags;             /* es_flag */
    const uint64_t *leaf_sizes; /* NULL: two leaves of 8 and 24 bytes. Else up to WORLD_LEAVES, the first of 8 bytes */
    uint32_t num_leaves;
    uint32_t role;                /* the tracee's; 0: not registered */
    bool poison, streams;         /* of the tracee's attachment */
    void (*before)(es_world *w);  /* tracer: before the tracee exists */
    void (*prepare)(es_world *w); /* tracee: before the operation, at full speed */
    void (*between)(es_world *w); /* tracer: just before the operation */
    int64_t (*act)(es_world *w);  /* tracee: the operation, killed at every instruction */
    int64_t want;                 /* what the operation returns */
    uint32_t sends; /* number of samples, or versions, that the operation sends; samples have ids from ID_TRACEE on */
    void (*when_asleep)(es_world *w); /* tracer: once the tracee sleeps in a system call */
    void (*meddle)(es_world *w);      /* tracer: at one point of the operation, which is */
    const char *meddle_in;            /* just before the first compare-and-exchange in this function, */
    uint32_t meddle_skip;             /* or before a later one: how many to skip; */
    const char *meddle_at;            /* or before the first instruction of this function; */
    bool (*meddle_when)(es_world *w); /* or as soon as this is true */
    bool must_not_sleep;              /* the tracee must never sleep in a system call */
    bool never_releases;              /* the tracee does not release what it took: others do */
    bool drops_locks;                 /* the operation drops the tracee's locks but keeps its entry */
    void (*alive)(es_world *w);       /* tracer: after the operation, before the tracee is killed */
    unsigned (*check)(es_world *w);   /* tracer: after the sweep. Returns more outcomes */
    const char *through;              /* names of core functions in which a kill must occur */
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
