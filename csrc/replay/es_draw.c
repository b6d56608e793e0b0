#include "replay/es_draw.h"

#include <stdlib.h>

#include "base/es_prefetch.h"
#include "replay/es_gather.h"
#include "replay/es_random.h"
#include "replay/es_sort.h"

/* Draws that are made at once. */
#define MANY 256
/* Draws that change the store together. */
#define SOME ES_STORE_DRAWS
/* Draws that are weighed together, again a multiple. */
#define WEIGHED 32
/* How often an implicit item was drawn. */
#define UNKNOWN (-1)
/* So many draws' records, links, and rows, are on their way at a time: multiples of SOME. */
#define RECORDS_AHEAD 24
#define LINKS_AHEAD 16
#define ROWS_AHEAD 16

/* Whether the limiter allows the n-th draw from now on. If so, it allows those before it. */
static bool allows_nth(const es_table *t, uint64_t n)
{
    es_rate_counts counts = es_table_counts(t);
    bool each_goes = t->config->max_times_sampled == 1;
    if (each_goes && counts.size < n)
        return false;
    counts.sampled += n - 1;
    counts.size -= each_goes ? n - 1 : 0;
    return es_rate_limiter_can_sample(t->config, &t->limits, &counts, 1);
}

uint64_t es_draw_allowed(const es_table *t, uint64_t n)
{
    uint64_t allowed = 0, too_many = n + 1;
    if (n > 0 && allows_nth(t, n))
        return n;
    while (too_many - allowed > 1) {
        uint64_t middle = allowed + (too_many - allowed) / 2;
        if (allows_nth(t, middle))
            allowed = middle;
        else
            too_many = middle;
    }
    return allowed;
}

static bool draws_are_independent(const es_table *t)
{
    return t->aside == NULL && t->config->max_times_sampled == 0;
}

bool es_draw_may_fall_short(const es_table *t, uint64_t n)
{
    return !draws_are_independent(t) || es_draw_allowed(t, n) < n || t->config->sampler.kind == ES_CUSTOM;
}

/* The step that the item ends with. The record says so, too; but somebody may have scribbled on it. */
static uint32_t last_step(const es_table *t, uint32_t item)
{
    if (es_table_is_implicit(t))
        return item;
    uint32_t step = *(volatile uint32_t *)&t->items[item].step;
    return step < t->store->step_slots ? step : t->step_of[item];
}

static int64_t version_of(const es_table *t, uint32_t item)
{
    return *(volatile uint32_t *)&t->store->steps[last_step(t, item)].version;
}

/* The same as describe(), of implicit items. Their age is in steps. */
static void describe_implicit(const es_table *t, const uint32_t *items, uint64_t n, const es_drawing *to, uint64_t at)
{
    const es_store *store = t->store;
    uint64_t arrivals = store->hdr->arrivals;
    int64_t size = (int64_t)es_table_size(t);
    for (uint64_t i = 0; i < n; i++) {
        const es_step_record *record = &store->steps[items[i]];
        to->key[at + i] = (uint64_t)es_record_generation(record->word) << 32 | items[i];
        to->priority[at + i] = 1;
        to->table_size[at + i] = size;
        to->age[at + i] = (int64_t)(arrivals - record->arrival - 1);
        to->version[at + i] = record->version;
    }
}

/* What is said of items beside their probabilities, and how often they were drawn. */
static void describe(es_table *t, const uint32_t *items, uint64_t n, const es_drawing *to, uint64_t at)
{
    if (es_table_is_implicit(t)) {
        describe_implicit(t, items, n, to, at);
        return;
    }
    const es_item_record *records = t->items;
    const es_store *store = t->store;
    uint64_t *key = to->key + at, inserted = t->words->inserted;
    double *priority = to->priority + at;
    int64_t *table_size = to->table_size + at, *age = to->age + at, size = (int64_t)es_table_size(t);
    for (uint64_t i = 0; i < n; i++) {
        const es_item_record *record = &records[items[i]];
        key[i] = (uint64_t)es_record_generation(record->word) << 32 | items[i];
        priority[i] = record->priority;
        table_size[i] = size;
        age[i] = (int64_t)(inserted - record->inserted - 1);
        to->version[at + i] = store->dated ? version_of(t, items[i]) : 0;
    }
}

