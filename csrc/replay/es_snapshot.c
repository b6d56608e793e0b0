#include "replay/es_snapshot.h"

#include <string.h>

#include "replay/es_hold.h"
#include "replay/es_record.h"

uint64_t es_snapshot_take(es_tables *m, uint8_t *to)
{
    const uint8_t *from = (const uint8_t *)m->store.hdr;
    uint64_t size = (uint64_t)(m->store.rows - from), copied = 0; /* whole pages */
    for (uint64_t at = 0; at < size; at += ES_PAGE)
        if (memcmp(to + at, from + at, ES_PAGE) != 0) {
            memcpy(to + at, from + at, ES_PAGE);
            copied += ES_PAGE;
        }
    es_hold_begin(&m->steps.hold, m->steps.living);
    return copied;
}

void es_snapshot_done(es_tables *m)
{
    es_hold_end(&m->steps.hold, m->steps.living);
}

void es_snapshot_hold(es_tables *m, const uint8_t *snapshot)
{
    es_hold *hold = &m->steps.hold;
    if (snapshot == NULL) {
        es_hold_drop(hold, m->steps.living);
        return;
    }
    uint64_t steps = (uint64_t)((uint8_t *)m->store.steps - (uint8_t *)m->store.hdr);
    const es_step_record *records = (const es_step_record *)(snapshot + steps);
    for (uint32_t i = 0; i < m->store.step_slots; i++)
        if (es_record_state(records[i].word) != ES_RECORD_FREE)
            es_hold_add(hold, i);
}
