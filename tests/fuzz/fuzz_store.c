/* Opens stores of a replay that are damaged, or that change while they are read or used.
 *
 * The program of an input makes a good store, uses it, and damages it. What is left of the program uses the damaged
 * store, with rings or without, which may be damaged as well. A race writes to the store, or to the ring that brings
 * steps, at a chosen step of whoever reads or changes it.
 *
 * A store may be refused or accepted. All calls on an accepted one must end, stay inside its block, and return what
 * their headers allow.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_image.h"
#include "fuzz_store_custom.h"
#include "fuzz_store_rings.h"
#include "fuzz_store_shape.h"
#include "fuzz_store_steps.h"
#include "replay/es_replay.h"
#include "replay/es_replay_parts.h"
#include "replay/es_store.h"

/* Beside fuzz_mode. */
enum { DAMAGED = 16, RINGS = 32 };

#define NUM_RACES 4
#define RACE_BYTES 12
#define MAX_EDITS 24
#define MAX_CALLS 48
#define MAX_BATCH FUZZ_KEYS

/* --- races --------------------------------------------------------------------- */

static struct race {
    uint16_t step;
    uint16_t word;
    uint64_t value;
    bool in_ring;
} races[NUM_RACES];
static uint8_t *racing; /* NULL: no race */
static uint64_t racing_size, steps;
static fuzz_rings rings; /* those that are connected */

void fuzz_race(void);
void fuzz_race(void)
{
    if (racing == NULL)
        return;
    for (int i = 0; i < NUM_RACES; i++) {
        bool in_ring = races[i].in_ring && rings.steps.base != NULL;
        uint8_t *at = in_ring ? rings.steps.base : racing;
        uint64_t words = (in_ring ? rings.steps.size : racing_size) / 8;
        if (races[i].step == steps && words > 0)
            memcpy(at + races[i].word % words * 8, &races[i].value, 8);
    }
    steps++;
}

static void read_races(fuzz_in *in)
{
    racing = NULL;
    for (int i = 0; i < NUM_RACES; i++) {
        uint32_t low = fuzz_byte(in), high = fuzz_byte(in);
        races[i].step = (uint16_t)(low | high % 4 << 8);
        races[i].in_ring = high / 4 % 4 == 0;
        races[i].word = (uint16_t)(fuzz_byte(in) | fuzz_byte(in) << 8);
        races[i].value = fuzz_u64(in);
    }
}

/* --- calls ---------------------------------------------------------------------- */

/* Arrays of exactly n items of a table, so that the sanitizer sees an access past them. */
typedef struct batch {
    es_batch_arrays arrays;
    uint32_t num_outputs;
} batch;

static batch new_batch(es_replay *r, uint32_t table, uint64_t n)
{
    batch b = {.num_outputs = es_replay_num_outputs(r, table)};
    b.arrays.leaves = malloc(b.num_outputs * sizeof(void *));
    for (uint32_t o = 0; o < b.num_outputs; o++)
        b.arrays.leaves[o] = fuzz_block(n * es_replay_output_size(r, table, o));
    b.arrays.key = malloc(n * sizeof(uint64_t));
    b.arrays.probability = malloc(n * sizeof(double));
    b.arrays.priority = malloc(n * sizeof(double));
    b.arrays.weight = malloc(n * sizeof(double));
    b.arrays.times_sampled = malloc(n * sizeof(int64_t));
    b.arrays.table_size = malloc(n * sizeof(int64_t));
    b.arrays.age = malloc(n * sizeof(int64_t));
    b.arrays.version = malloc(n * sizeof(int64_t));
    return b;
}

static void free_batch(batch *b)
{
    for (uint32_t o = 0; o < b->num_outputs; o++)
        free(b->arrays.leaves[o]);
    free(b->arrays.leaves);
    free(b->arrays.key);
    free(b->arrays.probability);
    free(b->arrays.priority);
    free(b->arrays.weight);
    free(b->arrays.times_sampled);
    free(b->arrays.table_size);
    free(b->arrays.age);
    free(b->arrays.version);
}

/* Keys that were drawn, and others. */
typedef struct user {
    es_replay *r;
    uint32_t num_tables;
    uint64_t keys[MAX_BATCH];
    fuzz_chooser choosers[FUZZ_CHOOSERS];
    uint8_t *snapshot; /* of a store of columns; otherwise NULL */
    uint64_t snapshot_size;
} user;

