/* A replay with items of several steps, and a model of it: which items there are, what they give to a batch, and which
 * steps stay. The model looks at all steps that live, and recomputes everything. It checks the replay after each step. */
#ifndef ES_WORLD_H
#define ES_WORLD_H

#include <math.h>

#include "es_items.h"
#include "es_test.h"
#include "replay/es_outputs.h"
#include "replay/es_replay.h"
#include "replay/es_tables.h"

#define ANY 1000
#define LEAVES 3
#define TABLES 3
#define MOST_STEPS 4096 /* that a test stores */
#define MOST_LIVING 512
#define MOST_NEW 64 /* items of a table that one step completes */
#define ITEM 2048   /* bytes that an item gives to an output, at most */
#define STREAM 7    /* of es_replay_add(); of one that is opened later, a higher one */

typedef struct step {
    es_step_head head;
    double priorities[TABLES];
} step;

/* What the model says of an item: places of its steps among all that were stored. */
typedef struct item {
    uint32_t steps[128]; /* those before it, and its own */
    uint32_t before, length;
    bool next, terminated;
    es_item_column columns[LEAVES]; /* of an explicit one */
} item;

typedef struct world {
    es_store_geometry geo;
    es_table_config tables[TABLES];
    es_output outputs[TABLES * ES_ITEMS_OUTPUTS(LEAVES)];
    void *base;
    uint64_t size;
    es_replay *r;
    step steps[MOST_STEPS];
    uint32_t made;
    es_step_head own;                                                /* of the next one that es_replay_add() stores */
    bool was_full;                                                   /* steps that a stream keeps may have gone */
    uint64_t inserted[TABLES], parkings[TABLES], num_parked[TABLES]; /* so far, of each table; and those parked now */
    item expected[TABLES][MOST_NEW];                                 /* what the last step completed */
    uint32_t num_expected[TABLES];
    item *items[TABLES]; /* by record: what the model says of the item that lives there */
    uint64_t *keys[TABLES];
    struct came {
        uint64_t key;
        item item;
    } * came[TABLES]; /* all that ever lived */
    uint32_t num_came[TABLES];
    bool describes; /* the last item was described, with that priority */
    double described;
} world;

/* A replay begins with its tables. */
static inline es_tables *world_tables(world *w)
{
    return (es_tables *)w->r;
}

static inline es_table *world_table(world *w, uint32_t t)
{
    return &world_tables(w)->table[t];
}

static inline bool same_stream(const es_step_head *a, const es_step_head *b)
{
    return a->stream == b->stream && a->environment == b->environment;
}

/* --- tables ------------------------------------------------------------------------ */

static inline es_table_config table(es_item_config item)
{
    es_table_config t = {
        .name = "a",
        .sampler = {.kind = ES_FIFO},
        .remover = {.kind = ES_FIFO},
        .max_size = ANY,
        .min_size = 1,
        .ratio = 1,
        .min_diff = -INFINITY,
        .max_diff = INFINITY,
        .replacement = 1,
        .item = item,
    };
    return t;
}

static inline es_item_config single(void)
{
    return es_items_steps(LEAVES);
}

static inline es_item_config n_step(uint32_t n, uint32_t stack)
{
    return (es_item_config){.kind = ES_ITEM_N_STEP, .length = n, .period = 1, .before = stack - 1, .gamma = 0.5};
}

static inline es_item_config described(uint32_t length)
{
    return (es_item_config){.kind = ES_ITEM_EXPLICIT, .length = length, .period = 1};
}

static inline es_item_config sequence(uint32_t length, uint32_t period, uint32_t padded)
{
    return (es_item_config){.kind = ES_ITEM_SEQUENCE, .length = length, .period = period, .padded = padded};
}

/* --- worlds ------------------------------------------------------------------------ */

world *world_new(uint64_t capacity, uint64_t max_items, const es_table_config *tables, uint32_t num_tables);
void world_free(world *w);
/* As if another process had opened the store. */
void world_reopen(world *w);
void world_check(world *w);
/* The places of all steps that live, among all that were stored; room for MOST_LIVING: how many. */
uint32_t world_living(world *w, uint32_t *steps);

/* --- storing: each returns the replay's code, and checks the world -------------------- */

/* A step that came through a ring, whose head says everything. */
int world_bring(world *w, const es_step_head *head, const double *priorities);
/* An explicit item that came through a ring: length steps of a stream, up to the one of that number. */
int world_describe(world *w, uint32_t t, const es_step_head *of, uint64_t number, uint32_t length,
                   const es_item_column *columns, double priority);
/* The next step of the replay itself. */
int world_add(world *w, uint32_t flags, const double *priorities);
/* Its episode's last step, and what it ends with. */
int world_add_last(world *w, uint32_t flags, const double *priorities);
void world_end_episode(world *w);

/* --- contents --------------------------------------------------------------------------- */

/* Arrays for n items of any table, at most 8. They stay until the next call. */
es_batch_arrays world_arrays(uint64_t n);
/* Whether the i-th item of these arrays is that one, byte by byte. */
bool world_contents_are(world *w, uint32_t t, const es_batch_arrays *a, uint64_t i, const item *it);

#endif
