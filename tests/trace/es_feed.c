/* Kills the process of a replay at the instructions of a scenario, as es_everywhere.c says, with fresh rings and a fresh
 * copy of the store for each kill.
 *
 * What survives is what the store and the rings hold. So the process is killed only where it has just written into one
 * of them: elsewhere a death leaves what it left one instruction before. Only where an operation makes system calls,
 * which change lock bytes, is it killed before each instruction.
 *
 * The tracer is the next replay. It attaches to the rings, reaps the dead one, opens the store, connects the rings, and
 * uses what they still bring. Then all space of the rings must be there: another lap is sent and used. All that the
 * store then holds, and all that its replay answers in a further life, is the same, number by number (es_dump), as of a
 * replay that went through the same without a death.
 *
 * A block of updates is made again as a whole when its replay was killed within it. Each change has a number of its own,
 * so the reference for such a death has made the first changes of the block once more, before it begins.
 */
#define _GNU_SOURCE
#include "es_feed.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "es_everywhere.h"
#include "es_tracee.h"
#include "es_valid.h"
#include "replay/es_draw.h"
#include "replay/es_inbox.h"
#include "replay/es_insert.h"
#include "replay/es_outbox.h"
#include "replay/es_replay_parts.h"

#define MAX_PATH 80000u
#define WORKER 9 /* the stream of the steps that are sent */
#define MANY 1000

static const uint64_t small_leaves[] = {8, 24, 0};
static const uint8_t uuids[FEED_RINGS][16] = {"the inbox's ring", "updates' ring", "batches of one", "batches of two"};
static const uint8_t other_uuids[FEED_RINGS][16] = {"another inbox", "others' updates", "others' one", "others' two"};

typedef struct es_side {
    _Atomic uint32_t phase;
} es_side;

typedef struct killing {
    es_feed f;
    const es_feeding *s;
    es_side *side;                   /* shared with the tracee, as the store and the rings are */
    uint8_t *first;                  /* the store before the operation */
    uint64_t arrived;                /* steps in it, so far */
    uint8_t *seen_store;             /* before the instruction that was recorded last */
    uint8_t *seen_rings[FEED_RINGS]; /* the same */
    bool writes[MAX_PATH];           /* whether the instruction before the n-th has written */
    es_dump found;                   /* of a replay that goes on after a death */
    es_dump references[FEED_PARTS + 1];
    uint32_t parts_seen; /* bits */
} killing;

static killing the_killing;

static void *must(void *p)
{
    if (p == NULL || p == MAP_FAILED)
        abort();
    return p;
}

