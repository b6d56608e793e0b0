/* What the words hold, and what a thread may see of it.
 *
 * C11: every store to a word is kept, in the order of execution, which is taken for
 * the modification order. A thread has a view: for each word the oldest store that
 * it may still see. A load picks any store from there on. An acquire takes over the view
 * that the store was released with; release sequences and fences are as in C11, a
 * seq_cst fence also exchanges views with the one view that all such fences share. A locked
 * operation reads the last store, a failing compare-exchange any that differs.
 *
 * Left out: loads of stores that come later in program order of their thread
 * (load buffering), and a modification order other than that of execution.
 *
 * The bytes of samples are no atomics: for each slot the explorer keeps who wrote and
 * who read it, and any two accesses that are not ordered by what happened before are a race,
 * whatever they happened to see.
 *
 * TSO: one store buffer a thread. SC: C11 with no old stores to pick from.
 */
#include "xp.h"

#include <stdio.h>
#include <string.h>

#include "xp_words.h"

#undef atomic_thread_fence
#undef pthread_mutex_lock
#undef pthread_mutex_unlock

#define MAX_WORDS 128
#define MAX_STORES 8192
#define MAX_BUFFER 16
#define TABLE 1024
#define MAX_CELLS 64
#define MAX_MUTEXES 16
/* Older stores than this many are not shown: what one more could do, two can. */
#define DEEPEST 3

typedef struct view {
    uint32_t at[MAX_WORDS];      /* index of the oldest store to show, per word */
    uint32_t clock[XP_THREADS]; /* what of each thread happened before */
} view;

typedef struct store {
    uint64_t value;
    int32_t before; /* the store that it replaced, or -1 */
    uint32_t index; /* of its word */
    view released;
} store;

typedef struct word {
    void *address;
    unsigned size;
    bool lock_byte;
    int holder; /* thread, of a lock byte */
    int32_t last; /* store */
} word;

typedef struct waiting {
    int word;
    uint64_t value;
} waiting;

typedef struct cell {
    int writer;
    uint32_t written;
    uint32_t read[XP_THREADS];
} cell;

static struct {
    enum xp_memory kind;
    xp_stage *stage;
    const xp_scene *scene;
    word words[MAX_WORDS];
    int num_words;
    int16_t table[TABLE]; /* word + 1, or -1: does not matter */
    const void *keys[TABLE];
    store stores[MAX_STORES];
    int num_stores;
    view current[XP_THREADS], acquired[XP_THREADS], fenced[XP_THREADS], shared;
    waiting buffer[XP_THREADS][MAX_BUFFER];
    int num_waiting[XP_THREADS];
    cell cells[MAX_CELLS];
    const void *mutexes[MAX_MUTEXES];
    view mutex_views[MAX_MUTEXES];
} mem;

/* --- which words matter ------------------------------------------------------ */

static bool inside(const void *p, const void *from, uint64_t size)
{
    return (uintptr_t)p >= (uintptr_t)from && (uintptr_t)p < (uintptr_t)from + size;
}

/* Owner entries that no scene comes to use are all alike: the first few of each role are explored. */
static bool explored_owner(uint64_t index)
{
    return index % ES_MAX_LEARNERS < 4;
}

/* The lock bytes stand in for the kernel's. */
static bool is_lock_byte(const void *p)
{
    return inside(p, (const void *)mem.stage->locks->held, mem.stage->locks->count);
}

/* Counters for people decide nothing and order nothing. */
static bool matters(const void *p)
{
    const es_map *m = &mem.stage->rings[0]->map;
    const es_header *h = m->hdr;
    if (is_lock_byte(p))
        return explored_owner((uint64_t)((const uint8_t *)p - (const uint8_t *)mem.stage->locks->held));
    if (!inside(p, mem.stage->base, mem.stage->size)) {
        bool of_ring = false;
        for (int i = 0; i < mem.stage->num_rings; i++)
            of_ring = of_ring || inside(p, mem.stage->rings[i], sizeof *mem.stage->rings[i]);
        return of_ring && mem.scene->private_words;
    }
    if (inside(p, &h->totals, sizeof h->totals))
        return false;
    if (inside(p, m->owners, m->num_owners * sizeof *m->owners)) {
        uint64_t i = ((uintptr_t)p - (uintptr_t)m->owners) / sizeof *m->owners;
        const es_owner *o = &m->owners[i];
        return explored_owner(i) && (p == (const void *)&o->state || p == (const void *)&o->pid);
    }
    return true;
}

