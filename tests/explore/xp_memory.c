/* The atomic operations: what each does to the words, and which value it reads.
 *
 * C11: a load may read any store that xp_history.c allows. A locked operation reads
 * the last store. A failing compare-exchange may read any allowed store that differs
 * from the expected value.
 *
 * Not modelled: a load that reads a store which executes later (load buffering), and
 * a modification order other than the order of execution.
 *
 * TSO: one store buffer per thread. SC: C11 without old stores.
 */
#include <stdatomic.h>
#include <string.h>

#include "es_hook.h"
#include "xp_history.h"

#define MAX_BUFFER 16
#define MAX_MUTEXES 16

typedef struct waiting {
    int word;
    uint64_t value;
} waiting;

static struct {
    enum xp_memory kind;
    waiting buffer[XP_THREADS][MAX_BUFFER];
    int num_waiting[XP_THREADS];
    const void *mutexes[MAX_MUTEXES];
    xp_view mutex_views[MAX_MUTEXES];
} mem;

/* --- store buffers -------------------------------------------------------------- */

int xp_memory_pending(int t)
{
    return mem.num_waiting[t];
}

void xp_memory_flush_one(int t)
{
    waiting *b = mem.buffer[t];
    xp_poke(xp_tracked.words[b[0].word].address, xp_tracked.words[b[0].word].size, b[0].value);
    memmove(b, b + 1, (size_t)--mem.num_waiting[t] * sizeof *b);
}

static void drain(int t)
{
    while (mem.num_waiting[t] > 0)
        xp_memory_flush_one(t);
}

/* --- operations ------------------------------------------------------------------ */

uint64_t hook_load(hook_site *site, void *p, unsigned size)
{
    int id = xp_track(p, size), t = xp_running();
    if (id < 0)
        return xp_peek(p, size);
    xp_step(site, p);
    if (mem.kind == XP_TSO) {
        for (int i = mem.num_waiting[t] - 1; i >= 0; i--)
            if (mem.buffer[t][i].word == id)
                return mem.buffer[t][i].value;
        return xp_peek(p, size);
    }
    int order = site->now;
    if (order == memory_order_seq_cst)
        xp_history_fence(t, order);
    const xp_kept *shown[XP_DEEPEST];
    const xp_kept *s = shown[xp_choose_stale(xp_history_shown(t, id, shown))];
    xp_history_see(t, id, s, order);
    xp_trace("= %llx%s", (unsigned long long)s->value, s == shown[0] ? "" : " (old)");
    return s->value;
}

void hook_store(hook_site *site, void *p, unsigned size, uint64_t value)
{
    int id = xp_track(p, size), t = xp_running();
    if (id < 0) {
        xp_poke(p, size, value);
        return;
    }
    xp_step(site, p);
    xp_trace(":= %llx", (unsigned long long)value);
    if (xp_tracked.words[id].lock_byte)
        xp_tracked.words[id].holder = 0;
    if (mem.kind == XP_TSO) {
        bool waits = mem.num_waiting[t] > 0 || xp_choose_stale(2) == 1;
        if (waits && mem.num_waiting[t] < MAX_BUFFER) {
            mem.buffer[t][mem.num_waiting[t]++] = (waiting){id, value};
        } else {
            drain(t);
            xp_poke(p, size, value);
        }
        if (site->now == memory_order_seq_cst)
            drain(t);
        return;
    }
    if (site->now == memory_order_seq_cst)
        xp_history_fence(t, memory_order_seq_cst);
    xp_history_append(t, id, value, site->now, NULL);
}

static uint64_t apply(enum hook_op op, uint64_t old, uint64_t operand, unsigned size)
{
    uint64_t value = op == HOOK_XCHG  ? operand
                     : op == HOOK_ADD ? old + operand
                     : op == HOOK_SUB ? old - operand
                                      : old | operand;
    return size == 8 ? value : value & ((UINT64_C(1) << (8 * size)) - 1);
}

/* Stores the new value of a locked operation on an explored word. */
static void replace(hook_site *site, int t, int id, uint64_t value)
{
    xp_word *w = &xp_tracked.words[id];
    if (w->only_grows && value < xp_peek(w->address, w->size))
        xp_violation("tail or head was lowered");
    if (mem.kind == XP_TSO) {
        drain(t);
        xp_poke(w->address, w->size, value);
        return;
    }
    if (site->now == memory_order_seq_cst)
        xp_history_fence(t, memory_order_seq_cst);
    const xp_kept *old = xp_history_last(id);
    xp_history_see(t, id, old, site->now);
    xp_history_append(t, id, value, site->now, old);
}

