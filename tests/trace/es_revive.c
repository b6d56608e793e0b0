/* Kills the process of a replay at every instruction of a scenario, as es_everywhere.c says.
 *
 * What survives is what the store holds, so each death leaves one of the contents that the store has in the course of
 * the operation. They are collected while the path is recorded, before each instruction. After each kill the store must
 * hold the content of its instruction. In long scenarios the process is killed only where it has just written into the
 * store: elsewhere a death leaves what it left one instruction before.
 *
 * Each content is then opened by another replay. It must become, number by number (es_dump), the store of a replay that
 * nobody killed, and that has done the operation, or nothing, or only some of its parts. A later death never finds
 * less. Then both live on. Same draws, same keys, same probabilities, same evictions; and same stores in the end.
 *
 * The contents that a recovery goes through are seen by a process that traps after each instruction that writes into the
 * store (es_writes). They are treated likewise, until there are no new ones: whoever recovers may be killed at any
 * instruction, any number of times.
 *
 * The reference is never opened again. Its process is forked where the operation begins, with all that is private. So
 * this shows also that what is private follows from the store alone.
 */
#define _GNU_SOURCE
#include "es_revive.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "es_everywhere.h"
#include "es_tracee.h"
#include "es_watchdog.h"
#include "es_writes.h"

#define MAX_CONTENTS 2048u
#define MAX_PATH 400000u
#define UNKNOWN UINT32_MAX
#define WATCHDOG_S 60u

static const uint64_t usual_leaves[] = {8, 4, 16, 40, 0};

/* What a store held at some instruction. */
typedef struct content {
    uint64_t hash;
    uint32_t at;     /* the instruction, from the start of its path */
    uint32_t origin; /* the content whose recovery it was part of; UNKNOWN: it was the operation itself */
    uint32_t parts;  /* done, as whoever opens it finds */
} content;

typedef struct es_side {
    _Atomic uint32_t phase;
    _Atomic int64_t rc;
    uint32_t num_contents;
    uint64_t writes;  /* of recoveries */
    uint64_t changes; /* of what the store holds, by the last one */
} es_side;

typedef struct estate {
    const es_revival *s;
    es_vault v;       /* before the operation */
    es_side *side;    /* shared with the tracee, as the store is */
    es_dump *found;   /* of a revived store, and of its life */
    es_dump *reached; /* [parts]: the store of a replay that was not killed */
    es_dump *lived;   /* [parts]: its life after that */
    uint8_t *bytes;   /* of all contents */
    content *contents;
    uint8_t *spare;       /* a store to try contents in */
    uint32_t here;        /* the content that the store has */
    uint32_t from;        /* the recovery begins with this one; UNKNOWN: the operation itself is watched */
    uint32_t *content_at; /* by instruction of the path */
} estate;

static void *shared(uint64_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        abort();
    return p;
}

static uint8_t *bytes_of(estate *e, uint32_t which)
{
    return e->bytes + which * e->v.size;
}

/* --- contents --------------------------------------------------------------------- */

static uint64_t hash_of(const uint8_t *bytes, uint64_t size)
{
    uint64_t h = size, word;
    for (uint64_t i = 0; i < size; i += sizeof word) {
        memcpy(&word, bytes + i, sizeof word);
        h = (h ^ word) * UINT64_C(0x9fb21c651e98df25);
        h ^= h >> 32;
    }
    return h;
}

/* What the store holds now. It may be new. */
static uint32_t content_now(estate *e, uint32_t n)
{
    uint64_t hash = hash_of(e->v.base, e->v.size);
    for (uint32_t i = e->side->num_contents; i-- > 0;)
        if (e->contents[i].hash == hash && memcmp(bytes_of(e, i), e->v.base, e->v.size) == 0)
            return i;
    if (!CHECK(e->side->num_contents < MAX_CONTENTS))
        return 0;
    e->contents[e->side->num_contents] = (content){.hash = hash, .at = n, .origin = e->from, .parts = UNKNOWN};
    memcpy(bytes_of(e, e->side->num_contents), e->v.base, e->v.size);
    return e->side->num_contents++;
}

