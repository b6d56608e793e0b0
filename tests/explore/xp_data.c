/* Finds races on the bytes of samples, which are not atomic. For each slot the explorer keeps the last write and each
 * thread's last read. Two accesses that happens-before does not order are a race, whatever values they saw.
 *
 * Under TSO the explorer keeps no views. There a race shows as a torn sample.
 */
#include "xp_history.h"

#define MAX_CELLS 64 /* the second half: the annex */

typedef struct cell {
    int writer;
    uint32_t written;
    uint32_t read[XP_THREADS];
} cell;

static cell cells[MAX_CELLS];
static bool watched;

void xp_data_begin(enum xp_memory memory)
{
    watched = memory != XP_TSO;
    memset(cells, 0, sizeof cells);
}

/* The cell of the slot that thread t accesses. Reports `otherwise` unless the last write happened before. */
static cell *cell_for(int t, const es_map *map, uint64_t index, const char *otherwise)
{
    bool annex = xp_annex.f != NULL && map->base == xp_annex.f->base;
    cell *c = &cells[index % (MAX_CELLS / 2) + (annex ? MAX_CELLS / 2 : 0)];
    if (c->written > 0 && c->writer != t && c->written > xp_view_of(t)->clock[c->writer])
        xp_violation(otherwise);
    return c;
}

void xp_data_write(const es_map *map, uint64_t index)
{
    if (!watched)
        return;
    int t = xp_running();
    const uint32_t *seen = xp_view_of(t)->clock;
    cell *c = cell_for(t, map, index, "two producers wrote a slot, and neither write happened before the other");
    for (int o = 0; o < XP_THREADS; o++)
        if (o != t && c->read[o] > seen[o])
            xp_violation("a slot was written again, and its last read did not happen before");
    c->writer = t;
    c->written = seen[t];
}

void xp_data_read(const es_map *map, uint64_t index)
{
    if (!watched)
        return;
    int t = xp_running();
    cell *c = cell_for(t, map, index, "a slot was read, and its last write did not happen before");
    c->read[t] = xp_view_of(t)->clock[t];
}
