/* Replays whose store has columns, that are killed while rows are held: for a snapshot, and for a checkpoint.
 *
 * The store, two snapshots and their numbers outlive the process, as files do. After each death two things are looked
 * at. The store is that of a replay that nobody killed, and that has added some of the steps. And the snapshot with the
 * highest number, with the rows as they are now, is the store as it was when that snapshot was made: before and after
 * whoever opens the store has held its rows, and added steps.
 *
 * The process is killed only at instructions that have changed the store or a number. A snapshot that does not count yet
 * may have any bytes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "es_configs.h"
#include "es_everywhere.h"
#include "es_test.h"
#include "es_vault.h"
#include "replay/es_checkpoint.h"
#include "replay/es_replay_parts.h"

#define CAPACITY 4
#define SPARE 4
#define MOST_ADDED 7
#define MOST_PATH 80000u
#define LATER 4 /* steps that whoever opens the store adds */

static const uint64_t leaf_sizes[] = {8, 40};
/* The newest items go, so that a step which came after a snapshot goes soon; or the oldest. */
static const es_table_config newest_go[] = {TABLE("a", ES_UNIFORM, ES_LIFO, 3), TABLE("b", ES_FIFO, ES_LIFO, 2)};
static const es_table_config oldest_go[] = {TABLE("a", ES_UNIFORM, ES_FIFO, 3), TABLE("b", ES_FIFO, ES_UNIFORM, 2)};

typedef struct es_shared {
    _Atomic uint32_t phase;
    uint64_t number[2]; /* of each snapshot; 0: it does not count */
    uint32_t saved;     /* the checkpoint is complete */
    es_dump at[2];      /* the store when each was made */
    es_dump added[MOST_ADDED + 1];
    es_dump found;
} es_shared;

typedef struct holding {
    es_vault v;
    es_shared *side;
    uint8_t *first, *last; /* what the store has before the operation; had at the last instruction */
    uint8_t *snapshot[2], *first_snapshot, *spare;
    uint64_t records_size;
    es_shared began; /* the numbers before the operation */
    uint64_t last_number[2];
    bool *changed; /* by instruction of the path */
    const es_table_config *tables;
    void (*act)(struct holding *h);
    uint32_t num_added; /* by the whole operation */
    es_save *save;
    int directory;
    bool holds_nothing; /* no snapshot counts */
    bool dumps;         /* note the store after each step */
    uint32_t so_far;
} holding;

static void *shared(uint64_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        abort();
    return p;
}

/* --- parts of operations ----------------------------------------------------------------- */

static void note_added(holding *h)
{
    if (h->dumps) {
        h->side->added[h->so_far].count = 0;
        es_dump_store(&h->side->added[h->so_far], h->v.base, h->v.size);
    }
}

static void add(holding *h)
{
    CHECK_EQ(vault_add(&h->v, 0, (const double[]){1, 2}), ES_OK);
    h->so_far++;
    note_added(h);
}

/* As Snapshots.write() does: into the older one. */
static void take_snapshot(holding *h, uint32_t which)
{
    es_replay_snapshot(h->v.r, h->snapshot[which]);
}

static void finish_snapshot(holding *h, uint32_t which)
{
    uint64_t other = h->side->number[1 - which];
    *(volatile uint64_t *)&h->side->number[which] = other + 1;
    es_replay_snapshot_done(h->v.r);
}

static void write_rows(holding *h)
{
    es_chunk_header header;
    while (es_checkpoint_take(h->v.r, h->save))
        CHECK(es_checkpoint_write(h->save) > 0);
    CHECK_EQ(es_checkpoint_end(h->v.r, h->save), ES_OK);
    for (uint64_t i = 0; i < es_checkpoint_num_chunks(h->save); i++)
        CHECK_EQ(es_checkpoint_finish(h->save, i, &header), ES_OK);
    *(volatile uint32_t *)&h->side->saved = 1;
}

/* --- what is left ----------------------------------------------------------------------------- */