static void say_content(const estate *e, uint32_t which)
{
    const content *c = &e->contents[which];
    if (c->origin != UNKNOWN) {
        fprintf(stderr, "    killed in a recovery, as content %u; before that\n", which);
        say_content(e, c->origin);
    } else {
        es_everywhere_say(c->at);
    }
}

/* --- the tracee ------------------------------------------------------------------- */

static void recover(estate *e)
{
    int error;
    es_trouble why;
    e->v.r = es_replay_open(e->v.base, e->v.size, VAULT_STREAM, NULL, 0, &error, &why);
    e->side->rc = error;
}

static void be_killed(estate *e)
{
    tracee_begin();
    raise(SIGSTOP);
    e->side->phase = PHASE_INSIDE;
    if (e->from == UNKNOWN)
        e->side->rc = e->s->act(&e->v, e->s->parts);
    else
        recover(e);
    e->side->phase = PHASE_OVER;
    raise(SIGSTOP);
    for (;;)
        pause();
}

static bool start(void *world, es_tracee *t)
{
    estate *e = world;
    memcpy(e->v.base, bytes_of(e, e->from == UNKNOWN ? 0 : e->from), e->v.size);
    e->here = e->from == UNKNOWN ? 0 : e->from;
    e->side->phase = PHASE_BEFORE;
    pid_t child = fork();
    if (child == 0)
        be_killed(e);
    return tracee_attach(t, child);
}

static enum phase phase_of(const void *world)
{
    return ((const estate *)world)->side->phase;
}

static void look(void *world, uint32_t n)
{
    estate *e = world;
    if (memcmp(bytes_of(e, e->here), e->v.base, e->v.size) != 0)
        e->here = content_now(e, n);
    if (n < MAX_PATH)
        e->content_at[n] = e->here;
    else if (n == MAX_PATH)
        CHECK(n < MAX_PATH);
}

static bool leaves_more(void *world, uint32_t n)
{
    estate *e = world;
    return n < MAX_PATH && e->content_at[n] != e->content_at[n - 1];
}

static void abandon(void *world)
{
    (void)world;
}

static unsigned finish(void *world, es_tracee *t, uint32_t n)
{
    estate *e = world;
    bool over = phase_of(e) == PHASE_OVER;
    tracee_kill(t);
    if (over)
        CHECK_EQ(e->side->rc, e->from == UNKNOWN ? e->s->want : ES_OK);
    /* Otherwise the run went another way. */
    if (n >= MAX_PATH || memcmp(bytes_of(e, e->content_at[n]), e->v.base, e->v.size) != 0)
        content_now(e, n);
    return 0;
}

static es_everywhere everywhere(estate *e, const char *name, const char *through, bool where_it_writes)
{
    return (es_everywhere){
        .name = name,
        .world = e,
        .start = start,
        .phase = phase_of,
        .look = look,
        .leaves_more = where_it_writes || es_everywhere_quick() ? leaves_more : NULL,
        .finish = finish,
        .abandon = abandon,
        .through = through,
    };
}

/* --- references ---------------------------------------------------------------------- */

/* The store and the further life of a replay that has done so many parts, and that nobody kills. */
static void be_reference(estate *e, uint32_t parts)
{
    if (parts > 0)
        e->s->act(&e->v, parts);
    if (e->s->parks)
        vault_turn(&e->v);
    e->reached[parts].count = e->lived[parts].count = 0;
    es_dump_store(&e->reached[parts], e->v.base, e->v.size);
    if (e->s->forgets) {
        vault_close(&e->v);
        vault_open(&e->v, VAULT_STREAM);
    }
    if (e->s->formats && parts == 1)
        vault_open(&e->v, VAULT_STREAM);
    e->v.dump = &e->lived[parts];
    if (e->v.r != NULL)
        vault_live(&e->v);
    _exit(es_test_failures() != 0);
}

