#include "replay/es_rings.h"

#include "replay/es_insert.h"
#include "replay/es_room.h"

int es_rings_connect_batches(es_rings *g, es_table *table, es_ring *ring, void *segment, const uint8_t *uuid,
                             uint32_t rank, uint32_t world_size)
{
    uint32_t number = g->num_outboxes;
    if (number == ES_MAX_OUTBOXES)
        return -ENOSPC;
    int code = es_outbox_open(&g->outboxes[number], table, ring, segment, uuid, rank, world_size, g->outboxes, number);
    if (code != ES_OK)
        return code;
    g->num_outboxes++;
    return (int)number;
}

void es_rings_disconnect(es_rings *g)
{
    es_inbox_close(&g->inbox);
    while (g->num_outboxes > 0)
        es_outbox_close(&g->outboxes[--g->num_outboxes]);
}

/* Draws into all rings of batches: how many. */
static uint64_t fill_outboxes(es_rings *g, uint64_t most, int32_t *codes)
{
    uint64_t filled = 0;
    for (uint32_t i = 0; i < ES_MAX_OUTBOXES; i++)
        codes[i] = i < g->num_outboxes ? ES_OK : ES_EMPTY;
    for (uint32_t i = 0; i < g->num_outboxes; i++) {
        es_outbox *o = &g->outboxes[i];
        if (o->world_size == 0)
            filled += es_outbox_fill(o, most, &codes[i]);
        else if (o->rank == 0)
            filled += es_outbox_fill_group(g->outboxes, g->num_outboxes, i, most, codes);
    }
    return filled;
}

uint64_t es_rings_turn(es_rings *g, es_tables *m, uint64_t most, es_turn *turn)
{
    es_inbox *in = &g->inbox;
    es_trouble why = {.table = 0};
    uint64_t done = 0;
    turn->steps = turn->updates = ES_EMPTY;
    if (in->updates.ring != NULL)
        done += es_inbox_update(in, m, most, &turn->updates);
    done += es_insert_unpark(m);
    if (in->steps.ring != NULL)
        done += es_inbox_store(in, m, most, &turn->steps, &why);
    turn->table = why.table;
    turn->sweep_due = in->steps.sweep_due || in->updates.sweep_due;
    turn->refused = in->refused;
    in->steps.sweep_due = in->updates.sweep_due = false;
    turn->ask = in->ask;
    in->ask = (es_ask){.batch_size = 0};
    done += fill_outboxes(g, most, turn->batches);
    if (!m->failed)
        es_room_use(m);
    turn->parked = es_insert_parked(m);
    return done;
}
