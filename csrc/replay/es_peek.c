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

/* The same of an implicit item, by its mark. */
static bool is_marked(const uint64_t *marks, uint64_t i, double *priority)
{
    *priority = 1;
    return __atomic_load_n(&marks[i / 64], __ATOMIC_RELAXED) >> i % 64 & 1;
}

/* Looks at up to room of the first `range` records, or marks if items is NULL: at all of them, or at runs that are as far apart from each other.
 * Returns how many records there are up to the run after the last one in which an item was found. */
static uint64_t look(const es_item_record *items, const uint64_t *marks, uint64_t range, double *priorities,
                     uint64_t room, es_peeked *seen)
{
    uint64_t runs = range <= room ? 1 : room / RUN, length = range <= room ? range : RUN, used = 1;
    *seen = (es_peeked){.records = range, .looked = runs * length};
    for (uint64_t run = 0; run < runs; run++) {
        uint64_t first = run * (range / runs);
        for (uint64_t i = first; i < first + length; i++)
            if (items == NULL ? is_marked(marks, i, &priorities[seen->found])
                              : priority_of(&items[i], &priorities[seen->found])) {
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
        bool implicit = es_store_layout_is_implicit(&store.tables[table]);
        const es_item_record *items = implicit ? NULL : store.items + store.first_record[table];
        const uint64_t *marks = store.marks + store.first_mark[table];
        uint64_t range = store.first_item[table + 1] - store.first_item[table];
        uint64_t used = look(items, marks, range, priorities, room, seen);
        while (range > room && used <= range / 2) { /* a new item takes the first record that is free */
            range = used > room ? used : room;
            used = look(items, marks, range, priorities, room, seen);
        }
    } else {
        code = -EINVAL;
    }
    es_store_unmap(&store);
    return code;
}