static bool make_references(estate *e)
{
    for (uint32_t parts = 0; parts <= e->s->parts; parts++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            be_reference(e, parts);
        if (!CHECK(waitpid(child, &status, 0) == child && status == 0))
            return false;
        memcpy(e->v.base, bytes_of(e, 0), e->v.size);
        /* Otherwise nothing could be told apart. */
        if (parts > 0 && !CHECK(es_dump_differ(&e->reached[parts], &e->reached[parts - 1])))
            return false;
    }
    return true;
}

/* --- reviving ---------------------------------------------------------------------- */

/* How many parts the revived store has done, no fewer than least. UNKNOWN: it is none of the references. */
static uint32_t parts_found(const estate *e, uint32_t least)
{
    for (uint32_t parts = least; parts <= e->s->parts; parts++)
        if (!es_dump_differ(e->found, &e->reached[parts]))
            return parts;
    return UNKNOWN;
}

/* Opens a content, and lives on. */
static bool revive(estate *e, uint32_t which, uint32_t least)
{
    content *c = &e->contents[which];
    es_vault v = e->v;
    memcpy(e->spare, bytes_of(e, which), e->v.size);
    v.base = e->spare;
    v.r = NULL;
    bool unfinished = e->s->formats && es_replay_check(v.base, v.size) == ES_EINIT;
    if (!unfinished)
        vault_open(&v, VAULT_STREAM);
    if (v.r == NULL && !unfinished)
        return false;
    e->found->count = 0;
    es_dump_store(e->found, v.base, v.size);
    c->parts = parts_found(e, least);
    if (!CHECK(c->parts != UNKNOWN)) {
        es_dump_same(e->found, &e->reached[least]);
        if (least < e->s->parts)
            es_dump_same(e->found, &e->reached[least + 1]);
        return false;
    }
    e->found->count = 0;
    v.dump = e->found;
    if (v.r != NULL) {
        vault_live(&v);
        vault_close(&v);
    }
    return CHECK(es_dump_same(e->found, &e->lived[c->parts]));
}

/* What the operation left, at its instructions. */
static bool revive_all(estate *e)
{
    uint32_t least = 0, seen = 0;
    for (uint32_t i = 0; i < e->side->num_contents; i++) {
        if (!revive(e, i, least)) {
            say_content(e, i);
            return false;
        }
        least = e->contents[i].parts;
        seen |= 1u << least;
    }
    return CHECK_EQ(seen, (2u << e->s->parts) - 1);
}

static void recover_it(void *world)
{
    recover(world);
}

static void wrote(void *world)
{
    estate *e = world;
    e->side->writes++;
    if (memcmp(bytes_of(e, e->here), e->v.base, e->v.size) == 0)
        return;
    e->here = content_now(e, 0);
    e->side->changes++;
}