static void *shared(uint64_t size)
{
    return must(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

/* --- senders ----------------------------------------------------------------------- */

/* A step as it lies in the inbox. */
static int send_step(es_feed *f, uint32_t flags, const double *priorities)
{
    struct {
        es_inbox_head head;
        uint8_t rest[VAULT_TABLES * sizeof(double) + VAULT_LEAVES * sizeof(es_item_column)];
    } brought = {
        .head = {.stream = WORKER, .number = f->sent, .index = f->index, .episode = f->episode, .flags = flags}};
    const void *leaves[VAULT_LEAVES + 1] = {&brought};
    memcpy(brought.rest, priorities, f->v.geo.num_tables * sizeof *priorities);
    f->v.made = 100 + f->sent;
    vault_make(&f->v, 1, leaves + 1);
    es_age_set_version(f->others[FEED_STEPS], 1 + (int64_t)f->sent, true);
    int code = es_api_send(f->others[FEED_STEPS], (void **)leaves);
    bool ends = flags & (ES_STEP_TERMINATED | ES_STEP_TRUNCATED | ES_STEP_LOST);
    if (code == ES_OK)
        f->sent++, f->index = ends ? 0 : f->index + 1, f->episode += ends;
    return code;
}

void feed_step(es_feed *f, uint32_t flags, const double *priorities)
{
    bool good = true;
    CHECK_EQ(send_step(f, flags, priorities), ES_OK);
    for (uint32_t t = 0; t < f->v.geo.num_tables; t++)
        good = good && !isinf(priorities[t]);
    f->good += good;
}

void feed_item(es_feed *f, uint32_t table, uint32_t length, double priority)
{
    struct {
        es_inbox_head head;
        uint8_t rest[VAULT_TABLES * sizeof(double) + VAULT_LEAVES * sizeof(es_item_column)];
    } brought = {
        .head = {.stream = WORKER, .number = f->sent - 1, .index = length, .episode = table, .flags = ES_HEAD_ITEM}};
    const void *leaves[VAULT_LEAVES + 1] = {&brought};
    uint64_t columns_at = f->v.geo.num_tables * sizeof priority;
    memcpy(brought.rest + table * sizeof priority, &priority, sizeof priority);
    for (uint32_t l = 0; l < f->v.geo.num_leaves; l++) {
        es_item_column column = {l % length, 1};
        memcpy(brought.rest + columns_at + l * sizeof column, &column, sizeof column);
    }
    vault_make(&f->v, 1, leaves + 1);
    CHECK_EQ(es_api_send(f->others[FEED_STEPS], (void **)leaves), ES_OK);
}

static int send_updates(es_feed *f, const es_update_block *block)
{
    return es_api_send(f->others[FEED_UPDATES], (void *[]){(void *)block});
}

void feed_updates(es_feed *f, uint32_t table, uint32_t kind, uint64_t n, const uint64_t *keys, const double *priorities)
{
    es_update_block block = {.table = table, .kind = kind, .n = n};
    memcpy(block.keys, keys, n * sizeof *keys);
    memcpy(block.priorities, priorities, n * sizeof *priorities);
    CHECK_EQ(send_updates(f, &block), ES_OK);
}

/* Fills both rings. What was used before must have been released. */
static void send_a_lap(es_feed *f)
{
    uint64_t full, in[FEED_SOURCES] = {0};
    for (int i = 0; i < FEED_SOURCES; i++)
        CHECK_EQ(es_monitor_count_committed(f->mine[i], &full), 0);
    while (in[FEED_STEPS] < MANY && send_step(f, 0, (const double[VAULT_TABLES]){-1, 2, 0.5}) == ES_OK)
        in[FEED_STEPS]++;
    while (in[FEED_UPDATES] < MANY && send_updates(f, &(es_update_block){.n = 0}) == ES_OK)
        in[FEED_UPDATES]++;
    for (int i = 0; i < FEED_SOURCES; i++)
        CHECK_EQ(in[i], f->fix[i]->geo.num_batches);
}

/* --- learners ---------------------------------------------------------------------- */

/* Whether the scenario has that ring. */
static bool has(const es_feed *f, int ring)
{
    return ring < FEED_BATCHES || f->boxes[ring - FEED_BATCHES].batch_size > 0;
}

/* Takes all batches that are complete, and notes what is in them. */
static void take_batches(es_feed *f)
{
    for (int i = FEED_BATCHES; i < FEED_RINGS; i++) {
        es_snapshot snap;
        while (has(f, i) && es_api_take(f->others[i], 0, 0, &snap) >= 0) {
            es_dump_note(f->v.dump, "batch", (uint64_t)i, snap.round * f->fix[i]->geo.num_batches + snap.batch);
            for (uint32_t l = 0; l < f->fix[i]->geo.num_leaves; l++) {
                uint64_t size = es_api_leaf_size(f->others[i], l) * f->fix[i]->geo.batch_size;
                const uint8_t *at = (const uint8_t *)f->fix[i]->base + es_api_leaf_offset(f->others[i], l);
                es_dump_note_bytes(f->v.dump, "a leaf of a batch", l, at + snap.batch * size, size);
            }
            CHECK_EQ(es_api_release(f->others[i], snap.batch, snap.round), ES_OK);
        }
    }
}

/* --- a replay ----------------------------------------------------------------------- */

static void sweep(es_ring *by)
{
    es_identity id;
    for (int64_t i = es_sweep_next_dead(by, 0, &id); i >= 0; i = es_sweep_next_dead(by, (uint32_t)i + 1, &id))
        CHECK(es_sweep_settle(by, &id, 1) >= 0);
}

/* Attaches to the rings, and opens the store. */
static void enter(es_feed *f)
{
    for (int i = 0; i < FEED_RINGS; i++) {
        if (!has(f, i))
            continue;
        f->mine[i] = fix_join(f->fix[i], f->locks[i], i < FEED_BATCHES ? ES_ROLE_LEARNER : ES_ROLE_PRODUCER, 0);
        sweep(f->mine[i]);
        CHECK_STR(es_valid(f->mine[i]), NULL);
    }
    vault_open(&f->v, VAULT_STREAM);
}

static void connect_as(es_feed *f, const uint8_t uuid[FEED_RINGS][16])
{
    CHECK_EQ(es_replay_connect_inbox(f->v.r, f->mine[FEED_STEPS], f->fix[FEED_STEPS]->base, uuid[FEED_STEPS]), ES_OK);
    CHECK_EQ(es_replay_connect_updates(f->v.r, f->mine[FEED_UPDATES], f->fix[FEED_UPDATES]->base, uuid[FEED_UPDATES]),
             ES_OK);
    for (int i = FEED_BATCHES; i < FEED_RINGS; i++) {
        const es_feed_box *box = &f->boxes[i - FEED_BATCHES];
        if (!has(f, i))
            continue;
        CHECK_EQ(es_replay_connect_batches(f->v.r, box->table, f->mine[i], f->fix[i]->base, uuid[i], box->rank,
                                           box->world_size),
                 i - FEED_BATCHES);
        f->v.r->rings.outboxes[i - FEED_BATCHES].streams = box->streams;
    }
}

void feed_connect(es_feed *f)
{
    connect_as(f, uuids);
}

void feed_turn(es_feed *f)
{
    es_turn turn;
    es_replay_turn(f->v.r, MANY, &turn);
}

void feed_leave(es_feed *f)
{
    es_replay_disconnect(f->v.r);
    for (int i = 0; i < FEED_RINGS; i++)
        if (has(f, i))
            es_api_detach(f->mine[i]);
}

/* Ends a replay that has let go of the rings. */
static void end_life(es_feed *f)
{
    vault_close(&f->v);
    for (int i = 0; i < FEED_RINGS; i++)
        if (has(f, i))
            es_api_free(f->mine[i]);
}

/* Uses all that the rings bring. A draw lets the next item in where a limiter holds it back. */
static void use_all(es_feed *f)
{
    es_turn turn;
    do
        while (es_replay_turn(f->v.r, MANY, &turn) > 0)
            ;
    while (turn.steps == ES_REFUSED && vault_sample(&f->v, 0, 1) == ES_OK);
}

/* Whoever goes on with the store and the rings: nobody can tell whether a replay died before. */
static void go_on(killing *k, es_dump *d)
{
    es_feed *f = &k->f;
    d->count = 0;
    f->v.dump = d;
    use_all(f);
    CHECK_EQ(((const es_tables *)f->v.r)->store.hdr->arrivals, k->arrived + f->good);
    es_dump_store(d, f->v.base, f->v.size);
    take_batches(f);
    send_a_lap(f);
    use_all(f);
    take_batches(f);
    vault_live(&f->v);
    f->v.dump = NULL;
}

/* Stores steps as es_inbox_store() does, takes one more, and dies before it releases any. */
static void use_and_die(es_feed *f, uint64_t used)
{
    es_inbox in = {.refused = 0};
    es_tables *m = (es_tables *)f->v.r;
    es_trouble why;
    int code;
    es_inbox_open_steps(&in, m, f->mine[FEED_STEPS], f->fix[FEED_STEPS]->base, uuids[FEED_STEPS]);
    for (uint64_t i = 0; i < used; i++) {
        const void *const *leaves = es_source_next(&in.steps, &code);
        const es_inbox_head *h = leaves[0];
        es_step_head head = {.stream = h->stream,
                             .number = h->number,
                             .version = es_steps_version(in.steps.version),
                             .index = h->index,
                             .episode = h->episode,
                             .flags = h->flags};
        es_origin origin = {es_source_word(&in.steps), es_source_value(&in.steps)};
        if (es_insert_step(m, &head, leaves + 1, 0, (const double *)(h + 1), &origin, &why) != ES_OK)
            _exit(1);
        es_source_used(&in.steps);
    }
    if (es_source_next(&in.steps, &code) == NULL)
        _exit(1);
    kill(getpid(), SIGKILL);
}

/* Draws items as es_outbox_fill() does, claims one place more, and dies before it commits any. */
static void draw_and_die(es_feed *f, uint64_t drawn)
{
    es_tables *m = (es_tables *)f->v.r;
    es_outbox box;
    int64_t position, last;
    int ring = FEED_BATCHES;
    if (es_outbox_open(&box, &m->table[f->boxes[0].table], f->mine[ring], f->fix[ring]->base, uuids[ring],
                       f->boxes[0].rank, f->boxes[0].world_size, NULL, 0) != ES_OK ||
        es_api_reserve(f->mine[ring], 0, &position) != ES_OK ||
        es_api_reserve_many(f->mine[ring], drawn, &last) != (int64_t)drawn || last != position + 1)
        _exit(1);
    void *c[ES_BATCH_COLUMNS];
    for (uint32_t i = 0; i < ES_BATCH_COLUMNS; i++)
        c[i] = f->fix[ring]->base + es_api_leaf_offset(f->mine[ring], box.table->form.num_outputs + i);
    es_drawing columns = {c[0], c[1], c[3], c[2], c[4], c[5], c[6], c[7]};
    es_draw_into into = {box.leaves, 0.4, &box.words->drawn, (uint64_t)position, box.streams};
    if (es_draw(box.table, drawn, &columns, (uint64_t)position, &into) != (int64_t)drawn)
        _exit(1);
    kill(getpid(), SIGKILL);
}

/* --- worlds -------------------------------------------------------------------------- */

static void own_locks(es_feed *f)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < FEED_RINGS; i++)
        if (has(f, i))
            f->locks[i] = fix_own_locks(f->fix[i]);
}