static es_replay *open_at(holding *h, uint8_t *base)
{
    int error;
    es_trouble why;
    es_replay *r = es_replay_open(base, h->v.size, VAULT_STREAM, NULL, 0, &error, &why);
    CHECK_EQ(error, ES_OK);
    return r;
}

static es_dump *dump_of(holding *h, const uint8_t *base)
{
    h->side->found.count = 0;
    es_dump_store(&h->side->found, base, h->v.size);
    return &h->side->found;
}

static int newest(const holding *h)
{
    const uint64_t *number = h->side->number;
    return number[0] == 0 && number[1] == 0 ? -1 : number[1] > number[0];
}

/* The newest snapshot, with these rows, is what the store was. */
static bool snapshot_is_whole(holding *h, const uint8_t *rows)
{
    int which = newest(h);
    if (which < 0)
        return true;
    memcpy(h->spare, h->snapshot[which], h->records_size);
    memcpy(h->spare + h->records_size, rows + h->records_size, h->v.size - h->records_size);
    es_replay *r = open_at(h, h->spare);
    if (r == NULL)
        return false;
    es_replay_free(r);
    return CHECK(es_dump_same(dump_of(h, h->spare), &h->side->at[which]));
}

/* Opens the store as the next process does, and goes on. */
static bool goes_on(holding *h)
{
    uint32_t least = UINT32_MAX;
    holding next = *h;
    next.v.base = h->last;
    memcpy(h->last, h->v.base, h->v.size);
    next.v.r = open_at(&next, h->last);
    if (next.v.r == NULL)
        return false;
    dump_of(h, h->last);
    for (uint32_t i = 0; i <= h->num_added; i++)
        if (!es_dump_differ(&h->side->found, &h->side->added[i]))
            least = i;
    if (!CHECK(least != UINT32_MAX))
        es_dump_same(&h->side->found, &h->side->added[0]);
    if (newest(h) >= 0)
        es_replay_hold(next.v.r, h->snapshot[newest(h)]);
    for (int i = 0; i < LATER; i++) {
        int code = vault_add(&next.v, 0, (const double[]){1, 2});
        CHECK(code == ES_OK || (code == ES_UNSYNCED && newest(h) >= 0));
    }
    vault_close(&next.v);
    return least != UINT32_MAX && snapshot_is_whole(h, h->last);
}

/* Restores a complete checkpoint: it has the store as it was when it began. */
static void check_checkpoint(holding *h)
{
    es_restored restored;
    es_trouble why;
    uint64_t size = h->records_size, position = 0;
    int records = openat(h->directory, "records", O_RDONLY);
    uint8_t *copy = malloc(size);
    int64_t n;
    CHECK_EQ(read(records, copy, size), (int64_t)size);
    close(records);
    memset(h->spare, 0, h->v.size);
    es_vault to = h->v;
    to.base = h->spare;
    CHECK_EQ(vault_format(&to), ES_OK);
    CHECK_EQ(es_checkpoint_records(to.base, to.size, copy, size, (int32_t[]){0, 1}, &restored, &why), ES_OK);
    while ((n = es_checkpoint_rows(to.base, to.size, h->directory, 100, &position, 1000, &why)) > 0)
        ;
    CHECK_EQ(n, 0);
    es_replay *r = open_at(h, h->spare);
    if (r != NULL)
        es_replay_free(r);
    CHECK(es_dump_same(dump_of(h, h->spare), &h->side->added[0]));
    free(copy);
}

/* --- es_everywhere ------------------------------------------------------------------------------- */

static void be_killed(holding *h)
{
    tracee_begin();
    raise(SIGSTOP);
    h->side->phase = PHASE_INSIDE;
    h->act(h);
    h->side->phase = PHASE_OVER;
    raise(SIGSTOP);
    for (;;)
        pause();
}

static void reset(holding *h)
{
    memcpy(h->v.base, h->first, h->v.size);
    memcpy(h->snapshot[0], h->first_snapshot, h->records_size);
    memset(h->snapshot[1], 0, h->records_size);
    memcpy(h->side->number, h->began.number, sizeof h->side->number);
    h->side->saved = 0;
    h->side->phase = PHASE_BEFORE;
    unlinkat(h->directory, "rows-0000000000000000", 0);
}

