#include "replay/es_hold.h"

#include <stdlib.h>
#include <string.h>

static uint64_t words(const es_hold *h)
{
    return (h->limit + 63) / 64;
}

static bool has(const uint64_t *bits, uint32_t row)
{
    return bits[row / 64] >> row % 64 & 1;
}

static void set(uint64_t *bits, uint32_t row)
{
    bits[row / 64] |= UINT64_C(1) << row % 64;
}

int es_hold_init(es_hold *h, uint64_t limit)
{
    *h = (es_hold){.limit = limit, .taken = es_rank_new(limit)};
    h->held = calloc(words(h), sizeof *h->held);
    h->next = calloc(words(h), sizeof *h->next);
    return h->taken != NULL && h->held != NULL && h->next != NULL ? ES_OK : -ENOMEM;
}

void es_hold_free(es_hold *h)
{
    if (h->taken != NULL)
        es_rank_free(h->taken);
    free(h->held);
    free(h->next);
    *h = (es_hold){.limit = 0};
}

void es_hold_enter(es_hold *h, uint32_t row)
{
    if (h->taken != NULL)
        es_rank_add(h->taken, row);
}

void es_hold_leave(es_hold *h, uint32_t row)
{
    if (h->taken != NULL && !has(h->held, row) && !has(h->next, row))
        es_rank_remove(h->taken, row);
}

void es_hold_add(es_hold *h, uint32_t row)
{
    h->some = true;
    set(h->held, row);
    if (!es_rank_has(h->taken, row))
        es_rank_add(h->taken, row);
}

void es_hold_begin(es_hold *h, const es_rank *living)
{
    h->some = true;
    for (uint32_t row = 0; row < h->limit; row++)
        if (es_rank_has(living, row))
            set(h->next, row);
}

/* Frees what is neither in use nor held. */
static void sweep(es_hold *h, const es_rank *living)
{
    for (uint32_t row = 0; row < h->limit; row++)
        if (es_rank_has(h->taken, row) && !es_rank_has(living, row))
            es_hold_leave(h, row);
}

void es_hold_end(es_hold *h, const es_rank *living)
{
    uint64_t *held = h->held;
    h->held = h->next;
    h->next = held;
    memset(h->next, 0, words(h) * sizeof *h->next);
    sweep(h, living);
}

void es_hold_drop(es_hold *h, const es_rank *living)
{
    h->some = false;
    memset(h->held, 0, words(h) * sizeof *h->held);
    memset(h->next, 0, words(h) * sizeof *h->next);
    sweep(h, living);
}