static void open_rings(es_feed *f)
{
    for (int i = 0; i < FEED_RINGS; i++) {
        if (!has(f, i))
            continue;
        fix_again(f->fix[i]);
        f->locks[i] = f->fix[i]->locks;
        f->others[i] = fix_join(f->fix[i], f->locks[i], i < FEED_BATCHES ? ES_ROLE_PRODUCER : ES_ROLE_LEARNER, 0);
    }
    f->sent = f->good = 0;
    f->index = f->episode = 0;
}

static void close_rings(es_feed *f)
{
    for (int i = 0; i < FEED_RINGS; i++) {
        if (!has(f, i))
            continue;
        es_api_detach(f->others[i]);
        CHECK_EQ(es_locks_any(f->locks[i]), 0);
        es_api_free(f->others[i]);
    }
}

static void open_world(killing *k)
{
    es_feed *f = &k->f;
    memcpy(f->v.base, k->first, f->v.size);
    open_rings(f);
    if (k->s->send != NULL)
        k->s->send(f);
    if (k->s->used == 0 && k->s->drawn == 0)
        return;
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        own_locks(f);
        enter(f);
        if (k->s->drawn > 0)
            draw_and_die(f, k->s->drawn);
        use_and_die(f, k->s->used);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
}

static void abandon(void *world)
{
    close_rings(&((killing *)world)->f);
}