static double priority(fuzz_in *in)
{
    static const double some[] = {0, 1, 2, 0.5, 1e300, 1e-300, 1e-320, 3};
    return some[fuzz_below(in, sizeof some / sizeof *some)];
}

static void check_added(const user *u, int error)
{
    FUZZ_CHECK(error == ES_OK || error == ES_REFUSED || error == ES_NO_ROOM || error == ES_EPRIORITY ||
               error == ES_ESELECTOR || error == ES_ETWICE || (error == ES_UNSYNCED && u->snapshot != NULL));
}

static void add(user *u, fuzz_in *in, uint64_t n)
{
    void *leaves[FUZZ_LEAVES];
    uint32_t num_leaves = fuzz_store_steps_new(u->r, n, leaves);
    double *priorities = malloc(n * u->num_tables * sizeof *priorities);
    uint8_t *flags = malloc(n);
    int error;
    es_trouble why;
    for (uint64_t i = 0; i < n * u->num_tables; i++) {
        uint32_t kind = fuzz_below(in, 8);
        priorities[i] = kind < 5 ? -1 : kind < 7 ? priority(in) : __builtin_nan("");
    }
    for (uint64_t i = 0; i < n; i++)
        flags[i] = fuzz_below(in, 8) == 0 ? ES_STEP_TERMINATED : 0;
    int64_t done = es_replay_extend(u->r, (const void *const *)leaves, n, flags, priorities, &error, &why);
    FUZZ_CHECK(done >= 0 && (uint64_t)done <= n && (error == ES_OK) == ((uint64_t)done == n));
    check_added(u, error);
    if (fuzz_below(in, 4) == 0) {
        uint32_t end = fuzz_below(in, 2) ? ES_STEP_TERMINATED : ES_STEP_TRUNCATED;
        error =
            es_replay_add_last(u->r, (const void *const *)leaves, (const void *const *)leaves, end, priorities, &why);
        check_added(u, error);
    }
    free(priorities);
    free(flags);
    fuzz_store_steps_free(leaves, num_leaves);
}

static void sample(user *u, fuzz_in *in, uint32_t table, uint64_t n)
{
    batch b = new_batch(u->r, table, n);
    int code = es_replay_sample(u->r, table, n, fuzz_below(in, 2) ? 0.5 : __builtin_nan(""), &b.arrays);
    FUZZ_CHECK(code == ES_OK || code == ES_SHORT || code == ES_ESELECTOR);
    if (code == ES_OK)
        memcpy(u->keys, b.arrays.key, n * sizeof *u->keys);
    if (code == ES_OK && fuzz_below(in, 8) == 0)
        FUZZ_CHECK(es_replay_put_back(u->r, table, n, &b.arrays) == ES_OK);
    free_batch(&b);
}

static void get(user *u, uint32_t table, uint64_t n)
{
    batch b = new_batch(u->r, table, n);
    es_trouble why;
    int code = es_replay_get(u->r, table, u->keys, n, 1, &b.arrays, &why);
    FUZZ_CHECK(code == ES_OK || code == ES_ESELECTOR || (code == ES_ENOITEM && why.index < n));
    free_batch(&b);
}

static void look(user *u)
{
    es_table_info info;
    for (uint32_t t = 0; t < u->num_tables; t++) {
        es_replay_info(u->r, t, &info);
        es_replay_can_sample(u->r, t, 3);
        es_replay_can_insert(u->r, t, 3);
        FUZZ_CHECK(info.parked + info.size <= UINT32_MAX);
    }
    es_replay_num_steps(u->r);
    FUZZ_CHECK(u->snapshot == NULL || es_replay_room(u->r) <= u->r->tables.store.step_slots);
}

/* A snapshot is made, or is done, or none is of use any more. */
static void sync(user *u, fuzz_in *in)
{
    uint32_t kind = fuzz_below(in, 8);
    if (kind < 4)
        FUZZ_CHECK(es_replay_snapshot(u->r, u->snapshot) <= u->snapshot_size);
    else if (kind < 7)
        es_replay_snapshot_done(u->r);
    else
        es_replay_hold(u->r, NULL);
}

