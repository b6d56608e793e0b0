/* Items that were drawn for a batch that was cut short. They come first in the next batch, of any size. */
#ifndef ES_DRAWN_H
#define ES_DRAWN_H

#include "base/es_base.h"
#include "replay/es_draw.h"
#include "replay/es_store.h"

typedef struct es_drawn {
    uint64_t count, room;
    uint8_t *rows;
    es_drawing columns;
} es_drawn;

void es_drawn_free(es_drawn *d);
uint64_t es_drawn_bytes(const es_drawn *d, const es_store *store);
/* Makes room for n: ES_OK or -ENOMEM. */
int es_drawn_reserve(es_drawn *d, const es_store *store, uint64_t n);
/* Copies the first n items of from, with the rows of their steps. There is room. */
void es_drawn_append(es_drawn *d, const es_store *store, const uint32_t *steps, const es_drawing *from, uint64_t n);
/* Puts n items before the others. leaves: one array for each leaf. There is room. */
void es_drawn_prepend(es_drawn *d, const es_store *store, void *const *leaves, const es_drawing *from, uint64_t n);
/* Moves the first n items out, to place 0 and on. */
void es_drawn_take(es_drawn *d, const es_store *store, uint64_t n, void *const *leaves, const es_drawing *to);

#endif