/* --- the tracee ---------------------------------------------------------------------- */

/* Up to the operation. */
static void arrive(killing *k)
{
    enter(&k->f);
    if (!k->s->connects)
        feed_connect(&k->f);
    if (k->s->prepare != NULL)
        k->s->prepare(&k->f);
}

static void be_killed(killing *k)
{
    tracee_begin();
    own_locks(&k->f);
    arrive(k);
    raise(SIGSTOP);
    k->side->phase = PHASE_INSIDE;
    k->s->act(&k->f);
    k->side->phase = PHASE_OVER;
    raise(SIGSTOP);
    for (;;)
        pause();
}

static bool start(void *world, es_tracee *t)
{
    killing *k = world;
    open_world(k);
    k->side->phase = PHASE_BEFORE;
    pid_t child = fork();
    if (child == 0)
        be_killed(k);
    return tracee_attach(t, child);
}

static enum phase phase_of(const void *world)
{
    return ((const killing *)world)->side->phase;
}

static bool changed(uint8_t *seen, const void *now, uint64_t size)
{
    if (memcmp(seen, now, size) == 0)
        return false;
    memcpy(seen, now, size);
    return true;
}

static void look(void *world, uint32_t n)
{
    killing *k = world;
    bool writes = changed(k->seen_store, k->f.v.base, k->f.v.size);
    for (int i = 0; i < FEED_RINGS; i++)
        if (has(&k->f, i))
            writes |= changed(k->seen_rings[i], k->f.fix[i]->base, k->f.fix[i]->size);
    if (n < MAX_PATH)
        k->writes[n] = writes;
}

