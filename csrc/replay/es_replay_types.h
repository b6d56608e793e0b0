/* Plain types of a replay, shared by the C core and its Python binding. No preprocessor beyond
 * this guard: cffi reads this file as it is. */
#ifndef ES_REPLAY_TYPES_H
#define ES_REPLAY_TYPES_H

#include <stdint.h>

/* What the functions of a replay return beside what enum es_result says. */
enum es_replay_result {
    ES_EXPIRED = -10117,  /* steps of an explicit item are not stored, or not any more */
    ES_UNSYNCED = -10119, /* all rows that are free are held for a snapshot: see es_replay_snapshot() */
    ES_REFUSED = -10101,  /* a table's rate limiter forbids to insert: why->table */
    ES_NO_ROOM = -10102,  /* every step that could go is protected */
    ES_SHORT = -10103,    /* a table is empty, or its limiter forbids to sample; what was drawn is kept */
    ES_EPRIORITY =
        -10111, /* a priority is negative, infinite, no number, or its weight is too large: why->index, why->table */
    ES_ENOITEM = -10112,      /* no item has that key: why->index */
    ES_EDAMAGED = -10113,     /* the store's records contradict each other: why->index says which */
    ES_ESELECTOR = -10114,    /* a custom selector has failed */
    ES_EREENTERED = -10115,   /* called by code that itself runs inside a call of this replay */
    ES_ENOSELECTOR = -10116,  /* a table has a custom selector, and there is none: why->table */
    ES_ETWICE = -10118,       /* the stream has a step with that number already */
    ES_EENVIRONMENT = -10120, /* an environment's number is out of range, or comes twice: why->index */
    ES_ERESET = -10121        /* a row ends an episode, and must be a reset: why->index */
};

enum es_selector_kind {
    ES_UNIFORM = 1,
    ES_PRIORITIZED = 2,
    ES_SOFTMAX = 3,
    ES_FIFO = 4,
    ES_LIFO = 5,
    ES_MIN_HEAP = 6,
    ES_MAX_HEAP = 7,
    ES_CUSTOM = 8,  /* es_custom_selector */
    ES_HOT_COLD = 9 /* a sampler; items age by es_replay_learned() */
};

/* A step's flags. ES_STEP_FINAL: it is what an episode ends with: observations, but no action. It says whether the
 * episode was terminated or truncated. It may go before the step that it follows, which is sent without flags: the store
 * adds ES_STEP_ENDS_TERMINATED or ES_STEP_ENDS_TRUNCATED, which mean nothing to items. */
enum es_step_flag {
    ES_STEP_TERMINATED = 1,
    ES_STEP_TRUNCATED = 2,
    ES_STEP_LOST = 4,
    ES_STEP_FINAL = 8,
    ES_STEP_ENDS_TERMINATED = 32,
    ES_STEP_ENDS_TRUNCATED = 64
};
enum es_head_flag { ES_HEAD_ITEM = 16 };

/* What the inbox brings with each step: its first leaf. The tables' priorities follow: see es_replay_add(). If there are
 * tables of explicit items, as many es_item_column follow as the largest of them has outputs. With ES_HEAD_ITEM it is no
 * step but such an item: of the table with the number in episode, of index steps, the last of which has that number. */
typedef struct es_inbox_head {
    uint64_t stream, number;
    uint32_t index; /* of the step in its episode, from 0 */
    uint32_t environment, episode, flags;
} es_inbox_head;

/* What the update ring brings: its only leaf. keys are followed by as many priorities; each block has room for
 * ES_UPDATE_KEYS. ES_UPDATE_ASK asks for a ring of batches of n items of the table, keys[0] of them, or for keys[1]
 * such rings that take turns: es_turn says so. ES_UPDATE_LEARNED is one es_replay_learned(), and has no keys. */
enum es_update_kind { ES_UPDATE_PRIORITIES = 1, ES_UPDATE_DELETE = 2, ES_UPDATE_ASK = 3, ES_UPDATE_LEARNED = 4 };
typedef struct es_update_block {
    uint32_t table, kind;
    uint64_t n;
    uint64_t keys[256];
    double priorities[256];
} es_update_block;