uint64_t hook_rmw(hook_site *site, void *p, unsigned size, enum hook_op op, uint64_t operand)
{
    int id = xp_track(p, size), t = xp_running();
    if (id >= 0) {
        xp_step(site, p);
        drain(t);
    }
    uint64_t old = xp_peek(p, size), value = apply(op, old, operand, size);
    if (id < 0)
        xp_poke(p, size, value);
    else
        replace(site, t, id, value);
    xp_trace("%llx -> %llx", (unsigned long long)old, (unsigned long long)value);
    return old;
}

bool hook_cas(hook_site *site, void *p, unsigned size, uint64_t *expected, uint64_t value)
{
    int id = xp_track(p, size), t = xp_running();
    if (id >= 0) {
        xp_step(site, p);
        drain(t);
    }
    uint64_t old = xp_peek(p, size);
    if (id >= 0 && mem.kind != XP_TSO) {
        /* The usual choice is the last store. A failure may also see an older store that differs
         * from the expected value. Lock bytes are the exception: the kernel always sees the last one. */
        const xp_kept *seen[XP_DEEPEST];
        int n = 1;
        for (int d = 1, shown = xp_history_shown(t, id, seen); d < shown; d++)
            if (seen[d]->value != *expected && !xp_tracked.words[id].lock_byte)
                seen[n++] = seen[d];
        const xp_kept *s = seen[xp_choose_stale(n)];
        if (s != seen[0] || old != *expected) {
            xp_history_see(t, id, s, memory_order_relaxed);
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
        xp_poke(p, size, value);
    else
        replace(site, t, id, value);
    if (id >= 0 && xp_tracked.words[id].lock_byte)
        xp_tracked.words[id].holder = t;
    xp_trace("%llx -> %llx", (unsigned long long)old, (unsigned long long)value);
    return true;
}

void hook_fence(hook_site *site)
{
    int t = xp_running();
    xp_step(site, NULL);
    if (mem.kind == XP_TSO) {
        if (site->now == memory_order_seq_cst)
            drain(t);
    } else if (site->now != memory_order_relaxed) {
        xp_history_fence(t, site->now);
    }
}

/* --- life of an execution ---------------------------------------------------------- */

void xp_memory_begin(const xp_scene *scene, enum xp_memory kind)
{
    mem.kind = kind;
    memset(mem.num_waiting, 0, sizeof mem.num_waiting);
    memset(mem.mutexes, 0, sizeof mem.mutexes);
    memset(mem.mutex_views, 0, sizeof mem.mutex_views);
    xp_track_begin(scene);
    xp_history_begin();
    xp_data_begin(kind);
}

void xp_memory_end(void)
{
    xp_track_end();
}

uint64_t xp_memory_latest(const void *p, unsigned size)
{
    return xp_peek(p, size);
}

/* The view that a mutex carries from one thread of a process to the next. Mutexes are known by address. */
static xp_view *mutex_view(const void *mutex)
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
    xp_view_join(xp_view_of(t), mutex_view(mutex));
}

void xp_memory_release(int t, const void *mutex)
{
    drain(t);
    xp_view_join(mutex_view(mutex), xp_view_of(t));
    xp_view_advance(t);
}

void xp_memory_hold(int t, const es_ring *r)
{
    xp_tracked.words[xp_track(&r->locks->held[r->me], 1)].holder = t;
}

void xp_memory_join_all(int t)
{
    for (int o = 0; o < XP_THREADS; o++) {
        drain(o);
        xp_view_join(xp_view_of(t), xp_view_of(o));
        xp_view_advance(o);
    }
    xp_view_newest(t);
}

void xp_memory_death(unsigned threads)
{
    xp_view all = {0};
    for (int t = 1; t < XP_THREADS; t++)
        if (threads >> t & 1) {
            drain(t);
            xp_view_join(&all, xp_view_of(t));
            xp_view_advance(t);
        }
    for (int i = 0; i < xp_tracked.count; i++) {
        xp_word *w = &xp_tracked.words[i];
        int t = w->holder;
        if (!w->lock_byte || t == 0 || !(threads >> t & 1))
            continue;
        xp_view_join(xp_view_of(t), &all);
        w->holder = 0;
        if (mem.kind == XP_TSO)
            xp_poke(w->address, w->size, 0);
        else
            xp_history_append(t, i, 0, memory_order_release, NULL);
    }
}