static bool leaves_more(void *world, uint32_t n)
{
    return ((const killing *)world)->writes[n];
}

static unsigned finish(void *world, es_tracee *t, uint32_t n)
{
    killing *k = world;
    uint32_t parts = 0;
    (void)n;
    tracee_kill(t);
    enter(&k->f);
    feed_connect(&k->f);
    if (k->s->again != NULL)
        k->s->again(&k->f);
    go_on(k, &k->found);
    feed_leave(&k->f);
    end_life(&k->f);
    close_rings(&k->f);
    while (parts <= k->s->parts && es_dump_differ(&k->found, &k->references[parts]))
        parts++;
    if (!CHECK(parts <= k->s->parts))
        es_dump_same(&k->found, &k->references[0]);
    k->parts_seen |= 1u << parts;
    return 0;
}

/* --- references ----------------------------------------------------------------------- */

/* A replay that nobody kills. Before the operation it makes some changes that come with it once more. */
static void make_reference(killing *k, uint32_t parts)
{
    open_world(k);
    arrive(k);
    if (parts > 0)
        k->s->part(&k->f, parts);
    k->s->act(&k->f);
    if (k->s->leaves) {
        end_life(&k->f);
        enter(&k->f);
        feed_connect(&k->f);
    }
    go_on(k, &k->references[parts]);
    feed_leave(&k->f);
    end_life(&k->f);
    close_rings(&k->f);
    CHECK(parts == 0 || es_dump_differ(&k->references[parts], &k->references[parts - 1]));
}

/* --- a scenario ------------------------------------------------------------------------ */

static es_fix *ring_of(uint64_t batch_size, uint64_t num_batches, uint32_t num_leaves, const uint64_t *sizes)
{
    es_geometry geo = {.batch_size = batch_size,
                       .num_batches = num_batches,
                       .reap_interval_ns = 1000000000,
                       .max_producers = 2,
                       .num_leaves = num_leaves,
                       .schema_size = 2,
                       .flags = batch_size == 1 ? ES_FLAG_READY_ORDER : 0};
    return fix_new_shared(&geo, sizes);
}

/* Its leaves are what items of the table give, and the columns. */
static es_fix *ring_of_batches(const es_vault *v, const es_feed_box *box)
{
    uint64_t sizes[VAULT_OUTPUTS + ES_BATCH_COLUMNS];
    uint32_t n = 0;
    const es_output *o = v->outputs;
    for (uint32_t t = 0; t < box->table; t++)
        o += v->tables[t].item.num_outputs;
    while (n < v->tables[box->table].item.num_outputs)
        sizes[n++] = es_store_layout_output_size(o++, v->leaf_sizes);
    for (uint32_t i = 0; i < ES_BATCH_COLUMNS; i++)
        sizes[n++] = 8;
    return ring_of(box->batch_size, box->num_batches, n, sizes);
}

