#define _XOPEN_SOURCE 700 /* pwrite, ftruncate */

#include "replay/es_save.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "replay/es_gather.h"

/* Rows that are copied at once, so that the replay waits for a copy and not for the disk (bytes); at least one row. */
#define SOME ((uint64_t)1 << 20)
/* Slots that are looked at once. */
#define SOME_SLOTS 65536
#define WORD 64

struct es_save {
    es_save_config config;
    uint64_t arrivals; /* of the store when it began */
    uint64_t *bits;    /* of slots whose rows are to be written */
    uint64_t words, start, seen;
    es_chunk_files mine, others; /* those of es_save_write(); those of es_save_before() */
    uint8_t *entries;            /* rows that were taken, each with its word */
    uint8_t *row;                /* of es_save_before() */
    uint64_t *arrival;           /* of each */
    uint64_t room, taken;
    uint64_t done; /* bytes of rows */
    int code;      /* of es_save_before() and es_save_take() */
    uint64_t done_then;
    int code_then; /* both when rows were taken last: for es_save_write() */
    uint64_t *chunks;
    uint64_t num_chunks, room_chunks, last_chunk;
};

/* --- records -------------------------------------------------------------------------------- */

static int write_part(int fd, const es_store *store, const void *from, uint64_t size)
{
    uint64_t at = (uint64_t)((const uint8_t *)from - (const uint8_t *)store->hdr);
    for (uint64_t done = 0; done < size;) {
        ssize_t n = pwrite(fd, (const uint8_t *)from + done, size - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENOSPC;
        done += (uint64_t)n;
    }
    return ES_OK;
}

/* How many records were used so far: the lowest free one is used first, and the words of those that never were are 0. A
 * word may become 0 again when its generation has gone round, so the members say it, too. */
static uint64_t count_used(const void *records, uint64_t size, uint64_t n, const es_rank *members)
{
    uint64_t count = es_rank_count(members), unused = n;
    uint64_t used = count == 0 ? 0 : es_rank_member(members, count - 1) + UINT64_C(1);
    while (used < unused) {
        uint64_t middle = used + (unused - used) / 2;
        if (*(const volatile uint64_t *)(const void *)((const uint8_t *)records + middle * size) != 0)
            used = middle + 1;
        else
            unused = middle;
    }
    return used;
}

static int write_table(const es_store *store, const es_table *t, int fd)
{
    if (es_table_is_implicit(t))
        return write_part(fd, store, t->implicit.marks, es_implicit_bits_size(&t->implicit));
    uint64_t used = count_used(t->items, sizeof *t->items, t->slots, t->used);
    int code = write_part(fd, store, t->items, used * sizeof *t->items);
    if (code == ES_OK && t->config->item.kind == ES_ITEM_EXPLICIT)
        code = write_part(fd, store, t->columns, used * t->form.num_outputs * sizeof *t->columns);
    return code;
}

/* What comes before the rows, at the same places, but for records that were never used. */
static int write_records(const es_tables *m, int fd, uint64_t *size)
{
    const es_store *store = &m->store;
    uint64_t steps = count_used(store->steps, sizeof *store->steps, store->step_slots, m->steps.living);
    int code = write_part(fd, store, store->hdr, (uint64_t)((uint8_t *)store->steps - (uint8_t *)store->hdr));
    if (code == ES_OK)
        code = write_part(fd, store, store->steps, steps * sizeof *store->steps);
    for (uint32_t t = 0; t < m->num_tables && code == ES_OK; t++)
        code = write_table(store, &m->table[t], fd);
    *size = (uint64_t)(store->rows - (uint8_t *)store->hdr);
    return code == ES_OK && ftruncate(fd, (off_t)*size) != 0 ? -errno : code;
}

/* The slot of an old step: perhaps not the oldest. */
static uint32_t old_step(const es_steps *s)
{
    uint32_t open = s->open.first, bare = s->bare.first;
    if (open == ES_ORDER_NONE || bare == ES_ORDER_NONE)
        return open == ES_ORDER_NONE ? (bare == ES_ORDER_NONE ? 0 : bare) : open;
    return s->store->steps[open].arrival < s->store->steps[bare].arrival ? open : bare;
}

/* --- beginning and ending --------------------------------------------------------------------- */

static es_save *new_save(const es_store *store, const es_save_config *config)
{
    es_save *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    es_chunk_form form = es_chunk_form_of(store->packed_size, config->rows, store->hdr->uuid);
    s->config = *config;
    s->words = (store->step_slots + WORD - 1) / WORD;
    s->bits = calloc(s->words, sizeof *s->bits);
    s->room = SOME / form.entry_size > 0 ? SOME / form.entry_size : 1;
    s->entries = calloc(s->room, form.entry_size);
    s->row = calloc(1, form.entry_size);
    s->arrival = malloc(s->room * sizeof *s->arrival);
    es_chunk_files_init(&s->mine, config->directory, &form);
    es_chunk_files_init(&s->others, config->directory, &form);
    if (s->bits != NULL && s->entries != NULL && s->row != NULL && s->arrival != NULL)
        return s;
    es_save_free(s);
    return NULL;
}

es_save *es_save_begin(const es_tables *m, const es_save_config *config, es_save_state *state, int *code)
{
    const es_store *store = &m->store;
    es_save *s = new_save(store, config);
    *code = -ENOMEM;
    if (s == NULL)
        return NULL;
    *state = (es_save_state){
        .arrivals = store->hdr->arrivals, .steps = es_rank_count(m->steps.living), .row_size = store->packed_size};
    *code = write_records(m, config->records, &state->records_size);
    if (*code != ES_OK) {
        es_save_free(s);
        return NULL;
    }
    es_rank_copy(m->steps.living, s->bits);
    s->arrivals = state->arrivals;
    s->start = old_step(&m->steps) / WORD;
    return s;
}

int es_save_end(es_save *s)
{
    es_chunk_files_close(&s->others);
    return s->code;
}

void es_save_free(es_save *s)
{
    es_chunk_files_close(&s->mine);
    es_chunk_files_close(&s->others);
    free(s->bits);
    free(s->entries);
    free(s->row);
    free(s->arrival);
    free(s->chunks);
    free(s);
}

/* --- chunks ----------------------------------------------------------------------------------- */

static void fail(es_save *s, int code)
{
    if (s->code == ES_OK)
        s->code = code;
}

/* Notes that a step is in that chunk. There are few, and mostly it is the same one. */
static void note_chunk(es_save *s, uint64_t number)
{
    uint64_t low = 0, high = s->num_chunks;
    if (s->num_chunks > 0 && s->chunks[s->last_chunk] == number)
        return;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (s->chunks[middle] < number)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == s->num_chunks || s->chunks[low] != number) {
        if (s->num_chunks == s->room_chunks) {
            uint64_t room = 2 * s->room_chunks + 64;
            uint64_t *grown = realloc(s->chunks, room * sizeof *grown);
            if (grown == NULL) {
                fail(s, -ENOMEM);
                return;
            }
            s->chunks = grown;
            s->room_chunks = room;
        }
        memmove(s->chunks + low + 1, s->chunks + low, (s->num_chunks - low) * sizeof *s->chunks);
        s->chunks[low] = number;
        s->num_chunks++;
    }
    s->last_chunk = low;
}

