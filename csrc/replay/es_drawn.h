/* Items that were drawn for a batch that was cut short. They come first in the next batch, of any size. */
#ifndef ES_DRAWN_H
#define ES_DRAWN_H

#include "base/es_base.h"
#include "replay/es_draw.h"
#include "replay/es_outputs.h"

typedef struct es_drawn {
    uint64_t count, room;
    uint8_t *rows; /* what each gives to a batch, one output after the other */
    es_drawing columns;
} es_drawn;

void es_drawn_free(es_drawn *d);
uint64_t es_drawn_bytes(const es_drawn *d, const es_form *form);
/* Makes room for n: ES_OK or -ENOMEM. */
int es_drawn_reserve(es_drawn *d, const es_form *form, uint64_t n);
/* Copies n items of these arrays, from the first on, to place at and on. There is room. */
void es_drawn_insert(es_drawn *d, const es_form *form, uint64_t at, void *const *leaves, const es_drawing *from,
                     uint64_t first, uint64_t n);
/* Moves the first n items out, to place 0 and on. */
void es_drawn_take(es_drawn *d, const es_form *form, uint64_t n, void *const *leaves, const es_drawing *to);
/* What was drawn, as bytes: how many they are, copied to `to` unless that is NULL. */
uint64_t es_drawn_write(const es_drawn *d, const es_form *form, uint8_t *to);
/* Adds what es_drawn_write() has written of such a table: how many bytes it were; 0: these are none; -ENOMEM. */
int64_t es_drawn_read(es_drawn *d, const es_form *form, const uint8_t *from, uint64_t size);

#endif