/* Their ratios, or their weights. Needs no record. */
static void weigh(es_table *t, const uint32_t *items, uint64_t n, double *ratio, double beta)
{
    es_selector_ratios(t->sampler, items, n, ratio);
    if (!isnan(beta))
        es_draw_weigh(ratio, n, beta);
}

void es_draw_describe(es_table *t, uint32_t item, const es_drawing *to, uint64_t at)
{
    bool left = t->aside == NULL || !es_rank_has(t->aside, item);
    describe(t, &item, 1, to, at);
    weigh(t, &item, 1, to->ratio + at, NAN);
    to->probability[at] = left ? t->sampler->class->probability(t->sampler, item) : 0;
    to->times_sampled[at] = es_table_is_implicit(t) ? UNKNOWN : (int64_t)t->items[item].times_sampled;
}

/* Notes n draws, of which done were made before in the same call. random: the generator's state after them. */
static void note_draws(es_table *t, uint64_t n, uint64_t random, const es_draw_into *into, uint64_t done)
{
    es_redo *redo = &t->store->redo;
    es_redo_set(redo, &t->words->sampled, t->words->sampled + n);
    es_redo_set(redo, &t->words->random, random);
    if (into->word != NULL)
        es_redo_set(redo, into->word, into->value + done + n);
}

/* How often these items were drawn, with the draws that are noted. */
static void note_times(es_table *t, const uint32_t *items, uint64_t n, int64_t *times_sampled)
{
    es_redo *redo = &t->store->redo;
    const es_item_record *records = t->items;
    uint64_t seen = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (es_table_is_implicit(t)) {
            times_sampled[i] = UNKNOWN;
            continue;
        }
        uint64_t times = records[items[i]].times_sampled + 1, bit = UINT64_C(1) << items[i] % 64;
        if (seen & bit) /* it may be one of those before it */
            for (uint64_t j = 0; j < i; j++)
                times += items[j] == items[i];
        seen |= bit;
        times_sampled[i] = (int64_t)times;
        es_redo_set(redo, &records[items[i]].times_sampled, times);
    }
}

/* Some independent draws whose records have come. They change all at once: a list says what they make of each word. */
static void note_some(es_table *t, const uint32_t *items, uint64_t n, uint64_t random, const es_drawing *to,
                      uint64_t at, const es_draw_into *into, uint64_t done)
{
    note_times(t, items, n, to->times_sampled + at);
    describe(t, items, n, to, at);
    note_draws(t, n, random, into, done);
    es_redo_commit(&t->store->redo);
}

static void fetch_records(const es_table *t, const uint32_t *items, uint64_t n)
{
    const es_step_record *steps = t->store->steps;
    for (uint64_t i = 0; i < n; i++) {
        if (!es_table_is_implicit(t)) {
            es_prefetch(&t->items[items[i]]);
            continue;
        }
        es_prefetch(&steps[items[i]].word);
        es_prefetch(&steps[items[i]].index); /* it may be in the next line */
    }
}

/* Their records have come. An item of several steps is found through the links of these. */
static void fetch_links(const es_table *t, const uint32_t *items, uint64_t n)
{
    const es_step_link *links = t->steps->links;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t last, span = t->form.span;
        if (es_table_is_in_a_row(t, items[i]))
            continue;
        last = last_step(t, items[i]);
        if (last >= t->store->step_slots)
            continue;
        es_prefetch(&links[last]);
        es_prefetch(&links[last < span ? 0 : last - span + 1]); /* where one writer writes, the others are in between */
    }
}

static es_found found_implicit(const es_table *t, uint32_t item)
{
    return (es_found){
        .last = item,
        .span = {es_implicit_length(&t->implicit, item), 0},
        .in_a_row = es_table_is_in_a_row(t, item),
    };
}