static void set_limits(user *u, fuzz_in *in, uint32_t table)
{
    static const double some[] = {-INFINITY, -3, 0, 0.5, 6, 1e300, INFINITY, NAN};
    double low = some[fuzz_below(in, 8)], high = some[fuzz_below(in, 8)];
    int code = es_replay_set_limits(u->r, table, low, high);
    FUZZ_CHECK(code == ES_OK || code == -EINVAL || code == ES_ESELECTOR);
}

/* One call, drawn from the input. */
static void call(user *u, fuzz_in *in)
{
    uint32_t kind = fuzz_below(in, 18), table = fuzz_below(in, u->num_tables);
    uint64_t n = 1 + fuzz_below(in, kind < 12 ? 8 : MAX_BATCH);
    double priorities[MAX_BATCH];
    es_trouble why;
    if (kind < 4 || kind == 12) {
        add(u, in, n);
    } else if (kind == 4) {
        check_added(u, fuzz_store_steps_add_vector(u->r, in, n));
    } else if (kind < 8 || kind == 13) {
        sample(u, in, table, n);
    } else if (kind == 8) {
        for (uint64_t i = 0; i < n; i++)
            priorities[i] = priority(in);
        int64_t done = es_replay_update(u->r, table, u->keys, priorities, n, &why);
        FUZZ_CHECK((done >= 0 && done <= (int64_t)n) || done == ES_EPRIORITY || done == ES_ESELECTOR);
    } else if (kind == 9) {
        FUZZ_CHECK(es_replay_delete(u->r, table, u->keys, n) <= (int64_t)n);
    } else if (kind == 10) {
        get(u, table, n);
    } else if (kind == 11) {
        look(u);
    } else if (kind == 14 && u->snapshot != NULL) {
        sync(u, in);
    } else if (kind == 14) {
        u->keys[n - 1] = fuzz_value(in, u->keys[0]);
    } else if (kind == 15) {
        int code = es_replay_learned(u->r, table);
        FUZZ_CHECK(code == ES_OK || code == -EINVAL || code == ES_ESELECTOR);
    } else if (kind == 16) {
        set_limits(u, in, table);
    } else if (fuzz_below(in, 4) == 0) {
        int code = es_replay_reset(u->r, table);
        FUZZ_CHECK(code == ES_OK || code == ES_ESELECTOR);
    } else {
        es_replay_end_episode(u->r);
    }
}

/* --- stores ------------------------------------------------------------------------ */

static void close_store(user *u)
{
    es_replay_free(u->r);
    free(u->snapshot);
}

/* in: what its custom selectors do; NULL: they do well. num_custom: how many it has. */
static es_replay *open_store(uint8_t *base, uint64_t size, user *u, fuzz_in *in, uint32_t num_custom)
{
    int error;
    uint32_t num_leaves;
    es_trouble why;
    es_custom_selector calls[FUZZ_CHOOSERS];
    memset(u, 0, sizeof *u);
    fuzz_make_choosers(u->choosers, calls, in);
    u->r = es_replay_open(base, size, 7, calls, num_custom, &error, &why);
    FUZZ_CHECK((u->r != NULL) == (error == ES_OK));
    if (u->r != NULL)
        es_replay_shape(u->r, &u->num_tables, &num_leaves);
    if (u->r != NULL && u->r->tables.store.is_columns) {
        u->snapshot_size = (uint64_t)(u->r->tables.store.rows - base);
        u->snapshot = fuzz_block(u->snapshot_size);
    }
    return u->r;
}

/* Uses a store as long as the input says how. scribble: others write to it between two calls. */
static void use(uint8_t *base, uint64_t size, fuzz_in *in, bool scribble, bool with_rings, uint32_t num_custom)
{
    user u;
    if (open_store(base, size, &u, in, num_custom) == NULL)
        return;
    if (u.snapshot != NULL && fuzz_below(in, 2)) { /* the last snapshot, which may be damaged as well */
        memcpy(u.snapshot, base, u.snapshot_size);
        fuzz_store_edit(in, u.snapshot, u.snapshot_size);
        es_replay_hold(u.r, u.snapshot);
    }
    if (with_rings)
        fuzz_rings_open(&rings, u.r, base, size, in);
    look(&u);
    for (int calls = 0; calls < MAX_CALLS && !fuzz_done(in); calls++) {
        if (scribble && fuzz_below(in, 4) == 0)
            fuzz_store_edit(in, base, size);
        if (with_rings && fuzz_below(in, 4) > 0)
            fuzz_rings_call(&rings, in, u.keys);
        else
            call(&u, in);
    }
    look(&u);
    close_store(&u);
    fuzz_rings_close(&rings);
}

