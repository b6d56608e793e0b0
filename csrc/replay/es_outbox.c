#include "replay/es_outbox.h"

#include <stdlib.h>
#include <string.h>

#include "base/es_copy.h"

/* Slots that are claimed at once. */
#define MANY 256

static bool fits(es_ring *ring, const es_form *form)
{
    uint64_t batch_size, num_batches;
    uint32_t leaves;
    es_api_shape(ring, &batch_size, &num_batches, &leaves);
    if (leaves != form->num_outputs + ES_BATCH_COLUMNS)
        return false;
    for (uint32_t i = 0; i < leaves; i++)
        if (es_api_leaf_size(ring, i) != (i < form->num_outputs ? form->sizes[i] : sizeof(uint64_t)))
            return false;
    return true;
}

/* The words of the ring with that uuid: its own, or those of a ring that is gone. Whoever connects begins with
 * the rings that were used before, so that all others are gone. */
static es_outbox_words *words_of(es_store *store, const uint64_t *uuid, const es_outbox *others, uint32_t num_others)
{
    es_outbox_words *words = store->hdr->outboxes, *spare = NULL;
    for (uint32_t i = 0; i < ES_MAX_OUTBOXES; i++) {
        bool taken = false;
        if (es_known_is(&words[i].ring, uuid))
            return &words[i];
        for (uint32_t k = 0; k < num_others; k++)
            taken |= others[k].words == &words[i];
        if (!taken && spare == NULL)
            spare = &words[i];
    }
    return spare;
}

/* Claims what was re-opened, the oldest first, and commits what a dead replay had drawn. */
static int deliver_drawn(const es_outbox *o)
{
    uint64_t drawn = *(volatile uint64_t *)&o->words->drawn;
    for (;;) {
        int64_t first;
        int code = es_api_reserve(o->ring, 0, &first);
        if (code == ES_FULL || code == ES_ECLOSED)
            return ES_OK;
        if (code != ES_OK)
            return code;
        if ((uint64_t)first >= drawn)
            return es_api_abort(o->ring, first);
        code = es_api_commit(o->ring, first);
        if (code != ES_OK)
            return code;
    }
}

static bool same_group(const es_outbox *a, const es_outbox *b)
{
    return a->table == b->table && a->batch_size == b->batch_size && a->world_size == b->world_size;
}

/* Whether the ring can have its rank in its group. */
static bool has_its_rank(const es_outbox *o, const es_outbox *others, uint32_t num_others)
{
    for (uint32_t i = 0; i < num_others && o->world_size > 0; i++)
        if (same_group(&others[i], o) && others[i].rank == o->rank)
            return false;
    return o->world_size == 0 || o->rank < o->world_size;
}

int es_outbox_open(es_outbox *o, es_table *t, es_ring *ring, void *segment, const uint8_t *uuid, uint32_t rank,
                   uint32_t world_size, const es_outbox *others, uint32_t num_others)
{
    es_store *store = t->store;
    uint64_t batch_size, num_batches, id[2], claim;
    uint32_t leaves;
    es_api_shape(ring, &batch_size, &num_batches, &leaves);
    if (!fits(ring, &t->form) || num_others >= ES_MAX_OUTBOXES)
        return ES_EGEOMETRY;
    /* A slot that is re-opened later would lie below what is drawn by then, although nothing was drawn for it. */
    if (es_monitor_next_claim(ring, 0, &claim) >= 0)
        return ES_UNSURE;
    memcpy(id, uuid, sizeof id);
    *o = (es_outbox){.table = t,
                     .segment = segment,
                     .capacity = batch_size * num_batches,
                     .batch_size = batch_size,
                     .rank = rank,
                     .world_size = world_size};
    o->streams = es_copy_outgrows_caches(o->capacity * t->form.size);
    if (!has_its_rank(o, others, num_others))
        return ES_EGEOMETRY;
    o->leaves = calloc(t->form.num_outputs, sizeof *o->leaves);
    if (o->leaves == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < t->form.num_outputs; i++)
        o->leaves[i] = o->segment + es_api_leaf_offset(ring, i);
    o->words = words_of(store, id, others, num_others);
    if (!es_known_is(&o->words->ring, id) && es_api_claimed(ring) > 0) {
        es_outbox_close(o);
        return -ESTALE;
    }
    es_known_adopt(&o->words->ring, id, &o->words->drawn, 1);
    o->ring = ring;
    int code = deliver_drawn(o);
    if (code != ES_OK)
        es_outbox_close(o);
    return code;
}

void es_outbox_close(es_outbox *o)
{
    free(o->leaves);
    *o = (es_outbox){.ring = NULL};
}

static es_drawing columns_of(const es_outbox *o)
{
    void *c[ES_BATCH_COLUMNS];
    for (uint32_t i = 0; i < ES_BATCH_COLUMNS; i++)
        c[i] = o->segment + es_api_leaf_offset(o->ring, o->table->form.num_outputs + i);
    return (es_drawing){
        .key = c[0],
        .probability = c[1],
        .ratio = c[2],
        .priority = c[3],
        .times_sampled = c[4],
        .table_size = c[5],
        .age = c[6],
        .version = c[7],
    };
}