/* The table has all of it, too, but the record is needed anyway. But somebody may have scribbled on it. */
static es_found found_by_record(const es_table *t, uint32_t item)
{
    const volatile es_item_record *record = &t->items[item];
    es_found found = {
        .last = record->step,
        .flags = record->flags,
        .span = {record->length, record->before},
        .columns = es_table_columns(t, item),
        .in_a_row = es_table_is_in_a_row(t, item),
    };
    if (found.last >= t->store->step_slots || found.span.length == 0 || found.span.length > t->form.span ||
        found.span.before > t->form.span - found.span.length)
        found.last = t->step_of[item], found.span = t->spans[item];
    return found;
}

/* Their links have come, so their steps are found, and the rows are on their way. first: how many of this call's items
 * were before. */
static void find_steps(const es_table *t, const uint32_t *items, uint64_t n, uint64_t first)
{
    uint32_t place = (uint32_t)(first % ES_OUTPUTS_AHEAD);
    for (uint32_t i = 0; i < n; i++) {
        t->form.found[place + i] = (es_table_is_implicit(t) ? found_implicit : found_by_record)(t, items[i]);
        es_outputs_find(&t->form, t->steps, place + i);
    }
}

void es_draw_write(const es_table *t, uint32_t item, void *const *leaves, uint64_t at, bool streams)
{
    if (!es_table_is_of_many(t)) {
        es_gather(t->store, &t->step_of[item], 1, leaves, at, streams);
        return;
    }
    find_steps(t, &item, 1, 0);
    es_outputs_write(&t->form, 0, 1, leaves, at, streams);
}

/* Their records have come. */
static void fetch_rows(const es_table *t, const uint32_t *items, uint32_t *steps, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        steps[i] = last_step(t, items[i]); /* step_of has it, too, but the record is needed anyway */
        es_store_fetch_step(t->store, steps[i]);
        if (t->store->dated)
            es_prefetch(&t->store->steps[steps[i]]);
    }
}

static uint64_t up_to(uint64_t n, uint64_t most)
{
    return n < most ? n : most;
}

/* Draws that change nothing for the next one: an item may come again, and none goes. done: how many of the call's are
 * made already. ES_ESELECTOR: none is made. */
static int64_t draw_independent(es_table *t, uint64_t n, const es_drawing *to, uint64_t at, const es_draw_into *into,
                                uint64_t done)
{
    uint64_t allowed = es_draw_allowed(t, up_to(n, MANY));
    uint32_t items[MANY], steps[MANY];
    bool many = es_table_is_of_many(t);
    uint64_t before = t->words->random, after = before;
    if (allowed == 0)
        return 0;
    t->sampler->class->draw(t->sampler, &after, allowed, items, to->probability + at);
    if (items[0] == ES_SELECTOR_NONE)
        return ES_ESELECTOR;
    bool random = t->sampler->class->random;
    /* Each draw misses the cache at its record, then at its links, if it has several steps, then at its rows. So all
     * records come first, the others follow. */
    uint64_t links_at = RECORDS_AHEAD, rows_at = links_at + (many ? LINKS_AHEAD : 0), last = rows_at + ROWS_AHEAD;
    for (uint64_t i = 0; i < allowed + last; i += SOME) {
        uint64_t j = i - links_at, k = i - rows_at, done_at = i - last; /* below 0: nothing yet */
        if (i < allowed)
            fetch_records(t, items + i, up_to(allowed - i, SOME));
        if (i < allowed && i % WEIGHED == 0) /* while they come */
            weigh(t, items + i, up_to(allowed - i, WEIGHED), to->ratio + at + i, into->beta);
        if (many && i >= links_at && j < allowed)
            fetch_links(t, items + j, up_to(allowed - j, SOME));
        if (many && i >= rows_at && k < allowed)
            find_steps(t, items + k, up_to(allowed - k, SOME), k);
        else if (i >= rows_at && k < allowed)
            fetch_rows(t, items + k, steps + k, up_to(allowed - k, SOME));
        if (i < last)
            continue;
        uint64_t some = up_to(allowed - done_at, SOME);
        if (many)
            es_outputs_write(&t->form, (uint32_t)(done_at % ES_OUTPUTS_AHEAD), some, into->leaves, at + done_at,
                             into->streams);
        else
            es_gather_near(t->store, steps + done_at, some, into->leaves, at + done_at, into->streams);
        note_some(t, items + done_at, some, random ? es_random_after(before, done_at + some) : before, to, at + done_at,
                  into, done + done_at);
    }
    return (int64_t)allowed;
}

