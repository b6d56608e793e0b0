/* A scenario of a replay with its rings. Workers have sent steps, a client has sent updates, learners wait for batches, and
 * the replay is killed while it works for them. The next one reaps it, opens the store, connects the rings and goes on:
 * every step is stored once, and every draw is delivered once, as if nobody had died. */
#ifndef ES_FEED_H
#define ES_FEED_H

#include "es_fixture.h"
#include "es_test.h"
#include "es_vault.h"

#define FEED_PARTS 4
#define FEED_UPDATE_SLOTS 3

#define FEED_BOXES 2

/* The rings that bring something, and those that take batches away. */
enum { FEED_STEPS, FEED_UPDATES, FEED_SOURCES, FEED_BATCHES = FEED_SOURCES, FEED_RINGS = FEED_BATCHES + FEED_BOXES };

/* A ring of batches; none where the batch size is 0. */
typedef struct es_feed_box {
    uint32_t table;
    uint64_t batch_size, num_batches;
    uint32_t rank, world_size; /* of a group whose rings take turns */
    bool streams;              /* draws are copied past the caches, as into a large ring */
} es_feed_box;

typedef struct es_feed {
    es_vault v;
    es_fix *fix[FEED_RINGS];
    es_locks *locks[FEED_RINGS]; /* this process's */
    es_ring *others[FEED_RINGS]; /* the tracer's: a worker, a client, learners */
    es_ring *mine[FEED_RINGS];   /* of the replay that this process is */
    uint64_t sent, good;         /* steps; those that can be stored */
    uint32_t index, episode;     /* of the next one */
    const es_feed_box *boxes;
} es_feed;

typedef struct es_feeding {
    const char *name;
    es_table_config tables[VAULT_TABLES];
    uint32_t num_tables;
    uint64_t capacity;
    const uint64_t *leaf_sizes;  /* two of them; NULL: small ones */
    uint32_t slots;              /* of the inbox */
    void (*before)(es_vault *v); /* what the store holds before it has rings */
    bool known;                  /* the store knows two other rings: each of their slots was used once */
    void (*send)(es_feed *f);    /* tracer: what the workers and the client send */
    es_feed_box boxes[FEED_BOXES];
    uint64_t
        drawn; /* so many items were drawn for the first ring of batches by a replay that died before it sent them */
    uint64_t used; /* so many steps were used by a replay that took one more, and died before it released */
    bool connects; /* the operation connects the rings; otherwise they are connected before it */
    void (*prepare)(es_feed *f);          /* tracee: before the operation, at full speed */
    void (*act)(es_feed *f);              /* the operation */
    void (*again)(es_feed *f);            /* what the next replay does again, once it has connected the rings */
    bool leaves;                          /* it lets go of the rings */
    bool everywhere;                      /* it makes system calls: kill it also where it has written nothing */
    uint32_t parts;                       /* changes of one block of updates, which are made again after a death */
    void (*part)(es_feed *f, uint32_t n); /* makes the first n of them */
    const char *through;                  /* names of core functions in which a kill must occur */
} es_feeding;

void feed_everywhere(const es_feeding *s);

/* A worker sends a step. priorities: one for each table. */
void feed_step(es_feed *f, uint32_t flags, const double *priorities);
/* A worker describes an item of its last steps, which must be stored. */
void feed_item(es_feed *f, uint32_t table, uint32_t length, double priority);
void feed_updates(es_feed *f, uint32_t table, uint32_t kind, uint64_t n, const uint64_t *keys,
                  const double *priorities);

/* For operations. */
void feed_connect(es_feed *f);
/* Stores what has come, until something has to wait. */
void feed_turn(es_feed *f);
/* Lets go of the rings, and of their lock bytes. */
void feed_leave(es_feed *f);

#define FEED_EVERYWHERE(id, ...)                                        \
    static const es_feeding scenario_##id = {.name = #id, __VA_ARGS__}; \
    TEST(id)                                                            \
    {                                                                   \
        feed_everywhere(&scenario_##id);                                \
    }                                                                   \
    _Static_assert(1, "a semicolon follows")

#endif