static int find(const void *p, unsigned size)
{
    if (mem.stage == NULL) /* the scene is being set, or cleared away */
        return -1;
    unsigned at = (unsigned)(((uintptr_t)p * UINT64_C(0x9e3779b97f4a7c15)) >> 54) % TABLE;
    while (mem.keys[at] != NULL && mem.keys[at] != p)
        at = (at + 1) % TABLE;
    if (mem.keys[at] == NULL) {
        mem.keys[at] = p;
        mem.table[at] = -1;
        if (matters(p)) {
            if (mem.num_words == MAX_WORDS)
                xp_die("more words than the explorer keeps");
            mem.words[mem.num_words] = (word){(void *)(uintptr_t)p, size, is_lock_byte(p), 0, -1};
            mem.table[at] = (int16_t)mem.num_words++;
        }
    }
    return mem.table[at];
}

const char *xp_word_name(const void *p)
{
    static char name[40];
    const es_map *m = &mem.stage->rings[0]->map;
    const es_header *h = m->hdr;
    const struct {
        const void *p;
        const char *name;
    } single[] = {{&h->tail, "tail"}, {&h->head, "head"}, {&h->reopen_seq, "reopen_seq"},
                  {&h->returned_seq, "returned_seq"}, {&h->closed, "closed"}, {&h->closed_ns, "closed_ns"},
                  {&h->owners_high, "owners_high"}, {&h->ready_seq, "ready_seq"}, {&h->space_seq, "space_seq"},
                  {&h->learner_sleeps, "learner_sleeps"}, {&h->producers_sleep, "producers_sleep"}};
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (single[i].p == p)
            return single[i].name;
    uintptr_t at = (uintptr_t)p;
    if (inside(p, m->slots, m->capacity * sizeof *m->slots))
        snprintf(name, sizeof name, "slot[%u]", (unsigned)((at - (uintptr_t)m->slots) / sizeof *m->slots));
    else if (inside(p, m->batches, m->num_batches * sizeof *m->batches))
        snprintf(name, sizeof name, "batch[%u]+%u", (unsigned)((at - (uintptr_t)m->batches) / sizeof *m->batches),
                 (unsigned)((at - (uintptr_t)m->batches) % sizeof *m->batches));
    else if (inside(p, m->owners, m->num_owners * sizeof *m->owners))
        snprintf(name, sizeof name, "owner[%u]+%u", (unsigned)((at - (uintptr_t)m->owners) / sizeof *m->owners),
                 (unsigned)((at - (uintptr_t)m->owners) % sizeof *m->owners));
    else
        snprintf(name, sizeof name, "private %p", p);
    return name;
}

/* --- plain memory ------------------------------------------------------------- */

static uint64_t peek(const void *p, unsigned size)
{
    uint64_t value = 0;
    memcpy(&value, p, size); /* little-endian, as everything that runs this */
    return value;
}

static void poke(void *p, unsigned size, uint64_t value)
{
    memcpy(p, &value, size);
}

uint64_t xp_memory_latest(const void *p, unsigned size)
{
    return peek(p, size);
}

/* --- views --------------------------------------------------------------------- */

static void join(view *to, const view *from)
{
    for (int i = 0; i < mem.num_words; i++)
        if (from->at[i] > to->at[i])
            to->at[i] = from->at[i];
    for (int t = 0; t < XP_THREADS; t++)
        if (from->clock[t] > to->clock[t])
            to->clock[t] = from->clock[t];
}

static bool acquires(int order)
{
    return order == memory_order_acquire || order == memory_order_acq_rel || order == memory_order_seq_cst;
}

static bool releases(int order)
{
    return order == memory_order_release || order == memory_order_acq_rel || order == memory_order_seq_cst;
}