/* A new round: all members are left again. */
static int begin_round(es_table *t)
{
    uint64_t size = es_table_size(t), n = 0;
    es_sort_pair *order = malloc(size * sizeof *order);
    if (order == NULL)
        return -ENOMEM;
    for (; n < size; n++) {
        uint32_t item = es_rank_member(t->members, n);
        order[n] = (es_sort_pair){.key = t->items[item].inserted, .number = item};
    }
    int code = es_sort(order, n);
    for (uint64_t i = 0; code == ES_OK && i < n; i++) {
        es_candidate c = es_table_candidate(t, order[i].number);
        es_rank_remove(t->aside, c.item);
        t->sampler->class->insert(t->sampler, &c);
    }
    free(order);
    return code;
}

/* One draw, which may take the item out of the round, or out of the table. 1, or -ENOMEM or ES_ESELECTOR. */
static int64_t draw_one(es_table *t, const es_drawing *to, uint64_t at, const es_draw_into *into, uint64_t done)
{
    es_redo *redo = &t->store->redo;
    uint64_t random = t->words->random, round = t->words->round;
    uint32_t item;
    if (t->aside != NULL && es_rank_count(t->aside) == es_table_size(t)) {
        if (begin_round(t) != ES_OK)
            return -ENOMEM;
        round++; /* in the store with the draw: until then nothing says that the items are left again */
    }
    t->sampler->class->draw(t->sampler, &random, 1, &item, to->probability + at);
    if (item == ES_SELECTOR_NONE) {
        if (round != t->words->round) { /* the round that has begun goes on with the next draw */
            es_redo_set(redo, &t->words->round, round);
            es_redo_commit(redo);
        }
        return ES_ESELECTOR;
    }
    bool used_up =
        t->config->max_times_sampled != 0 && t->items[item].times_sampled + 1 >= t->config->max_times_sampled;
    describe(t, &item, 1, to, at);
    to->times_sampled[at] = (int64_t)t->items[item].times_sampled + 1;
    weigh(t, &item, 1, to->ratio + at, into->beta);
    es_draw_write(t, item, into->leaves, at, into->streams);
    es_redo_set(redo, &t->items[item].times_sampled, t->items[item].times_sampled + 1);
    note_draws(t, 1, random, into, done);
    if (t->aside != NULL) {
        es_redo_set(redo, &t->items[item].round, round);
        es_redo_set(redo, &t->words->round, round);
    }
    if (used_up)
        es_table_note_free(t, item);
    es_redo_commit(redo);
    if (t->aside != NULL) {
        es_rank_add(t->aside, item);
        es_selector_set_aside(t->sampler, item);
    }
    if (used_up)
        es_table_leave(t, item);
    return 1;
}

int64_t es_draw(es_table *t, uint64_t n, const es_drawing *to, uint64_t at, const es_draw_into *into)
{
    bool independent = draws_are_independent(t);
    uint64_t done = 0;
    while (done < n && es_table_can_sample(t, 1)) {
        int64_t some = independent ? draw_independent(t, n - done, to, at + done, into, done)
                                   : draw_one(t, to, at + done, into, done);
        if (some < 0)
            return done == 0 ? some : (int64_t)done;
        done += (uint64_t)some;
    }
    return (int64_t)done;
}
