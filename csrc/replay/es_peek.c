/* Who reads here does not have the store, and its process may change the records meanwhile, or be dead. Nothing is
 * written. Memory is found by the header alone, of which a copy was checked. */
#include "replay/es_peek.h"

#include <math.h>

#include "replay/es_store.h"

/* Records are looked at in runs of so many, which are two pages at most. */
#define RUN 16u

/* The priority of a record that is in use before and after it is read, by the same item. The process that has the store
 * writes a new item's word last, and to a dead item's record no sooner than the next one comes. But nothing makes the
 * processor keep that order for whoever has no lock: a wrong priority can come out, and is one of many. */
static bool priority_of(const es_item_record *record, double *priority)
{
    uint64_t before = __atomic_load_n(&record->word, __ATOMIC_ACQUIRE);
    __atomic_load(&record->priority, priority, __ATOMIC_ACQUIRE);
    uint64_t after = __atomic_load_n(&record->word, __ATOMIC_RELAXED);
    return before == after && es_record_state(before) == ES_RECORD_LIVE && isfinite(*priority) && *priority >= 0;
}

/* Looks at up to room of the first `range` records: at all of them, or at runs that are as far apart from each other.
 * Returns how many records there are up to the run after the last one in which an item was found. */
static uint64_t look(const es_item_record *items, uint64_t range, double *priorities, uint64_t room, es_peeked *seen)
{
    uint64_t runs = range <= room ? 1 : room / RUN, length = range <= room ? range : RUN, used = 1;
    *seen = (es_peeked){.records = range, .looked = runs * length};
    for (uint64_t run = 0; run < runs; run++) {
        const es_item_record *first = items + run * (range / runs);
        for (uint64_t i = 0; i < length; i++)
            if (priority_of(&first[i], &priorities[seen->found])) {
                seen->found++;
                used = run + 1;
            }
    }
    return runs > 0 ? used * (range / runs) : range;
}

int es_peek(const void *base, uint64_t size, uint32_t table, double *priorities, uint64_t room, es_peeked *seen)
{
    es_store store;
    *seen = (es_peeked){.records = 0};
    int code = es_store_map_records(&store, (void *)base, size); /* which writes nothing */
    if (code != ES_OK)
        return code;
    if (table < store.num_tables) {
        const es_item_record *items = store.items + store.first_item[table];
        uint64_t range = store.first_item[table + 1] - store.first_item[table];
        uint64_t used = look(items, range, priorities, room, seen);
        while (range > room && used <= range / 2) { /* a new item takes the first record that is free */
            range = used > room ? used : room;
            used = look(items, range, priorities, room, seen);
        }
    } else {
        code = -EINVAL;
    }
    es_store_unmap(&store);
    return code;
}
