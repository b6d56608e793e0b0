#include "replay/es_restore.h"

#include <stdlib.h>
#include <string.h>

#include "replay/es_chunk.h"
#include "replay/es_gather.h"
#include "replay/es_notes.h"
#include "replay/es_recover.h"
#include "replay/es_sort.h"

typedef struct es_move {
    es_tables old;
    es_store new;
    uint32_t *to; /* of each old step its new slot, or ES_STEPS_NONE; NULL: the same slot */
    es_restored *restored;
} es_move;

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* --- steps -------------------------------------------------------------------------------- */

static bool same_leaves(const es_store *a, const es_store *b)
{
    bool same = a->num_leaves == b->num_leaves;
    for (uint32_t i = 0; same && i < a->num_leaves; i++)
        same = a->leaves[i].size == b->leaves[i].size;
    return same;
}

/* The newest steps that there is room for, in order of arrival, from the first slot on. */
static int pack_steps(es_move *v)
{
    const es_store *old = &v->old.store;
    uint64_t n = es_rank_count(v->old.steps.living), found = 0;
    /* A store may hold a few steps beyond its capacity. One that is as large can hold them, too. */
    uint64_t room = v->new.capacity < old->capacity ? v->new.capacity : v->new.step_slots;
    uint64_t dropped = n - least(n, room);
    es_sort_pair *order = malloc((n + 1) * sizeof *order);
    v->to = malloc(old->step_slots * sizeof *v->to);
    int code = order == NULL || v->to == NULL ? -ENOMEM : ES_OK;
    for (uint64_t i = 0; code == ES_OK && i < old->step_slots; i++) {
        v->to[i] = ES_STEPS_NONE;
        if (es_rank_has(v->old.steps.living, (uint32_t)i))
            order[found++] = (es_sort_pair){.key = old->steps[i].arrival, .number = (uint32_t)i};
    }
    if (code == ES_OK)
        code = es_sort(order, n);
    for (uint64_t i = dropped; code == ES_OK && i < n; i++) {
        v->to[order[i].number] = (uint32_t)(i - dropped);
        v->new.steps[i - dropped] = old->steps[order[i].number];
    }
    free(order);
    v->restored->steps_dropped = dropped;
    return code;
}

static int move_steps(es_move *v)
{
    const es_store *old = &v->old.store;
    int code = ES_OK;
    if (v->new.step_slots < old->step_slots)
        code = pack_steps(v);
    else
        for (uint64_t i = 0; i < old->step_slots; i++)
            if (old->steps[i].word != 0) /* otherwise it was never used, and its memory need not be touched */
                v->new.steps[i] = old->steps[i];
    v->restored->steps = es_rank_count(v->old.steps.living) - v->restored->steps_dropped;
    v->new.hdr->arrivals = old->hdr->arrivals;
    if (v->new.notes_size == old->notes_size) {
        memcpy(v->new.notes, old->notes, 2 * es_notes_copy_size(old));
        v->new.hdr->notes = old->hdr->notes;
    }
    return code;
}

/* --- items -------------------------------------------------------------------------------- */

/* Whether all steps come that the item refers to. */
static bool comes(const es_move *v, const es_table *t, uint32_t item)
{
    es_window w = es_table_window(t, item);
    uint32_t step = w.last;
    uint64_t span = (uint64_t)w.length + w.before;
    if (v->to == NULL)
        return true;
    for (uint64_t i = 1; v->to[step] != ES_STEPS_NONE && i < span; i++)
        step = es_steps_older(&v->old.steps, step);
    return v->to[step] != ES_STEPS_NONE;
}

static bool same_items(const es_move *v, uint32_t from, uint32_t table)
{
    const es_item_config *a = &v->old.store.tables[from].item, *b = &v->new.tables[table].item;
    const es_output *x = v->old.store.outputs + v->old.store.first_output[from];
    const es_output *y = v->new.outputs + v->new.first_output[table];
    bool same = a->kind == b->kind && a->length == b->length && a->period == b->period && a->before == b->before &&
                a->padded == b->padded;
    return same && (a->kind != ES_ITEM_EXPLICIT ||
                    (a->num_outputs == b->num_outputs && memcmp(x, y, a->num_outputs * sizeof *x) == 0));
}

/* The items of a table that come, in order of insertion; those that are parked after the others, in their order. */
typedef struct es_passengers {
    es_sort_pair *living, *parked;
    uint64_t num_living, num_parked;
} es_passengers;