static bool start(void *world, es_tracee *t)
{
    holding *h = world;
    reset(h);
    memcpy(h->last, h->first, h->v.size);
    memcpy(h->last_number, h->began.number, sizeof h->last_number);
    pid_t child = fork();
    if (child == 0)
        be_killed(h);
    return tracee_attach(t, child);
}

static enum phase phase_of(const void *world)
{
    return ((const holding *)world)->side->phase;
}

static void look(void *world, uint32_t n)
{
    holding *h = world;
    bool same = memcmp(h->last, h->v.base, h->v.size) == 0 &&
                memcmp(h->last_number, h->side->number, sizeof h->last_number) == 0;
    if (!CHECK(n < MOST_PATH))
        return;
    h->changed[n] = !same;
    if (!same) {
        memcpy(h->last, h->v.base, h->v.size);
        memcpy(h->last_number, h->side->number, sizeof h->last_number);
    }
}

static bool leaves_more(void *world, uint32_t n)
{
    return ((const holding *)world)->changed[n];
}

static unsigned finish(void *world, es_tracee *t, uint32_t n)
{
    holding *h = world;
    (void)n;
    tracee_kill(t);
    if (snapshot_is_whole(h, h->v.base))
        goes_on(h);
    if (h->side->saved)
        check_checkpoint(h);
    return h->side->saved ? 2 : 1;
}

static void abandon(void *world)
{
    (void)world;
}

/* --- scenarios ------------------------------------------------------------------------------------- */

/* What nobody kills becomes. */
static void make_references(holding *h)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        h->dumps = true;
        note_added(h);
        h->act(h);
        _exit(es_test_failures() != 0 || h->so_far != h->num_added);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static int new_directory(char *path)
{
    CHECK(mkdtemp(path) != NULL);
    return open(path, O_RDONLY | O_DIRECTORY);
}

static int new_file(int directory, const char *name)
{
    return openat(directory, name, O_RDWR | O_CREAT, 0600);
}

/* The first snapshot has steps that are gone by now. A checkpoint begins, if saving. */
static void prepare(holding *h, bool saving)
{
    es_store_geometry geo = {.capacity = CAPACITY,
                             .max_items = ANY,
                             .seed = 7,
                             .num_tables = 2,
                             .num_leaves = 2,
                             .schema_size = 8,
                             .columns = 1,
                             .spare = SPARE};
    vault_plan(&h->v, &geo, leaf_sizes, h->tables);
    h->records_size =
        es_replay_records_size(&geo, &(es_store_parts){leaf_sizes, h->v.tables, h->v.outputs, "a schema"});
    h->v.base = shared(h->v.size);
    h->side = shared(sizeof *h->side);
    h->first = shared(h->v.size);
    h->last = shared(h->v.size);
    h->spare = shared(h->v.size);
    h->snapshot[0] = shared(h->records_size);
    h->snapshot[1] = shared(h->records_size);
    h->first_snapshot = shared(h->records_size);
    h->changed = shared(MOST_PATH);
    CHECK_EQ(vault_format(&h->v), ES_OK);
    vault_open(&h->v, VAULT_STREAM);
    vault_add_some(&h->v, 5);
    take_snapshot(h, 0);
    es_dump_store(&h->side->at[0], h->v.base, h->v.size);
    finish_snapshot(h, 0);
    if (h->holds_nothing) {
        h->side->number[0] = 0;
        es_replay_hold(h->v.r, NULL);
    }
    vault_add_some(&h->v, 2);
    es_dump_store(&h->side->at[1], h->v.base, h->v.size);
    if (saving) {
        int error;
        es_save_state state;
        es_save_config config = {.directory = h->directory,
                                 .records = new_file(h->directory, "records"),
                                 .drawn = new_file(h->directory, "drawn"),
                                 .rows = 100};
        h->save = es_checkpoint_begin(h->v.r, &config, &state, &error);
        CHECK_EQ(error, ES_OK);
        close(config.records);
        close(config.drawn);
    }
    memcpy(h->first, h->v.base, h->v.size);
    memcpy(h->first_snapshot, h->snapshot[0], h->records_size);
    memcpy(h->began.number, h->side->number, sizeof h->began.number);
}