/* Has another process recover from a content, and collects what the store then goes through. */
static bool watch_recovery(estate *e, uint32_t which)
{
    int status;
    memcpy(e->v.base, bytes_of(e, which), e->v.size);
    e->here = e->from = which;
    e->side->changes = 0;
    pid_t child = fork();
    if (child == 0) {
        es_writes_watch(e->v.base, e->v.size, recover_it, wrote, e);
        _exit(e->side->rc != ES_OK || es_test_failures() != 0);
    }
    return CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* What recoveries leave. *most is where a recovery has most to do. */
static bool revive_recoveries(estate *e, uint32_t *most)
{
    uint64_t most_changes = 0;
    *most = 0;
    for (uint32_t i = 0; i < e->side->num_contents; i++) {
        uint32_t before = e->side->num_contents;
        if (e->s->formats && e->contents[i].parts == 0)
            continue; /* nobody opens it */
        if (!watch_recovery(e, i))
            return false;
        uint64_t changes = e->side->changes;
        for (uint32_t j = before; j < e->side->num_contents; j++)
            if (!revive(e, j, e->contents[i].parts) || !CHECK_EQ(e->contents[j].parts, e->contents[i].parts)) {
                say_content(e, j);
                return false;
            }
        if (changes > most_changes)
            *most = i, most_changes = changes;
    }
    return true;
}

/* --- a scenario ----------------------------------------------------------------------- */

static void begin(estate *e, const es_revival *s)
{
    const uint64_t *leaves = s->leaf_sizes == NULL ? usual_leaves : s->leaf_sizes;
    es_store_geometry geo = {.capacity = s->capacity,
                             .max_items = s->max_items,
                             .notes = s->notes,
                             .seed = 7,
                             .num_tables = s->num_tables,
                             .schema_size = 8,
                             .inbox_slots = s->parks || s->sends};
    while (leaves[geo.num_leaves] != 0)
        geo.num_leaves++;
    es_vault v = {.base = NULL};
    vault_plan(&v, &geo, leaves, s->tables);
    uint64_t size = v.size;
    v.base = shared(size);
    *e = (estate){
        .s = s,
        .v = v,
        .side = shared(sizeof(es_side)),
        .found = shared(sizeof(es_dump)),
        .reached = shared((REVIVE_PARTS + 1) * sizeof(es_dump)),
        .lived = shared((REVIVE_PARTS + 1) * sizeof(es_dump)),
        .bytes = shared(MAX_CONTENTS * size),
        .contents = shared(MAX_CONTENTS * sizeof(content)),
        .content_at = shared(MAX_PATH * sizeof(uint32_t)),
        .spare = shared(size),
        .from = UNKNOWN,
    };
    if (!s->formats) {
        CHECK_EQ(vault_format(&e->v), ES_OK);
        vault_open(&e->v, VAULT_STREAM);
    }
    if (s->before != NULL)
        s->before(&e->v);
    content_now(e, 0);
}

static void end(estate *e)
{
    uint64_t size = e->v.size;
    if (e->v.r != NULL)
        vault_close(&e->v);
    munmap(e->side, sizeof *e->side);
    munmap(e->found, sizeof *e->found);
    munmap(e->reached, (REVIVE_PARTS + 1) * sizeof *e->reached);
    munmap(e->lived, (REVIVE_PARTS + 1) * sizeof *e->lived);
    munmap(e->bytes, MAX_CONTENTS * size);
    munmap(e->contents, MAX_CONTENTS * sizeof *e->contents);
    munmap(e->content_at, MAX_PATH * sizeof *e->content_at);
    munmap(e->spare, size);
    munmap(e->v.base, size);
}

static void kill_and_revive(estate *e)
{
    const es_revival *s = e->s;
    uint32_t most, own;
    es_everywhere killed = everywhere(e, s->name, s->through, s->where_it_writes);
    es_everywhere_kill(&killed);
    es_watchdog_start(s->name, WATCHDOG_S, NULL);
    own = e->side->num_contents;
    if (es_test_failures() != 0 || !revive_all(e) || !es_writes_supported() || !revive_recoveries(e, &most))
        return;
    printf("    %u contents of the store, and %u that recoveries leave, after %llu writes\n", own,
           e->side->num_contents - own, (unsigned long long)e->side->writes);
    if (!s->twice)
        return;
    char name[64];
    snprintf(name, sizeof name, "%s: recovery", s->name);
    e->from = most;
    own = e->side->num_contents;
    killed =
        everywhere(e, name, "es_replay_open es_redo_recover es_recover_open es_table_recover es_steps_trim_all", true);
    es_everywhere_kill(&killed);
    CHECK_EQ(e->side->num_contents, own); /* a kill left nothing else than what stepping saw */
}

void revive_everywhere(const es_revival *s)
{
    estate e;
    begin(&e, s);
    if (es_test_failures() == 0 && make_references(&e))
        kill_and_revive(&e);
    end(&e);
}