uint64_t es_save_num_chunks(const es_save *s)
{
    return s->num_chunks;
}

uint64_t es_save_chunk(const es_save *s, uint64_t i)
{
    return s->chunks[i];
}

int es_save_finish_chunk(const es_save *s, uint64_t i, es_chunk_header *header)
{
    return es_chunk_finish(s->config.directory, &s->mine.form, s->chunks[i], header);
}

/* --- rows ------------------------------------------------------------------------------------- */

/* The row in that slot is to be written no more. Whether somebody writes it: otherwise it is in a file already.
 * arrival: that of its step, which may be gone, but no other has come since. */
static bool claim(es_save *s, const es_store *store, uint32_t slot, uint64_t *arrival)
{
    *arrival = *(const volatile uint64_t *)&store->steps[slot].arrival;
    s->bits[slot / WORD] &= ~(UINT64_C(1) << slot % WORD);
    if (*arrival >= s->arrivals) {
        fail(s, ES_EDAMAGED);
        return false;
    }
    note_chunk(s, *arrival / s->config.rows);
    return *arrival >= s->config.first;
}

void es_save_before(es_save *s, const es_store *store, uint32_t slot)
{
    uint64_t arrival;
    if (!(s->bits[slot / WORD] >> slot % WORD & 1) || s->code != ES_OK)
        return;
    if (claim(s, store, slot, &arrival)) {
        es_gather_pack(store, slot, s->row);
        int code = es_chunk_write_row(&s->others, arrival, s->row);
        if (code != ES_OK)
            fail(s, code);
    }
    s->done += store->packed_size;
}

bool es_save_take(es_save *s, const es_store *store)
{
    const es_chunk_form *form = &s->mine.form;
    bool more = false;
    s->taken = 0;
    for (uint64_t looked = 0; s->seen < s->words && s->code == ES_OK;) {
        uint64_t word = (s->start + s->seen) % s->words;
        if (s->bits[word] == 0) {
            s->seen++;
            continue;
        }
        more = s->taken == s->room || looked++ == SOME_SLOTS;
        if (more)
            break;
        uint32_t slot = (uint32_t)(word * WORD + (uint64_t)__builtin_ctzll(s->bits[word]));
        uint64_t arrival;
        if (claim(s, store, slot, &arrival)) {
            es_gather_pack(store, slot, s->entries + s->taken * form->entry_size);
            s->arrival[s->taken++] = arrival;
        }
        s->done += form->row_size;
    }
    s->done_then = s->done;
    s->code_then = s->code;
    return more || s->taken > 0 || s->code != ES_OK;
}

int64_t es_save_write(es_save *s)
{
    const es_chunk_form *form = &s->mine.form;
    int code = s->code_then;
    for (uint64_t i = 0; i < s->taken && code == ES_OK;) {
        uint64_t n = 0, first = s->arrival[i], chunk = first / form->rows;
        uint8_t *entries = s->entries + i * form->entry_size;
        for (; i < s->taken && s->arrival[i] == first + n && s->arrival[i] / form->rows == chunk; i++, n++)
            es_chunk_seal(form, s->arrival[i], entries + n * form->entry_size);
        code = es_chunk_write(&s->mine, first, entries, n);
    }
    return code == ES_OK ? (int64_t)s->done_then : code;
}