/* Whatever the store is: it stays inside, and finds nothing that is no priority. */
static void peek(const uint8_t *base, uint64_t size, uint32_t table)
{
    double priorities[32];
    es_peeked seen;
    if (es_replay_peek(base, size, table, priorities, 32, &seen) != ES_OK)
        return;
    FUZZ_CHECK(seen.found <= seen.looked && seen.looked <= 32 && seen.looked <= seen.records);
    for (uint64_t i = 0; i < seen.found; i++)
        FUZZ_CHECK(priorities[i] >= 0 && priorities[i] < INFINITY);
}

static void describe(const uint8_t *base, uint64_t size)
{
    es_store_geometry geo = {0};
    uint8_t uuid[16];
    int64_t pid, created;
    es_replay_describe(base, size, &geo, uuid, &pid, &created, NULL, 0, NULL, 0);
    uint64_t room = geo.schema_size < 4096 ? geo.schema_size : 4096;
    uint32_t count = geo.num_tables < 8 ? geo.num_tables : 8;
    uint8_t *schema = fuzz_block(room);
    es_table_config *tables = malloc((count + 1) * sizeof *tables);
    es_replay_describe(base, size, &geo, uuid, &pid, &created, schema, room, tables, count);
    free(tables);
    free(schema);
    for (uint32_t table = 0; table <= count; table++)
        peek(base, size, table);
}

static void open_and_use(uint8_t *base, uint64_t size, fuzz_in *in, uint8_t mode)
{
    racing = mode & RACES ? base : NULL;
    racing_size = size;
    steps = 0;
    uint8_t *before = fuzz_block(size);
    memcpy(before, base, size);
    int rc = es_replay_check(base, size);
    describe(base, size);
    FUZZ_CHECK(racing != NULL || memcmp(before, base, size) == 0); /* looking changes nothing */
    free(before);
    if (rc == ES_OK || racing != NULL) {
        use(base, size, in, (mode & DAMAGED) != 0, (mode & RINGS) != 0, FUZZ_CHOOSERS);
        racing = NULL;
        fuzz_in none = {in->end, in->end};
        /* whoever comes next may refuse it */
        use(base, size, &none, false, false, mode & FIT_HASH ? 0 : FUZZ_CHOOSERS);
    }
    racing = NULL;
}

/* --- inputs ------------------------------------------------------------------------- */

/* A good store that was used, by so many calls of the input. */
static uint8_t *used_store(fuzz_in *in, uint64_t *size)
{
    uint8_t *base = fuzz_draw_store(in, size);
    user u;
    FUZZ_CHECK(open_store(base, *size, &u, in, FUZZ_CHOOSERS) != NULL);
    for (uint32_t calls = fuzz_below(in, 24); calls > 0; calls--)
        call(&u, in);
    close_store(&u);
    return base;
}

static uint8_t *damaged(fuzz_in *in, uint8_t mode, uint64_t *size)
{
    uint8_t *base = used_store(in, size);
    if (mode & (FIT_OFFSETS | FIT_HASH | RACES) || fuzz_below(in, 4) > 0) {
        user u; /* undamaged, it can be opened again */
        FUZZ_CHECK(open_store(base, *size, &u, NULL, FUZZ_CHOOSERS) != NULL);
        close_store(&u);
    }
    for (uint32_t edits = fuzz_below(in, MAX_EDITS); edits > 0; edits--)
        fuzz_store_edit(in, base, *size);
    if (mode & (FIT_OFFSETS | FIT_HASH))
        base = fuzz_repaired(base, size, (mode & FIT_OFFSETS) != 0, UINT64_MAX);
    if (fuzz_byte(in) >= 240)
        base = fuzz_resized(base, size, *size - fuzz_below(in, 64) % *size);
    return base;
}

const fuzz_images fuzz_target = {
    .body_at = 1 + NUM_RACES * RACE_BYTES,
    .header = sizeof(es_store_header),
    .max_edits = 6,
    .program_step = 8,
    .read_races = read_races,
    .good = used_store,
    .damaged = damaged,
    .edit = fuzz_store_edit,
    .repair = fuzz_store_repair,
    .use = open_and_use,
};