enum es_replay_limits {
    ES_MAX_TABLES = 64,
    ES_TABLE_NAME = 64,
    ES_UPDATE_KEYS = 256,
    ES_MAX_OUTBOXES = 32,
    ES_MAX_ENVIRONMENTS = 1048576
};

/* How items are chosen. */
typedef struct es_selector_config {
    uint32_t kind; /* es_selector_kind */
    uint32_t zero;
    double parameter; /* alpha of Prioritized, temperature of Softmax and of both parts of HotCold */
    double beta;      /* of all: exponent of the importance weights */
    /* Of samplers of the kinds Softmax and HotCold: which share of its items, above 0 and at most 1, a table, or a part
     * of it, is to be worth. The parameter is the temperature until it is chosen so. 0: it stays. */
    double target;
    /* Of HotCold. share: of the draws, that come from the hot part; 0 to 1. hot_size: most items of it. age: so many
     * updates of the learner old, items are hot still; max_age: they are in the table still; 0: for ever. */
    double share;
    uint64_t hot_size, age, max_age;
} es_selector_config;

/* What an item of a table is. */
enum es_item_kind {
    ES_ITEM_STEP = 1,     /* one step */
    ES_ITEM_N_STEP = 2,   /* a transition over length steps; fewer where the episode ends */
    ES_ITEM_SEQUENCE = 3, /* length steps of an episode, each time period steps later; shorter at its end, if padded */
    ES_ITEM_EXPLICIT = 4  /* what a writer says, of up to length steps: for each output which ones */
};
typedef struct es_item_config {
    uint32_t kind;
    uint32_t length; /* steps, at least 1 */
    uint32_t period; /* of sequences, 1 to length; otherwise 1 */
    uint32_t before; /* steps before the item's first one that its arrays reach back to: the deepest stack - 1 */
    uint32_t padded; /* of sequences, 1: the steps that are left when an episode ends are an item, too */
    uint32_t num_outputs;
    double gamma; /* discount, 0 to 1 */
} es_item_config;

/* An array of a batch: what an item gives to it. Where nothing is said, it has as many bytes as count steps of the leaf. */
enum es_output_kind {
    ES_OUTPUT_STEPS = 1,  /* count steps, the first of them from steps after the item's first one */
    ES_OUTPUT_NEXT = 2,   /* of n steps: the same, from the step on that follows; or from the last one if none does */
    ES_OUTPUT_RETURN = 3, /* of n steps: the sum over them, discounted; the leaf's elements are floats of width bytes */
    ES_OUTPUT_DISCOUNT = 4, /* of n steps: gamma ** steps, or 0 after a termination: a float of width bytes */
    ES_OUTPUT_MASK = 5,     /* count bytes: 1 for each step that is there */
    ES_OUTPUT_LENGTH = 6,   /* how many steps are there: an int64 */
    ES_OUTPUT_COLUMN = 7    /* of explicit items: count steps, as the item's es_item_column says */
};
typedef struct es_output {
    uint32_t kind, leaf, count, width;
    int32_t from;    /* 0 or less */
    uint32_t repeat; /* in place of steps before the episode's first one, 1: that one; 0: zeros */
} es_output;

/* Which steps an explicit item gives to an output: the last of them is back steps before the item's last one, and the
 * others are stride steps apart. */
typedef struct es_item_column {
    uint32_t back, stride;
} es_item_column;

/* What whoever opens a store brings for a selector of kind ES_CUSTOM. A function returns 0, or something else if it has
 * failed. A key names an item as in a batch. Members are told of in order of insertion, those of an opened store, too.
 * Once insert, update, remove, or a remover's draw has failed, no function is called any more, and every call that
 * changes something returns ES_ESELECTOR. The store stays as whole as after a kill: es_replay_open() goes on with it. */