/* Each slot of two other rings is used once. */
static void know_other_rings(es_feed *f)
{
    open_rings(f);
    enter(f);
    connect_as(f, other_uuids);
    send_a_lap(f);
    use_all(f);
    feed_leave(f);
    end_life(f);
    close_rings(f);
}

static void begin(killing *k, const es_feeding *s)
{
    const uint64_t *leaf_sizes = s->leaf_sizes != NULL ? s->leaf_sizes : small_leaves;
    uint64_t brought[] = {sizeof(es_inbox_head) + s->num_tables * sizeof(double), leaf_sizes[0], leaf_sizes[1]};
    es_feed *f = &k->f;
    *k = (killing){.s = s, .side = shared(sizeof *k->side)};
    es_store_geometry geo = {.capacity = s->capacity,
                             .max_items = MANY,
                             .seed = 7,
                             .num_leaves = 2,
                             .num_tables = s->num_tables,
                             .schema_size = 8,
                             .inbox_slots = s->slots,
                             .update_slots = FEED_UPDATE_SLOTS};
    vault_plan(&f->v, &geo, leaf_sizes, s->tables);
    for (uint32_t t = 0; t < s->num_tables; t++)
        if (f->v.tables[t].item.kind == ES_ITEM_EXPLICIT)
            brought[0] = sizeof(es_inbox_head) + s->num_tables * sizeof(double) + 2 * sizeof(es_item_column);
    f->v.base = shared(f->v.size);
    f->fix[FEED_STEPS] = ring_of(1, s->slots, 3, brought);
    f->fix[FEED_UPDATES] = ring_of(1, FEED_UPDATE_SLOTS, 1, &(uint64_t){sizeof(es_update_block)});
    f->boxes = s->boxes;
    for (int i = FEED_BATCHES; i < FEED_RINGS; i++)
        if (has(f, i))
            f->fix[i] = ring_of_batches(&f->v, &s->boxes[i - FEED_BATCHES]);
    k->first = must(malloc(f->v.size)), k->seen_store = must(calloc(1, f->v.size));
    for (int i = 0; i < FEED_RINGS; i++)
        if (has(f, i))
            k->seen_rings[i] = must(calloc(1, f->fix[i]->size));
    CHECK_EQ(vault_format(&f->v), ES_OK);
    vault_open(&f->v, VAULT_STREAM);
    if (s->before != NULL)
        s->before(&f->v);
    vault_close(&f->v);
    if (s->known)
        know_other_rings(f);
    es_store store;
    CHECK_EQ(es_store_map(&store, f->v.base, f->v.size), ES_OK);
    k->arrived = store.hdr->arrivals;
    es_store_unmap(&store);
    memcpy(k->first, f->v.base, f->v.size);
}

static void end(killing *k)
{
    es_feed *f = &k->f;
    munmap(f->v.base, f->v.size);
    munmap(k->side, sizeof *k->side);
    free(k->first);
    free(k->seen_store);
    for (int i = 0; i < FEED_RINGS; i++) {
        if (!has(f, i))
            continue;
        free(k->seen_rings[i]);
        fix_free(f->fix[i]);
    }
}

void feed_everywhere(const es_feeding *s)
{
    killing *k = &the_killing;
    begin(k, s);
    for (uint32_t parts = 0; parts <= s->parts && es_test_failures() == 0; parts++)
        make_reference(k, parts);
    if (es_test_failures() == 0)
        es_everywhere_kill(&(es_everywhere){
            .name = s->name,
            .world = k,
            .start = start,
            .phase = phase_of,
            .look = look,
            .leaves_more = s->everywhere && !es_everywhere_quick() ? NULL : leaves_more,
            .finish = finish,
            .abandon = abandon,
            .through = s->through,
        });
    if (es_test_failures() == 0 && es_everywhere_nth() == 1)
        CHECK_EQ(k->parts_seen, (2u << s->parts) - 1);
    end(k);
}
