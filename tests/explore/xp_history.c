/* C11: the explorer keeps every store to a word. The order of execution is the
 * modification order. A thread has a view: for each word, the oldest store that it may
 * still see. A load picks that store or any later one. An acquire joins the thread's view
 * with the view that the store released. Release sequences and fences work as in C11.
 * All seq_cst fences share one view: each joins the thread's view with it, both ways.
 */
#include "xp_history.h"

#include <stdatomic.h>

#define MAX_STORES 8192

static struct {
    xp_kept stores[MAX_STORES];
    int num_stores;
    int32_t last[XP_MAX_WORDS]; /* index of the last store; -1: none yet */
    xp_view current[XP_THREADS], acquired[XP_THREADS], fenced[XP_THREADS], shared;
} past;

void xp_history_grow(int word)
{
    for (int i = 0; i < past.num_stores; i++)
        past.stores[i].released.at[word] = 0;
}

void xp_history_begin(void)
{
    past.num_stores = 0;
    for (int i = 0; i < XP_MAX_WORDS; i++)
        past.last[i] = -1;
    memset(past.current, 0, sizeof past.current);
    memset(past.acquired, 0, sizeof past.acquired);
    memset(past.fenced, 0, sizeof past.fenced);
    memset(&past.shared, 0, sizeof past.shared);
    for (int t = 0; t < XP_THREADS; t++)
        past.current[t].clock[t] = 1;
}

/* --- views --------------------------------------------------------------------- */

xp_view *xp_view_of(int t)
{
    return &past.current[t];
}

void xp_view_join(xp_view *to, const xp_view *from)
{
    int words = xp_tracked.count;
    for (int i = 0; i < words; i++)
        to->at[i] = from->at[i] > to->at[i] ? from->at[i] : to->at[i];
    for (int t = 0; t < XP_THREADS; t++)
        to->clock[t] = from->clock[t] > to->clock[t] ? from->clock[t] : to->clock[t];
}

/* Copies the entries of the words that are tracked so far. */
static void copy_view(xp_view *to, const xp_view *from)
{
    memcpy(to->at, from->at, (size_t)xp_tracked.count * sizeof *to->at);
    memcpy(to->clock, from->clock, sizeof to->clock);
}

void xp_view_advance(int t)
{
    past.current[t].clock[t]++;
}

void xp_view_newest(int t)
{
    for (int i = 0; i < xp_tracked.count; i++)
        if (past.last[i] >= 0)
            past.current[t].at[i] = past.stores[past.last[i]].index;
}

static bool acquires(int order)
{
    return order == memory_order_acquire || order == memory_order_acq_rel || order == memory_order_seq_cst;
}

static bool releases(int order)
{
    return order == memory_order_release || order == memory_order_acq_rel || order == memory_order_seq_cst;
}

void xp_history_fence(int t, int order)
{
    if (acquires(order))
        xp_view_join(&past.current[t], &past.acquired[t]);
    if (order == memory_order_seq_cst) {
        xp_view_join(&past.current[t], &past.shared);
        xp_view_join(&past.shared, &past.current[t]);
    }
    if (releases(order)) {
        copy_view(&past.fenced[t], &past.current[t]);
        xp_view_advance(t);
    }
}

/* --- stores -------------------------------------------------------------------- */

/* A new store. Its bytes are left over from an earlier execution. */
static xp_kept *new_store(void)
{
    if (past.num_stores == MAX_STORES)
        xp_die("more stores than the explorer keeps");
    return &past.stores[past.num_stores++];
}

const xp_kept *xp_history_last(int id)
{
    if (past.last[id] < 0) {
        const xp_word *w = &xp_tracked.words[id];
        past.last[id] = past.num_stores;
        xp_kept *s = new_store();
        memset(s, 0, sizeof *s);
        s->before = -1;
        s->value = xp_peek(w->address, w->size);
    }
    return &past.stores[past.last[id]];
}

int xp_history_shown(int t, int id, const xp_kept *shown[XP_DEEPEST])
{
    const xp_kept *s = xp_history_last(id);
    int n = 0;
    shown[n++] = s;
    while (n < XP_DEEPEST && s->before >= 0) {
        s = &past.stores[s->before];
        if (s->index < past.current[t].at[id])
            break;
        shown[n++] = s;
    }
    return n;
}

void xp_history_see(int t, int id, const xp_kept *s, int order)
{
    xp_view *v = &past.current[t];
    if (s->index > v->at[id])
        v->at[id] = s->index;
    xp_view_join(acquires(order) ? v : &past.acquired[t], &s->released);
}

void xp_history_append(int t, int id, uint64_t value, int order, const xp_kept *replaced)
{
    const xp_word *w = &xp_tracked.words[id];
    const xp_kept *old = xp_history_last(id);
    xp_kept *s = new_store();
    s->value = value;
    s->before = past.last[id];
    s->index = (uint16_t)(old->index + 1);
    past.current[t].at[id] = s->index;
    copy_view(&s->released, releases(order) ? &past.current[t] : &past.fenced[t]);
    s->released.at[id] = s->index;
    if (replaced != NULL) /* a locked operation continues the release sequence */
        xp_view_join(&s->released, &replaced->released);
    past.last[id] = (int32_t)(s - past.stores);
    xp_poke(w->address, w->size, value);
    if (releases(order))
        xp_view_advance(t);
}