typedef struct es_custom_selector {
    void *self;
    int (*insert)(void *self, uint64_t key, double priority);
    int (*update)(void *self, uint64_t key, double priority); /* of a member */
    int (*remove)(void *self, uint64_t key);                  /* of a member */
    /* n draws. The i-th uses numbers[i], at least 0 and below 1, and no other generator. keys are members'. */
    int (*draw)(void *self, const double *numbers, uint64_t n, uint64_t *keys, double *probabilities);
    int (*probability)(void *self, uint64_t key, double *probability); /* of drawing that member now */
    void (*refuse)(void *self, uint64_t key); /* draw has returned this key, which is no member's */
} es_custom_selector;

typedef struct es_table_config {
    char name[64]; /* ES_TABLE_NAME; UTF-8, ends with 0 */
    es_selector_config sampler, remover;
    uint64_t max_size;          /* items */
    uint64_t max_times_sampled; /* 0: no limit */
    int64_t min_size;           /* the rate limiter */
    /* The limits may change later: es_table_info has them. */
    double ratio, min_diff, max_diff;
    uint64_t max_parked;   /* items that wait for the limiter */
    uint32_t replacement;  /* 0: each living item once before any again */
    uint32_t is_protected; /* 1: its items do not go when the store is full */
    es_item_config item;
} es_table_config;

/* Everything that determines a store's layout, beside the leaves' sizes and the tables. */
typedef struct es_store_geometry {
    uint64_t capacity;  /* steps */
    uint64_t max_items; /* living items of all tables together */
    uint64_t seed;
    uint32_t num_leaves, num_tables;
    uint32_t schema_size;  /* bytes */
    uint32_t inbox_slots;  /* of the ring that brings steps; 0: there is none */
    uint32_t update_slots; /* of the ring that brings updates */
    uint32_t columns;      /* 1: each leaf has a column of its own, and rows can be held for a snapshot */
    uint64_t spare;        /* of such a store: rows beyond capacity, in use while others are held */
    uint64_t notes;        /* bytes that whoever has the store keeps in it: es_replay_set_notes() */
} es_store_geometry;

/* What a store is made of. outputs: those of the first table, then those of the second one, and so on. */
typedef struct es_store_parts {
    const uint64_t *leaf_sizes;
    const es_table_config *tables;
    const es_output *outputs;
    const void *schema; /* geo.schema_size bytes, for whoever opens it */
} es_store_parts;

/* An environment whose steps the replay's own process stores: its next step. */
typedef struct es_environment {
    uint64_t number;
    uint32_t index, episode;
    uint32_t resets; /* 1: the next row of es_replay_add_vector() is a reset, if skips_resets */
    uint32_t named;  /* 0 */
} es_environment;

/* A step of each of n environments. */
typedef struct es_vector {
    const void *const *leaves; /* for each leaf n times its size */
    /* n times one for each leaf: what the row's episode ends with. Those of rows that end none are not looked at. In
     * place of an address NULL: zeros. NULL: it is not known. */
    const void *const *finals;
    const uint8_t *terminated, *truncated; /* n of 0 or 1 each; NULL: none */
    const int64_t *environments;           /* n different ones, below ES_MAX_ENVIRONMENTS; NULL: 0 to n - 1 */
    const double *priorities;              /* as of es_replay_extend() */
    uint64_t n;
    uint32_t skips_resets; /* 1: the row after the end of an episode is no step */
    uint32_t zero;
} es_vector;

/* Where a batch goes: for n items, arrays of n. leaves: one array for each output of the table, of n times its size. The
 * others are its columns, of eight bytes an item each. Of implicit items, which have no records, priority is 1,
 * times_sampled -1, and age how many steps were stored after the item's last one. */
enum es_batch_column { ES_BATCH_COLUMNS = 8 };
typedef struct es_batch_arrays {
    void **leaves;
    uint64_t *key;
    double *probability, *priority, *weight;
    int64_t *times_sampled, *table_size, *age;
    int64_t *version; /* of the weights that each item's last step was made with */
} es_batch_arrays;

/* Where something is wrong. */
typedef struct es_trouble {
    uint32_t table;
    uint32_t zero;
    uint64_t index;
} es_trouble;

/* A ring of batches that a learner asks for. Whoever makes it checks the numbers. */
typedef struct es_ask {
    uint64_t batch_size, num_batches; /* 0: nobody asks */
    uint64_t world_size;              /* how many rings take turns; 0: one of its own */
    uint32_t table, zero;
} es_ask;