static int find_passengers(const es_move *v, const es_table *t, const es_table_config *config, es_passengers *p)
{
    uint64_t most = least(config->max_size, v->new.max_items), living = 0, parked = 0;
    p->living = malloc((es_rank_count(t->members) + 1) * sizeof *p->living);
    p->parked = malloc((t->parked.count + 1) * sizeof *p->parked);
    if (p->living == NULL || p->parked == NULL)
        return -ENOMEM;
    for (uint64_t i = 0; i < t->slots; i++) {
        uint32_t item = (uint32_t)i;
        if (!es_rank_has(t->used, item) || !comes(v, t, item))
            continue;
        es_sort_pair one = {.key = es_table_record(t, item).inserted, .number = item};
        if (es_rank_has(t->members, item))
            p->living[living++] = one;
        else
            p->parked[parked++] = one;
    }
    int code = es_sort(p->living, living);
    if (code == ES_OK)
        code = es_sort(p->parked, parked);
    p->num_living = least(living, most);
    p->num_parked = least(parked, config->max_parked);
    memmove(p->living, p->living + (living - p->num_living), p->num_living * sizeof *p->living);
    return code;
}

static uint32_t moved(const es_move *v, uint32_t step)
{
    return v->to == NULL ? step : v->to[step];
}

static void move_item(const es_move *v, const es_table *t, uint32_t table, uint32_t from, uint64_t to)
{
    const es_store *new = &v->new;
    es_item_record *record = &new->items[new->first_record[table] + to];
    *record = es_table_record(t, from);
    record->step = moved(v, es_table_step_of(t, from));
    if (t->config->item.kind == ES_ITEM_EXPLICIT) {
        uint64_t n = t->form.num_outputs;
        memcpy(new->columns + new->first_column[table] + to *n, t->columns + from * n, n * sizeof *t->columns);
    }
}

/* Whether rounds mean the same in both tables: those of sampling without replacement, or ages. */
static bool keeps_ages(const es_move *v, uint32_t from, uint32_t table)
{
    const es_table_config *a = &v->old.store.tables[from], *b = &v->new.tables[table];
    return (a->sampler.kind == ES_HOT_COLD) == (b->sampler.kind == ES_HOT_COLD);
}

/* Whether the sampler draws as it did: then its temperatures fit. */
static bool keeps_temperatures(const es_move *v, uint32_t from, uint32_t table)
{
    return memcmp(&v->old.store.tables[from].sampler, &v->new.tables[table].sampler, sizeof(es_selector_config)) == 0;
}

static void forget_temperatures(const es_move *v, uint32_t table)
{
    es_table_words *words = &v->new.words[table];
    words->tune_at = 0;
    words->temperature[0] = words->temperature[1] = 0;
}

/* Whether the limiter is the one that it was: then it has the limits that it had last. */
static bool keeps_limits(const es_move *v, uint32_t from, uint32_t table)
{
    const es_table_config *a = &v->old.store.tables[from], *b = &v->new.tables[table];
    return a->min_size == b->min_size && a->ratio == b->ratio && a->min_diff == b->min_diff &&
           a->max_diff == b->max_diff && !es_store_layout_is_implicit(b);
}

static void forget_limits(const es_move *v, uint32_t table)
{
    const es_table_config *config = &v->new.tables[table];
    v->new.words[table].min_diff = config->min_diff;
    v->new.words[table].max_diff = config->max_diff;
}

/* All items of a new table are as young as one that comes next, or none was drawn in this round. */
static void forget_ages(const es_move *v, uint32_t table)
{
    const es_store *new = &v->new;
    es_table_words *words = &new->words[table];
    for (uint64_t i = new->first_record[table]; i < new->first_record[table + 1]; i++)
        if (new->items[i].word != 0)
            new->items[i].round = new->tables[table].sampler.kind == ES_HOT_COLD;
    words->round = 1;
    words->cold = words->gone = words->moved = words->aged = words->marked = 0;
}

/* Gives them records, in their order. Returns how many there are. */
static uint64_t move_to_records(const es_move *v, const es_table *t, uint32_t table, const es_passengers *p)
{
    const es_store *new = &v->new;
    es_item_record *records = new->items + new->first_record[table];
    uint64_t slots = new->first_record[table + 1] - new->first_record[table], next = 0;
    bool stay = slots >= t->slots; /* each at its place: their keys stay, and what is drawn by place */
    for (uint64_t i = 0; stay && i < t->slots; i++) {
        uint64_t word = es_table_is_implicit(t) ? t->store->steps[i].word : t->items[i].word;
        if (word != 0)
            records[i].word = es_record_word(es_record_generation(word), 0, ES_RECORD_FREE);
    }
    for (uint64_t i = 0; i < p->num_living; i++, next++)
        move_item(v, t, table, p->living[i].number, stay ? p->living[i].number : next);
    for (uint64_t i = 0; i < p->num_parked; i++, next++)
        move_item(v, t, table, p->parked[i].number, stay ? p->parked[i].number : next);
    for (uint64_t i = 0; es_table_is_implicit(t) && i < p->num_living; i++) { /* they had an order, but no numbers */
        es_item_record *record = &records[stay ? p->living[i].number : i];
        record->inserted = record->updated = new->words[table].inserted - p->num_living + i;
    }
    return next;
}