/* A thread's own clock moves on with each release, so that what it does afterwards is not taken for released. */
static void advance(int t)
{
    mem.current[t].clock[t]++;
}

static void fence(int t, int order)
{
    if (acquires(order))
        join(&mem.current[t], &mem.acquired[t]);
    if (order == memory_order_seq_cst) {
        join(&mem.current[t], &mem.shared);
        join(&mem.shared, &mem.current[t]);
    }
    if (releases(order)) {
        mem.fenced[t] = mem.current[t];
        advance(t);
    }
}

/* The first store to a word is what the stage held. */
static store *last_store(word *w)
{
    if (w->last < 0) {
        if (mem.num_stores == MAX_STORES)
            xp_die("more stores than the explorer keeps");
        w->last = mem.num_stores++;
        store *s = &mem.stores[w->last];
        memset(s, 0, sizeof *s);
        s->before = -1;
        s->value = peek(w->address, w->size);
    }
    return &mem.stores[w->last];
}

static void see(int t, int id, const store *s, int order)
{
    view *v = &mem.current[t];
    if (s->index > v->at[id])
        v->at[id] = s->index;
    join(acquires(order) ? v : &mem.acquired[t], &s->released);
}

static void append(int t, int id, uint64_t value, int order, const store *replaced)
{
    word *w = &mem.words[id];
    const store *old = last_store(w);
    if (mem.num_stores == MAX_STORES)
        xp_die("more stores than the explorer keeps");
    store *s = &mem.stores[mem.num_stores];
    s->value = value;
    s->before = w->last;
    s->index = old->index + 1;
    mem.current[t].at[id] = s->index;
    s->released = releases(order) ? mem.current[t] : mem.fenced[t];
    s->released.at[id] = s->index;
    if (replaced != NULL) /* a release sequence goes on through it */
        join(&s->released, &replaced->released);
    w->last = mem.num_stores++;
    poke(w->address, w->size, value);
    if (releases(order))
        advance(t);
}

/* --- store buffers -------------------------------------------------------------- */

int xp_memory_pending(int t)
{
    return mem.num_waiting[t];
}

void xp_memory_flush_one(int t)
{
    waiting *b = mem.buffer[t];
    poke(mem.words[b[0].word].address, mem.words[b[0].word].size, b[0].value);
    memmove(b, b + 1, (size_t)--mem.num_waiting[t] * sizeof *b);
}

static void drain(int t)
{
    while (mem.num_waiting[t] > 0)
        xp_memory_flush_one(t);
}

/* --- operations ------------------------------------------------------------------ */

static int weakest(const xp_site *site)
{
    return site->now;
}

uint64_t xp_load(xp_site *site, void *p, unsigned size)
{
    int id = find(p, size), t = xp_running();
    if (id < 0)
        return peek(p, size);
    xp_step(site, p);
    if (mem.kind == XP_TSO) {
        for (int i = mem.num_waiting[t] - 1; i >= 0; i--)
            if (mem.buffer[t][i].word == id)
                return mem.buffer[t][i].value;
        return peek(p, size);
    }
    int order = weakest(site), n = 1;
    if (order == memory_order_seq_cst)
        fence(t, order);
    const store *s = last_store(&mem.words[id]);
    for (const store *o = s; n < DEEPEST && o->before >= 0; n++) {
        o = &mem.stores[o->before];
        if (o->index < mem.current[t].at[id])
            break;
    }
    for (int older = xp_choose_stale(n); older > 0; older--)
        s = &mem.stores[s->before];
    see(t, id, s, order);
    xp_trace("= %llx%s", (unsigned long long)s->value, s == last_store(&mem.words[id]) ? "" : " (old)");
    return s->value;
}