static void forget(holding *h)
{
    if (h->save != NULL) {
        es_checkpoint_end(h->v.r, h->save);
        es_checkpoint_free(h->save);
    }
    if (h->v.r != NULL)
        vault_close(&h->v);
    munmap(h->v.base, h->v.size);
    munmap(h->side, sizeof *h->side);
    munmap(h->first, h->v.size);
    munmap(h->last, h->v.size);
    munmap(h->spare, h->v.size);
    munmap(h->snapshot[0], h->records_size);
    munmap(h->snapshot[1], h->records_size);
    munmap(h->first_snapshot, h->records_size);
    munmap(h->changed, MOST_PATH);
}

static void kill_everywhere(holding *h, const char *name, bool saving, unsigned outcomes, const char *through)
{
    char path[] = "/dev/shm/trace-hold-XXXXXX";
    h->directory = new_directory(path);
    prepare(h, saving);
    if (!saving) /* whoever opens it is killed, too */
        vault_close(&h->v);
    make_references(h);
    es_everywhere e = {.name = name,
                       .world = h,
                       .start = start,
                       .phase = phase_of,
                       .look = look,
                       .leaves_more = leaves_more,
                       .finish = finish,
                       .abandon = abandon,
                       .outcomes = outcomes,
                       .through = through};
    if (es_test_failures() == 0)
        es_everywhere_kill(&e);
    reset(h);
    unlinkat(h->directory, "records", 0);
    unlinkat(h->directory, "drawn", 0);
    close(h->directory);
    rmdir(path);
    forget(h);
}

static void snapshot_and_add(holding *h)
{
    take_snapshot(h, 1);
    add(h);
    add(h);
    finish_snapshot(h, 1);
    add(h);
    add(h);
    write_rows(h);
}

/* Each step evicts, and its row was that of one that a snapshot or the checkpoint has. */
TEST(hold_while_a_snapshot_and_a_checkpoint_are_made)
{
    static holding h = {.tables = newest_go, .act = snapshot_and_add, .num_added = 4};
    kill_everywhere(&h, "hold_for_a_snapshot", true, 3,
                    "es_replay_snapshot es_snapshot_take es_hold_begin es_hold_enter es_hold_leave es_steps_next "
                    "es_replay_snapshot_done es_hold_end es_save_before es_save_take es_save_write");
}

static void open_hold_and_drop(holding *h)
{
    vault_open(&h->v, VAULT_STREAM);
    es_replay_hold(h->v.r, h->snapshot[0]);
    take_snapshot(h, 1); /* it is never done */
    add(h);
    add(h);
    h->side->number[0] = 0;
    ES_COMPILER_BARRIER();
    es_replay_hold(h->v.r, NULL);
    CHECK_EQ(es_replay_room(h->v.r) + es_replay_num_steps(h->v.r), CAPACITY + 2 + SPARE);
    add(h);
    add(h);
}

/* As without syncs: the next process holds what the last snapshot has, until it needs the rows. */
TEST(hold_by_whoever_opens_the_store)
{
    static holding h = {.tables = oldest_go, .act = open_hold_and_drop, .num_added = 4};
    kill_everywhere(&h, "hold_by_the_next_one", false, 1,
                    "es_replay_hold es_snapshot_hold es_hold_add es_hold_drop es_hold_init");
}

static void add_and_save(holding *h)
{
    while (h->so_far < h->num_added)
        add(h);
    write_rows(h);
}

/* Slots are used again whose rows the checkpoint does not have yet. */
TEST(a_checkpoint_has_rows_that_change)
{
    static holding h = {.tables = newest_go, .act = add_and_save, .num_added = MOST_ADDED, .holds_nothing = true};
    kill_everywhere(&h, "checkpoint_before_a_row", true, 3, "es_save_before es_chunk_write_row es_gather_pack");
}
