#include "replay/es_drawn.h"

#include <stdlib.h>
#include <string.h>

/* The columns are in one piece of memory. */
#define WIDTH (ES_BATCH_COLUMNS * sizeof(uint64_t))

static void place_columns(es_drawing *c, void *memory, uint64_t room)
{
    uint64_t *at = memory;
    c->key = at;
    c->probability = (double *)(at + room);
    c->priority = (double *)(at + 2 * room);
    c->ratio = (double *)(at + 3 * room);
    c->times_sampled = (int64_t *)(at + 4 * room);
    c->table_size = (int64_t *)(at + 5 * room);
    c->age = (int64_t *)(at + 6 * room);
    c->version = (int64_t *)(at + 7 * room);
}

/* Copies n values of each column. */
static void copy_columns(const es_drawing *to, uint64_t to_first, const es_drawing *from, uint64_t first, uint64_t n)
{
    memcpy(to->key + to_first, from->key + first, n * sizeof *to->key);
    memcpy(to->probability + to_first, from->probability + first, n * sizeof *to->probability);
    memcpy(to->priority + to_first, from->priority + first, n * sizeof *to->priority);
    memcpy(to->ratio + to_first, from->ratio + first, n * sizeof *to->ratio);
    memcpy(to->times_sampled + to_first, from->times_sampled + first, n * sizeof *to->times_sampled);
    memcpy(to->table_size + to_first, from->table_size + first, n * sizeof *to->table_size);
    memcpy(to->age + to_first, from->age + first, n * sizeof *to->age);
    memcpy(to->version + to_first, from->version + first, n * sizeof *to->version);
}

/* Moves n items to other places. The two ranges may overlap. */
static void move(es_drawn *d, const es_form *form, uint64_t to, uint64_t from, uint64_t n)
{
    es_drawing *c = &d->columns;
    memmove(d->rows + to * form->size, d->rows + from * form->size, n * form->size);
    memmove(c->key + to, c->key + from, n * sizeof *c->key);
    memmove(c->probability + to, c->probability + from, n * sizeof *c->probability);
    memmove(c->priority + to, c->priority + from, n * sizeof *c->priority);
    memmove(c->ratio + to, c->ratio + from, n * sizeof *c->ratio);
    memmove(c->times_sampled + to, c->times_sampled + from, n * sizeof *c->times_sampled);
    memmove(c->table_size + to, c->table_size + from, n * sizeof *c->table_size);
    memmove(c->age + to, c->age + from, n * sizeof *c->age);
    memmove(c->version + to, c->version + from, n * sizeof *c->version);
}

void es_drawn_free(es_drawn *d)
{
    free(d->rows);
    free(d->columns.key);
    *d = (es_drawn){0};
}

uint64_t es_drawn_bytes(const es_drawn *d, const es_form *form)
{
    return d->room * (form->size + WIDTH);
}

int es_drawn_reserve(es_drawn *d, const es_form *form, uint64_t n)
{
    if (d->count + n <= d->room)
        return ES_OK;
    es_drawn grown = {.count = d->count, .room = d->count + n};
    void *columns = calloc(grown.room, WIDTH);
    grown.rows = malloc(grown.room * form->size);
    if (columns == NULL || grown.rows == NULL) {
        free(columns);
        free(grown.rows);
        return -ENOMEM;
    }
    place_columns(&grown.columns, columns, grown.room);
    if (d->count > 0) {
        memcpy(grown.rows, d->rows, d->count * form->size);
        copy_columns(&grown.columns, 0, &d->columns, 0, d->count);
    }
    es_drawn_free(d);
    *d = grown;
    return ES_OK;
}

void es_drawn_insert(es_drawn *d, const es_form *form, uint64_t at, void *const *leaves, const es_drawing *from,
                     uint64_t first, uint64_t n)
{
    move(d, form, at + n, at, d->count - at);
    for (uint64_t i = 0; i < n; i++)
        es_outputs_pack(form, leaves, first + i, d->rows + (at + i) * form->size);
    copy_columns(&d->columns, at, from, first, n);
    d->count += n;
}

void es_drawn_take(es_drawn *d, const es_form *form, uint64_t n, void *const *leaves, const es_drawing *to)
{
    if (n == 0)
        return;
    for (uint64_t i = 0; i < n; i++)
        es_outputs_unpack(form, d->rows + i * form->size, leaves, i);
    copy_columns(to, 0, &d->columns, 0, n);
    uint64_t left = d->count - n;
    move(d, form, 0, n, left);
    d->count = left;
}

/* --- as bytes: how many items, bytes of each, their rows, and their columns ------------------- */

typedef struct es_drawn_head {
    uint64_t count, size;
} es_drawn_head;

uint64_t es_drawn_write(const es_drawn *d, const es_form *form, uint8_t *to)
{
    es_drawn_head head = {d->count, form->size};
    uint64_t rows = d->count * form->size;
    if (to != NULL) {
        memcpy(to, &head, sizeof head);
        uint8_t *at = to + sizeof head + rows;
        for (int i = 0; i < ES_BATCH_COLUMNS && d->count > 0; i++, at += d->count * sizeof(uint64_t))
            memcpy(at, d->columns.key + (uint64_t)i * d->room, d->count * sizeof(uint64_t));
        if (rows > 0)
            memcpy(to + sizeof head, d->rows, rows);
    }
    return sizeof head + rows + d->count * WIDTH;
}

int64_t es_drawn_read(es_drawn *d, const es_form *form, const uint8_t *from, uint64_t size)
{
    es_drawn_head head;
    if (size < sizeof head)
        return 0;
    memcpy(&head, from, sizeof head);
    from += sizeof head, size -= sizeof head;
    if (head.size != form->size || head.count > size / (form->size + WIDTH))
        return 0;
    if (head.count > 0) {
        int code = es_drawn_reserve(d, form, head.count);
        if (code != ES_OK)
            return code;
        const uint8_t *at = from + head.count * form->size;
        for (int i = 0; i < ES_BATCH_COLUMNS; i++, at += head.count * sizeof(uint64_t))
            memcpy(d->columns.key + (uint64_t)i * d->room + d->count, at, head.count * sizeof(uint64_t));
        memcpy(d->rows + d->count * form->size, from, head.count * form->size);
        d->count += head.count;
    }
    return (int64_t)(sizeof head + head.count * (form->size + WIDTH));
}