void xp_store(xp_site *site, void *p, unsigned size, uint64_t value)
{
    int id = find(p, size), t = xp_running();
    if (id < 0) {
        poke(p, size, value);
        return;
    }
    xp_step(site, p);
    xp_trace(":= %llx", (unsigned long long)value);
    if (mem.words[id].lock_byte)
        mem.words[id].holder = 0;
    if (mem.kind == XP_TSO) {
        bool waits = mem.num_waiting[t] > 0 || xp_choose_stale(2) == 1;
        if (waits && mem.num_waiting[t] < MAX_BUFFER) {
            mem.buffer[t][mem.num_waiting[t]++] = (waiting){id, value};
        } else {
            drain(t);
            poke(p, size, value);
        }
        if (site->now == memory_order_seq_cst)
            drain(t);
        return;
    }
    if (site->now == memory_order_seq_cst)
        fence(t, memory_order_seq_cst);
    append(t, id, value, site->now, NULL);
}

static uint64_t apply(enum xp_op op, uint64_t old, uint64_t operand, unsigned size)
{
    uint64_t value = op == XP_XCHG ? operand : op == XP_ADD ? old + operand : op == XP_SUB ? old - operand : old | operand;
    return size == 8 ? value : value & ((UINT64_C(1) << (8 * size)) - 1);
}

/* A locked operation on a word that matters, of which old was the last value. */
static void replace(xp_site *site, int t, int id, uint64_t value)
{
    word *w = &mem.words[id];
    if (mem.kind == XP_TSO) {
        drain(t);
        poke(w->address, w->size, value);
        return;
    }
    if (site->now == memory_order_seq_cst)
        fence(t, memory_order_seq_cst);
    const store *old = last_store(w);
    see(t, id, old, site->now);
    append(t, id, value, site->now, old);
}

uint64_t xp_rmw(xp_site *site, void *p, unsigned size, enum xp_op op, uint64_t operand)
{
    int id = find(p, size), t = xp_running();
    if (id >= 0) {
        xp_step(site, p);
        drain(t);
    }
    uint64_t old = peek(p, size), value = apply(op, old, operand, size);
    if (id < 0)
        poke(p, size, value);
    else
        replace(site, t, id, value);
    xp_trace("%llx -> %llx", (unsigned long long)old, (unsigned long long)value);
    return old;
}

bool xp_cas(xp_site *site, void *p, unsigned size, uint64_t *expected, uint64_t value)
{
    int id = find(p, size), t = xp_running();
    if (id >= 0) {
        xp_step(site, p);
        drain(t);
    }
    uint64_t old = peek(p, size);
    if (id >= 0 && mem.kind != XP_TSO) {
        /* The usual: what the last store decides. A failure may see an older one that differs. */
        const store *seen[DEEPEST], *s = last_store(&mem.words[id]);
        int n = 0;
        seen[n++] = s;
        for (int d = 1; d < DEEPEST && s->before >= 0; d++) {
            s = &mem.stores[s->before];
            if (s->index < mem.current[t].at[id])
                break;
            if (s->value != *expected)
                seen[n++] = s;
        }
        s = seen[xp_choose_stale(n)];
        if (s != seen[0] || old != *expected) {
            see(t, id, s, memory_order_relaxed);
            xp_trace("fails on %llx", (unsigned long long)s->value);
            *expected = s->value;
            return false;
        }
    }
    if (old != *expected) {
        xp_trace("fails on %llx", (unsigned long long)old);
        *expected = old;
        return false;
    }
    if (id < 0)
        poke(p, size, value);
    else
        replace(site, t, id, value);
    if (id >= 0 && mem.words[id].lock_byte)
        mem.words[id].holder = t;
    xp_trace("%llx -> %llx", (unsigned long long)old, (unsigned long long)value);
    return true;
}

void xp_fence(xp_site *site)
{
    int t = xp_running();
    xp_step(site, NULL);
    if (mem.kind == XP_TSO) {
        if (site->now == memory_order_seq_cst)
            drain(t);
    } else if (site->now != memory_order_relaxed) {
        fence(t, site->now);
    }
}

/* --- the bytes of samples --------------------------------------------------------

 * Under TSO views are not kept; torn samples are seen as such. */

static cell *cell_of(uint64_t index)
{
    return &mem.cells[index % MAX_CELLS];
}