/* Marks the last step of one, where items are implicit: whether it is as one of these, and there was none. */
static bool mark(const es_move *v, const es_table *t, uint32_t table, uint32_t item)
{
    const es_store *new = &v->new;
    es_window w = es_table_window(t, item);
    uint32_t step = moved(v, w.last), index = new->steps[step].index, most = new->tables[table].item.length;
    uint64_t *word = &new->marks[new->first_mark[table] + step / 64], bit = UINT64_C(1) << step % 64;
    if (w.length != (index < most ? index + 1 : most) || *word & bit)
        return false;
    *word |= bit;
    return true;
}

/* Those that are parked come in: no limiter forbids it. */
static uint64_t move_to_marks(const es_move *v, const es_table *t, uint32_t table, const es_passengers *p)
{
    es_table_words *words = &v->new.words[table];
    uint64_t living = 0, parked = 0;
    for (uint64_t i = 0; i < p->num_living; i++)
        living += mark(v, t, table, p->living[i].number);
    for (uint64_t i = 0; i < p->num_parked; i++)
        parked += mark(v, t, table, p->parked[i].number);
    words->inserted += parked;
    words->clock += parked;
    return living + parked;
}

static uint64_t greatest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static int move_items(es_move *v, uint32_t from, uint32_t table)
{
    const es_table *t = &v->old.table[from];
    es_table_words *words = &v->new.words[table];
    es_passengers p = {NULL, NULL, 0, 0};
    uint64_t came = 0;
    int code = find_passengers(v, t, &v->new.tables[table], &p);
    *words = *t->words;
    words->inserted = greatest(words->inserted, p.num_living); /* or somebody has scribbled on it */
    words->clock = greatest(words->clock, words->inserted);
    if (code == ES_OK)
        came = (es_store_layout_is_implicit(&v->new.tables[table]) ? move_to_marks : move_to_records)(v, t, table, &p);
    if (!keeps_ages(v, from, table))
        forget_ages(v, table);
    if (!keeps_temperatures(v, from, table))
        forget_temperatures(v, table);
    v->restored->min_diff[table] = words->min_diff;
    v->restored->max_diff[table] = words->max_diff;
    v->restored->has_limits[table] = keeps_limits(v, from, table);
    if (!v->restored->has_limits[table])
        forget_limits(v, table);
    v->restored->items[table] = came;
    v->restored->items_dropped[table] = es_rank_count(t->used) - came;
    free(p.living);
    free(p.parked);
    return code;
}

/* --- all of it ------------------------------------------------------------------------------ */

static int move_all(es_move *v, int32_t *tables)
{
    if (!same_leaves(&v->old.store, &v->new))
        return ES_EGEOMETRY;
    int code = move_steps(v);
    for (uint32_t t = 0; t < v->new.num_tables &&code == ES_OK; t++) {
        if (tables[t] >= 0 && ((uint32_t)tables[t] >= v->old.num_tables || !same_items(v, (uint32_t)tables[t], t)))
            tables[t] = -1;
        if (tables[t] >= 0)
            code = move_items(v, (uint32_t)tables[t], t);
    }
    return code;
}

int es_restore_records(void *base, uint64_t size, void *records, uint64_t records_size, int32_t *tables,
                       es_restored *restored, es_trouble *why)
{
    es_move v = {.restored = restored};
    memset(restored, 0, sizeof *restored);
    int code = es_store_map(&v.new, base, size);
    if (code == ES_OK) {
        es_store_fill(&v.new);
        code = es_recover_open_records(&v.old, records, records_size, why);
        if (code == ES_OK)
            code = move_all(&v, tables);
        es_recover_close(&v.old);
        es_store_unmap(&v.new);
    }
    free(v.to);
    return code;
}

int64_t es_restore_rows(void *base, uint64_t size, int directory, uint64_t rows, uint64_t *next, uint64_t most,
                        es_trouble *why)
{
    es_store s;
    es_chunk_files files;
    uint64_t done = 0;
    int code = es_store_map_filling(&s, base, size);
    if (code != ES_OK)
        return code;
    es_chunk_form form = es_chunk_form_of(s.packed_size, rows, s.hdr->uuid);
    uint8_t *row = malloc(form.entry_size);
    code = row == NULL ? -ENOMEM : ES_OK;
    es_chunk_files_init(&files, directory, &form);
    for (; *next < s.step_slots && done < most && code == ES_OK; ++*next) {
        const es_step_record *record = &s.steps[*next];
        if (es_record_state(record->word) != ES_RECORD_LIVE)
            continue;
        why->index = record->arrival;
        code = es_chunk_read_row(&files, record->arrival, row);
        if (code == ES_OK)
            es_gather_unpack(&s, row, (uint32_t)*next);
        done += s.packed_size > 0 ? s.packed_size : 1;
    }
    if (code == ES_OK && done == 0)
        es_store_filled(&s);
    free(row);
    es_chunk_files_close(&files);
    es_store_unmap(&s);
    return code == ES_OK ? (int64_t)done : code;
}
