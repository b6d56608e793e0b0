/* A store in shared memory, a replay that has it open, and what to do with it. */
#ifndef ES_VAULT_H
#define ES_VAULT_H

#include "es_dump.h"
#include "es_items.h"
#include "replay/es_replay.h"
#include "replay/es_steps.h"

#define VAULT_TABLES 3
#define VAULT_LEAVES 4
#define VAULT_BATCH 16 /* items in a batch, at most */
#define VAULT_OUTPUTS ES_ITEMS_OUTPUTS(VAULT_LEAVES)
#define VAULT_ITEM 9000   /* bytes that an item gives to an output, at most */
#define VAULT_ROW 5120    /* bytes of a step, at most */
#define VAULT_STREAM 0x51 /* of the replay that dies */

typedef struct es_vault {
    void *base;
    uint64_t size;
    es_replay *r;
    es_store_geometry geo;
    const uint64_t *leaf_sizes;
    es_table_config tables[VAULT_TABLES];
    es_output outputs[VAULT_TABLES * VAULT_OUTPUTS];
    uint64_t made; /* steps: each has bytes of its own */
    es_dump *dump; /* NULL, or where results go */
    uint64_t keys[VAULT_BATCH];
} es_vault;

/* Says what the store is to be: geo has the numbers of leaves and tables. What the tables do not say of their items is
 * filled in, see es_items_fill(). Finds the size. */
void vault_plan(es_vault *v, const es_store_geometry *geo, const uint64_t *leaf_sizes, const es_table_config *tables);
/* Lays the store out in memory of zeros. */
int vault_format(es_vault *v);
/* Opens the store. */
void vault_open(es_vault *v, uint64_t stream);
void vault_close(es_vault *v);

/* Fills leaves with n new steps, stacked, leaf by leaf. They stay until the next call. */
void vault_make(es_vault *v, uint64_t n, const void **leaves);
/* The version of the weights that the steps which vault_make() makes next are made with. */
uint32_t vault_version(const es_vault *v);
/* priorities: one for each table. Each returns the result of the replay, and notes it. */
int vault_add(es_vault *v, uint32_t flags, const double *priorities);
/* The last step of an episode, and what it ends with. */
int vault_add_last(es_vault *v, uint32_t flags, const double *priorities);
/* A step that a worker sent. Its items are parked where a limiter forbids them. */
int vault_bring(es_vault *v, const double *priorities);
/* The same, of the worker's stream and with the number that head says. */
int vault_send(es_vault *v, const es_step_head *head, const double *priorities);
/* An explicit item that a worker sent, of the last steps of a stream up to that one. */
int vault_describe(es_vault *v, uint32_t table, uint64_t stream, uint64_t last, uint32_t length, double priority);
/* Lets parked items in. */
void vault_turn(es_vault *v);
/* Steps that all tables give their highest priority. */
void vault_add_some(es_vault *v, uint64_t n);
/* An episode of n steps, the last of which is truncated. */
void vault_add_episode(es_vault *v, uint64_t n);
int64_t vault_extend(es_vault *v, uint64_t n, const uint8_t *flags, const double *priorities);
/* A row of each of n environments, 0 to n - 1; terminated: n of 0 or 1. Where they are known, those that end their
 * episodes have final observations. */
int64_t vault_add_vector(es_vault *v, uint64_t n, const uint8_t *terminated, bool known, const double *priorities);
/* Leaves the keys in v->keys. */
int vault_sample(es_vault *v, uint32_t table, uint64_t n);
int64_t vault_update(es_vault *v, uint32_t table, const uint64_t *keys, const double *priorities, uint64_t n);
/* The items are one update of the learner older. */
int vault_learned(es_vault *v, uint32_t table);
int vault_set_limits(es_vault *v, uint32_t table, double min_diff, double max_diff);
int64_t vault_delete(es_vault *v, uint32_t table, const uint64_t *keys, uint64_t n);
/* All that can be asked of a table without changing it. */
void vault_look(es_vault *v, uint32_t table);
/* A life that touches every table: draws, adds, updates, deletes and draws again. */
void vault_live(es_vault *v);

#endif