void xp_data_write(uint64_t index)
{
    cell *c = cell_of(index);
    int t = xp_running();
    if (mem.kind == XP_TSO)
        return;
    const uint32_t *seen = mem.current[t].clock;
    if (c->written > 0 && c->writer != t && c->written > seen[c->writer])
        xp_violation("two producers wrote a slot, and neither happened before the other");
    for (int o = 0; o < XP_THREADS; o++)
        if (o != t && c->read[o] > seen[o])
            xp_violation("a slot was written again, and its reading did not happen before");
    c->writer = t;
    c->written = seen[t];
}

void xp_data_read(uint64_t index)
{
    cell *c = cell_of(index);
    int t = xp_running();
    if (mem.kind == XP_TSO)
        return;
    if (c->written > 0 && c->writer != t && c->written > mem.current[t].clock[c->writer])
        xp_violation("a slot was read, and its writing did not happen before");
    c->read[t] = mem.current[t].clock[t];
}

/* --- the course of an execution ---------------------------------------------------- */

void xp_memory_begin(const xp_scene *scene, enum xp_memory kind, xp_stage *stage)
{
    if (mem.stage == NULL) {
        memset(mem.keys, 0, sizeof mem.keys);
        mem.num_words = 0;
    }
    mem.kind = kind;
    mem.scene = scene;
    mem.stage = stage;
    mem.num_stores = 0;
    for (int i = 0; i < mem.num_words; i++) {
        mem.words[i].last = -1;
        mem.words[i].holder = 0;
    }
    memset(mem.current, 0, sizeof mem.current);
    memset(mem.acquired, 0, sizeof mem.acquired);
    memset(mem.fenced, 0, sizeof mem.fenced);
    memset(&mem.shared, 0, sizeof mem.shared);
    memset(mem.num_waiting, 0, sizeof mem.num_waiting);
    memset(mem.cells, 0, sizeof mem.cells);
    memset(mem.mutexes, 0, sizeof mem.mutexes);
    memset(mem.mutex_views, 0, sizeof mem.mutex_views);
    for (int t = 0; t < XP_THREADS; t++)
        mem.current[t].clock[t] = 1;
}

void xp_memory_end(void)
{
    mem.stage = NULL;
}

/* What orders the threads of one process: its mutexes, by address. */
static view *mutex_view(const void *mutex)
{
    for (int i = 0; i < MAX_MUTEXES; i++)
        if (mem.mutexes[i] == mutex || mem.mutexes[i] == NULL) {
            mem.mutexes[i] = mutex;
            return &mem.mutex_views[i];
        }
    xp_die("more mutexes than the explorer keeps");
    return NULL;
}

void xp_memory_acquire(int t, const void *mutex)
{
    join(&mem.current[t], mutex_view(mutex));
}

void xp_memory_release(int t, const void *mutex)
{
    drain(t);
    join(mutex_view(mutex), &mem.current[t]);
    advance(t);
}

void xp_memory_hold(int t, const es_ring *r)
{
    mem.words[find(&mem.stage->locks->held[r->me], 1)].holder = t;
}

void xp_memory_join_all(int t)
{
    for (int o = 0; o < XP_THREADS; o++) {
        drain(o);
        join(&mem.current[t], &mem.current[o]);
        mem.current[o].clock[o]++;
    }
    for (int i = 0; i < mem.num_words; i++)
        if (mem.words[i].last >= 0)
            mem.current[t].at[i] = mem.stores[mem.words[i].last].index;
}

void xp_memory_death(unsigned threads)
{
    view all = {0};
    for (int t = 1; t < XP_THREADS; t++)
        if (threads >> t & 1) {
            drain(t);
            join(&all, &mem.current[t]);
            advance(t);
        }
    for (int i = 0; i < mem.num_words; i++) {
        word *w = &mem.words[i];
        int t = w->holder;
        if (!w->lock_byte || t == 0 || !(threads >> t & 1))
            continue;
        join(&mem.current[t], &all);
        w->holder = 0;
        if (mem.kind == XP_TSO)
            poke(w->address, w->size, 0);
        else
            append(t, i, 0, memory_order_release, NULL);
    }
}