/* What a turn of the loop has found. */
typedef struct es_turn {
    int32_t steps, updates; /* why it stopped: ES_OK if there may be more, ES_EMPTY, ES_ENDED, ES_ESELECTOR, an error;
                               ES_REFUSED, ES_NO_ROOM or ES_UNSYNCED when a step waits */
    uint32_t table;         /* whose limiter, for ES_REFUSED */
    uint32_t sweep_due;     /* 1: dead producers should be looked for */
    uint64_t refused;       /* so far: what the rings brought, and nobody can have meant */
    uint64_t parked;        /* items that wait until a limiter lets them in */
    es_ask ask;
    /* Why each ring of batches got no more: ES_OK if it may, or if it is another one's turn; ES_FULL, ES_SHORT, an error;
     * ES_EMPTY where there is none. ES_MAX_OUTBOXES of them. */
    int32_t batches[32];
} es_turn;

/* A step that is stored. */
typedef struct es_stored_step {
    uint64_t arrival, stream, number;
    uint32_t record, version, index, environment, episode, flags;
} es_stored_step;

/* --- checkpoints --- */

/* How a checkpoint is written. */
typedef struct es_save_config {
    int32_t directory; /* open, for the files of rows */
    int32_t records;   /* an empty file, open for writing */
    int32_t drawn;     /* likewise */
    uint32_t zero;
    uint64_t first; /* the rows of steps that arrived before that one are in files that are there */
    uint64_t rows;  /* steps of a file, at least 1: first is a multiple of it */
} es_save_config;

/* What a replay was when the checkpoint was begun: also what is in no record. */
typedef struct es_save_state {
    uint64_t arrivals, steps, row_size;
    uint64_t stream, number; /* of the next step that es_replay_add() stores */
    uint32_t episode, index; /* likewise */
    uint64_t records_size;   /* of its file */
} es_save_state;

/* What a file of rows begins with. */
typedef struct es_chunk_header {
    uint64_t magic;
    uint32_t version, zero;
    uint64_t row_size, rows, number;
    uint64_t writer[2]; /* the store's uuid */
    uint64_t check;
} es_chunk_header;

/* What came of a checkpoint in another store. */
typedef struct es_restored {
    uint64_t steps, steps_dropped;
    uint64_t items[64], items_dropped[64]; /* ES_MAX_TABLES, of the new tables */
    double min_diff[64], max_diff[64];     /* the limits that the old ones had last */
    uint8_t has_limits[64];                /* 1: the new ones have them, too */
} es_restored;

/* Where es_replay_peek() has looked: at so many of the first so many records of items, and found an item in so many. */
typedef struct es_peeked {
    uint64_t records, looked, found;
} es_peeked;

typedef struct es_table_info {
    uint64_t size, inserted, sampled, deleted, evicted, parked, episodes;
    uint64_t bytes;        /* all memory of the table: its part of the store, and what is derived from it */
    uint64_t drawn_before; /* items drawn for a batch that was cut short */
    double highest;        /* the highest priority so far */
    double effective_sample_size;
    /* Of a sampler that draws items by their weights: their sum; and the least positive one of all items, or 0. With
     * Uniform each is 1. Not a number: the sampler has no weights that can be compared with another table's. */
    double mass, least_weight;
    /* Their natural logarithms, also of Softmax, where a weight is exp(priority / temperature), which float64 may not hold.
     * log_mass is -INFINITY if no weight is positive, and least_log_weight INFINITY. */
    double log_mass, least_log_weight;
    double min_diff, max_diff;       /* of the limiter, now: es_replay_set_limits() */
    uint32_t can_sample, can_insert; /* one item, now */
    /* Of Softmax: the first one. Of HotCold: of the hot part and of the cold one. 0: the sampler has none. */
    double temperature[2], part_effective[2];
    uint64_t hot;         /* items of the hot part */
    uint64_t moved, aged; /* how many left the hot part for the cold one; how many went because of their age */
    uint64_t updates;     /* of the learner, so far */
} es_table_info;

#endif
