#include "es_dump.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/es_notes.h"

void es_dump_note(es_dump *d, const char *what, uint64_t which, uint64_t value)
{
    if (d->count == ES_DUMP_ROOM)
        abort();
    d->entries[d->count++] = (struct es_dump_entry){what, which, value};
}

void es_dump_note_double(es_dump *d, const char *what, uint64_t which, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    es_dump_note(d, what, which, bits);
}

void es_dump_note_bytes(es_dump *d, const char *what, uint64_t which, const void *bytes, uint64_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    es_dump_note(d, what, which, h);
}

static void dump_step(es_dump *d, const es_store *s, uint64_t i)
{
    const es_step_record *r = &s->steps[i];
    es_dump_note(d, "word of step", i, r->word);
    if (es_record_state(r->word) == ES_RECORD_FREE)
        return;
    es_dump_note(d, "stream of step", i, r->stream);
    es_dump_note(d, "number of step", i, r->number);
    es_dump_note(d, "environment of step", i, r->environment);
    es_dump_note(d, "episode of step", i, r->episode);
    es_dump_note(d, "arrival of step", i, r->arrival);
    es_dump_note(d, "version of step", i, r->version);
    es_dump_note(d, "index of step", i, r->index);
    for (uint32_t l = 0; l < s->num_leaves; l++)
        es_dump_note_bytes(d, "bytes of step", i, es_store_at(s, &s->leaves[l], (uint32_t)i), s->leaves[l].size);
}

static void dump_item(es_dump *d, const es_item_record *r, uint64_t i)
{
    es_dump_note(d, "word of item", i, r->word);
    if (es_record_state(r->word) == ES_RECORD_FREE)
        return;
    es_dump_note(d, "step of item", i, r->step);
    es_dump_note(d, "length of item", i, r->length);
    es_dump_note_double(d, "priority of item", i, r->priority);
    es_dump_note(d, "times_sampled of item", i, r->times_sampled);
    es_dump_note(d, "inserted of item", i, r->inserted);
    es_dump_note(d, "updated of item", i, r->updated);
    es_dump_note(d, "round of item", i, r->round);
    es_dump_note(d, "before of item", i, r->before);
    es_dump_note(d, "flags of item", i, r->flags);
}

static void dump_table(es_dump *d, const es_table_words *w, uint64_t t)
{
    es_dump_note(d, "inserted of table", t, w->inserted);
    es_dump_note(d, "sampled of table", t, w->sampled);
    es_dump_note(d, "evicted of table", t, w->evicted);
    es_dump_note(d, "clock of table", t, w->clock);
    es_dump_note_double(d, "highest of table", t, w->highest);
    es_dump_note(d, "random of table", t, w->random);
    es_dump_note(d, "round of table", t, w->round);
    es_dump_note(d, "resetting of table", t, w->resetting);
    es_dump_note(d, "parkings of table", t, w->parkings);
    es_dump_note(d, "cold of table", t, w->cold);
    es_dump_note(d, "gone of table", t, w->gone);
    es_dump_note(d, "moved of table", t, w->moved);
    es_dump_note(d, "aged of table", t, w->aged);
    es_dump_note(d, "marked of table", t, w->marked);
    es_dump_note(d, "tune_at of table", t, w->tune_at);
    es_dump_note_double(d, "hot temperature of table", t, w->temperature[0]);
    es_dump_note_double(d, "cold temperature of table", t, w->temperature[1]);
    es_dump_note_double(d, "min_diff of table", t, w->min_diff);
    es_dump_note_double(d, "max_diff of table", t, w->max_diff);
}

void es_dump_store(es_dump *d, const void *base, uint64_t size)
{
    es_store s;
    uint8_t notes[64];
    int code = es_store_map(&s, (void *)(uintptr_t)base, size);
    es_dump_note(d, "result of es_store_map", 0, (uint64_t)code);
    if (code != ES_OK)
        return;
    es_dump_note_bytes(d, "header", 0, base, offsetof(es_store_header, arrivals));
    es_dump_note(d, "arrivals", 0, s.hdr->arrivals);
    es_dump_note(d, "step whose items are made", 0, s.hdr->making.step);
    es_dump_note_bytes(d, "inbox", 0, &s.hdr->inbox, sizeof s.hdr->inbox);
    es_dump_note_bytes(d, "updates", 0, &s.hdr->updates, sizeof s.hdr->updates);
    es_dump_note_bytes(d, "rounds of the inbox", 0, s.inbox, s.inbox_slots * sizeof *s.inbox);
    es_dump_note_bytes(d, "rounds of the updates", 0, s.updates, s.update_slots * sizeof *s.updates);
    es_dump_note(d, "length of the redo list", 0, s.redo.log->length);
    if (s.notes_size > 0 && s.notes_size <= sizeof notes) {
        es_notes_read(&s, notes, s.notes_size);
        es_dump_note_bytes(d, "notes", s.hdr->notes, notes, s.notes_size);
    }
    for (uint32_t t = 0; t < s.num_tables; t++)
        dump_table(d, &s.words[t], t);
    for (uint64_t i = 0; i < s.step_slots; i++)
        dump_step(d, &s, i);
    for (uint64_t i = 0; i < s.first_mark[s.num_tables]; i++)
        es_dump_note(d, "marks", i, s.marks[i]);
    for (uint64_t i = 0; i < s.first_record[s.num_tables]; i++)
        dump_item(d, &s.items[i], i);
    es_store_unmap(&s);
}

bool es_dump_differ(const es_dump *a, const es_dump *b)
{
    return a->count != b->count || memcmp(a->entries, b->entries, a->count * sizeof *a->entries) != 0;
}

bool es_dump_same(const es_dump *got, const es_dump *want)
{
    if (!es_dump_differ(got, want))
        return true;
    uint64_t i = 0;
    while (i < got->count && i < want->count &&
           memcmp(&got->entries[i], &want->entries[i], sizeof got->entries[i]) == 0)
        i++;
    const struct es_dump_entry *e = i < got->count ? &got->entries[i] : NULL,
                               *w = i < want->count ? &want->entries[i] : NULL;
    fprintf(stderr, "    first difference, at %" PRIu64 ": got", i);
    e != NULL ? fprintf(stderr, " %s %" PRIu64 ": 0x%" PRIx64, e->what, e->which, e->value)
              : fprintf(stderr, " no more");
    fprintf(stderr, ", want");
    w != NULL ? fprintf(stderr, " %s %" PRIu64 ": 0x%" PRIx64 "\n", w->what, w->which, w->value)
              : fprintf(stderr, " no more\n");
    return false;
}
