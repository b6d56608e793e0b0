/* A scenario of a replay: an operation in which its process is killed. Whoever opens the store next finds the operation
 * done or not done, or done up to one of its parts, and everything goes on as if nobody had died. */
#ifndef ES_REVIVE_H
#define ES_REVIVE_H

#include "es_test.h"
#include "es_vault.h"

typedef struct es_revival {
    const char *name;
    es_table_config tables[VAULT_TABLES];
    uint32_t num_tables;
    uint64_t capacity, max_items, notes;
    const uint64_t *leaf_sizes;                  /* ends with 0; NULL: 8, 4, 16 and 40 bytes */
    void (*before)(es_vault *v);                 /* at full speed */
    int64_t (*act)(es_vault *v, uint64_t parts); /* the operation, or no more than its first parts */
    uint64_t parts;                              /* that it has, each done or not done; at most REVIVE_PARTS */
    int64_t want;                                /* what the whole operation returns */
    bool forgets;         /* it leaves what is meant to die with the process: items drawn for the next batch */
    bool sends;           /* workers send steps or items */
    bool parks;           /* items park; whoever opens the store takes a turn at once */
    bool formats;         /* it makes the store: es_replay_format() */
    bool where_it_writes; /* do not kill it where the store holds what it held one instruction before */
    bool twice;           /* kill the recovery, too, where it has most to do */
    const char *through;  /* names of core functions in which a kill must occur */
} es_revival;

#define REVIVE_PARTS 8

void revive_everywhere(const es_revival *s);

#define REVIVE_EVERYWHERE(id, ...)                                      \
    static const es_revival scenario_##id = {.name = #id, __VA_ARGS__}; \
    TEST(id)                                                            \
    {                                                                   \
        revive_everywhere(&scenario_##id);                              \
    }                                                                   \
    _Static_assert(1, "a semicolon follows")

#endif