/* The last one first: the next claim begins with the oldest. */
static void abort_from(const es_outbox *o, uint64_t position, uint64_t n)
{
    while (n-- > 0)
        es_api_abort(o->ring, (int64_t)(position + n));
}

/* Claims slots for at most n draws, makes the draws, and commits: how many. */
static uint64_t fill_some(es_outbox *o, uint64_t n, int *code)
{
    int64_t first, claimed = es_api_reserve_many(o->ring, n, &first);
    if (claimed < 0) {
        *code = (int)claimed;
        return 0;
    }
    es_drawing columns = columns_of(o);
    es_draw_into into = {o->leaves, o->table->config->sampler.beta, &o->words->drawn, (uint64_t)first, o->streams};
    int64_t drawn = es_draw(o->table, (uint64_t)claimed, &columns, (uint64_t)first % o->capacity, &into);
    uint64_t whole = drawn < 0 ? 0 : (uint64_t)drawn;
    *code = drawn < 0 ? (int)drawn : drawn < claimed ? ES_SHORT : ES_OK;
    abort_from(o, (uint64_t)first + whole, (uint64_t)claimed - whole);
    if (whole == 0)
        return 0;
    int64_t done = es_api_commit_many(o->ring, first, whole);
    if (done < drawn)
        *code = done < 0 ? (int)done : ES_ECLOSED;
    return whole;
}

uint64_t es_outbox_fill(es_outbox *o, uint64_t most, int *code)
{
    uint64_t filled = 0;
    *code = ES_OK;
    while (filled < most && *code == ES_OK) {
        uint64_t allowed = es_draw_allowed(o->table, most - filled < MANY ? most - filled : MANY);
        if (allowed == 0)
            *code = ES_SHORT;
        else
            filled += fill_some(o, allowed, code);
    }
    return filled;
}

/* Writes items from the first one on to as many slots of a batch, which are claimed. */
static void write_items(const es_outbox *o, uint64_t first, uint64_t n, const void *const *leaves)
{
    uint64_t slot = first % o->capacity;
    for (uint32_t i = 0; i < o->table->form.num_outputs + ES_BATCH_COLUMNS; i++) {
        uint64_t size = es_api_leaf_size(o->ring, i);
        memcpy(o->segment + es_api_leaf_offset(o->ring, i) + slot * size, (const uint8_t *)leaves[i] + first * size,
               n * size);
    }
}

int es_outbox_put(es_outbox *o, uint64_t n, const void *const *leaves)
{
    if (o->world_size > 0)
        return -EINVAL;
    while (o->words->drawn < n) {
        int64_t first, claimed = es_api_reserve_many(o->ring, n - o->words->drawn, &first);
        if (claimed < 0)
            return (int)claimed;
        if ((uint64_t)first != o->words->drawn || (uint64_t)(first + claimed) > n) { /* somebody has scribbled on it */
            abort_from(o, (uint64_t)first, (uint64_t)claimed);
            return -EINVAL;
        }
        write_items(o, (uint64_t)first, (uint64_t)claimed, leaves);
        /* They are complete before they count as drawn: whoever opens the store next commits them as they are. */
        ES_COMPILER_BARRIER();
        *(volatile uint64_t *)&o->words->drawn = (uint64_t)(first + claimed);
        ES_COMPILER_BARRIER();
        int64_t done = es_api_commit_many(o->ring, first, (uint64_t)claimed);
        if (done < claimed)
            return done < 0 ? (int)done : ES_ECLOSED;
    }
    return ES_OK;
}

/* --- groups ------------------------------------------------------------------------- */

/* The numbers of a group's rings, by rank. False: one is missing. */
static bool find_group(const es_outbox *outboxes, uint32_t num, uint32_t first, uint32_t *numbers)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < num && outboxes[first].world_size <= ES_MAX_OUTBOXES; i++)
        if (same_group(&outboxes[i], &outboxes[first])) {
            numbers[outboxes[i].rank] = i;
            found++;
        }
    return found == outboxes[first].world_size;
}

/* The ring that the next item goes to: the first one among those with the fewest complete batches. */
static uint32_t whose_turn(const es_outbox *outboxes, uint32_t world_size, const uint32_t *numbers)
{
    uint32_t turn = numbers[0];
    for (uint32_t rank = 1; rank < world_size; rank++) {
        const es_outbox *best = &outboxes[turn], *o = &outboxes[numbers[rank]];
        if (o->words->drawn / o->batch_size < best->words->drawn / best->batch_size)
            turn = numbers[rank];
    }
    return turn;
}

uint64_t es_outbox_fill_group(es_outbox *outboxes, uint32_t num, uint32_t first, uint64_t most, int32_t *codes)
{
    uint32_t numbers[ES_MAX_OUTBOXES];
    uint64_t filled = 0;
    int code = ES_OK;
    if (!find_group(outboxes, num, first, numbers))
        return 0;
    while (filled < most && code == ES_OK) {
        uint32_t turn = whose_turn(outboxes, outboxes[first].world_size, numbers);
        es_outbox *o = &outboxes[turn];
        uint64_t left = o->batch_size - o->words->drawn % o->batch_size;
        filled += es_outbox_fill(o, left < most - filled ? left : most - filled, &code);
        codes[turn] = code;
    }
    return filled;
}
