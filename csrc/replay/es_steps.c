#include "replay/es_steps.h"

#include <stdlib.h>
#include <string.h>

#include "base/es_memory.h"

int es_steps_init(es_steps *s, es_store *store)
{
    uint64_t slots = store->step_slots;
    *s = (es_steps){
        .store = store,
        .living = es_rank_new(slots),
        .episode_of = es_memory_new(slots, sizeof *s->episode_of),
        .items = es_memory_new(slots, sizeof *s->items),
        .next_item = es_memory_new(store->first_item[store->num_tables], sizeof *s->next_item),
    };
    if (store->keep > 1)
        s->links = es_memory_new(slots, sizeof *s->links);
    for (uint32_t t = 0; t < store->num_tables; t++)
        s->some_protected |= store->tables[t].is_protected != 0;
    bool whole = s->living != NULL && s->episode_of != NULL && s->items != NULL && s->next_item != NULL &&
                 (store->keep == 1 || s->links != NULL);
    int code = es_order_init(&s->open, slots);
    s->bare = es_order_beside(&s->open);
    if (code == ES_OK && store->is_columns)
        code = es_hold_init(&s->hold, slots);
    return code == ES_OK && whole ? ES_OK : -ENOMEM;
}

void es_steps_free(es_steps *s)
{
    es_rank_free(s->living);
    es_hold_free(&s->hold);
    es_order_free(&s->open);
    free(s->episode_of);
    free(s->items);
    free(s->next_item);
    free(s->links);
    es_streams_free(&s->streams);
}

int es_steps_reserve(es_steps *s)
{
    return es_streams_reserve(&s->streams);
}

/* --- what is known of a step -------------------------------------------------------- */

uint32_t es_steps_last(const es_steps *s, uint64_t stream, uint32_t environment)
{
    uint32_t found = es_streams_find(&s->streams, stream, environment);
    return found == ES_STREAMS_NONE ? ES_STEPS_NONE : s->streams.all[found].last;
}

bool es_steps_has(const es_steps *s, uint64_t stream, uint32_t environment, uint64_t number)
{
    uint32_t step = es_steps_last(s, stream, environment);
    while (step != ES_STEPS_NONE && s->links[step].number > number)
        step = es_steps_older(s, step);
    return step != ES_STEPS_NONE && s->links[step].number == number;
}

static es_stream *stream_that_has(const es_steps *s, uint32_t step)
{
    return &s->streams.all[s->streams.episodes[s->episode_of[step]].stream];
}

static uint64_t number_of(const es_steps *s, uint32_t step)
{
    return s->links != NULL ? s->links[step].number : s->store->steps[step].number;
}

/* Among those of an order, which are in order of arrival: mostly as the last one. */
static void insert(const es_steps *s, es_order *order, uint32_t step)
{
    uint64_t arrival = s->store->steps[step].arrival;
    uint32_t before = order->last;
    while (before != ES_ORDER_NONE && !s->recovering && s->store->steps[before].arrival > arrival)
        before = es_order_previous(order, before);
    es_order_insert_after(order, before, step);
}

static bool is_bare(const es_steps *s, uint32_t step)
{
    return s->items[step] == 0 && (s->links == NULL || s->links[step].uses == 0);
}

static bool is_kept(const es_steps *s, uint32_t step)
{
    return s->links != NULL ? s->links[step].kept : stream_that_has(s, step)->last == step;
}

/* --- the steps of a stream ------------------------------------------------------- */

static uint32_t run_up_to(const es_steps *s, uint32_t step)
{
    uint32_t older = s->links[step].older - 1, keep = s->store->keep;
    if (older == ES_STEPS_NONE || s->episode_of[older] != s->episode_of[step] ||
        number_of(s, older) + 1 != number_of(s, step))
        return 1;
    return 1 + (s->links[older].run < keep ? s->links[older].run : keep);
}

/* Says of a step, and of those after it, how many of its episode end with it. */
static void count_runs(es_steps *s, uint32_t step)
{
    for (uint32_t n = 0; step != ES_STEPS_NONE && n <= s->store->keep; n++, step = s->links[step].newer - 1) {
        uint32_t run = run_up_to(s, step);
        if (n > 0 && s->links[step].run == run)
            return;
        s->links[step].run = run;
    }
}

/* Puts a step behind those of its stream with lower numbers: mostly behind the last one. */
static void chain(es_steps *s, es_stream *x, uint32_t step, uint64_t number)
{
    uint32_t older = x->last, newer = 0;
    while (older != ES_STEPS_NONE && number_of(s, older) > number) {
        newer = older + 1;
        older = es_steps_older(s, older);
    }
    s->links[step] = (es_step_link){.number = number, .older = older + 1, .newer = newer, .kept = 1};
    if (older != ES_STEPS_NONE)
        s->links[older].newer = step + 1;
    if (newer != 0)
        s->links[newer - 1].older = step + 1;
    else
        x->last = step;
    bool too_late = s->links[x->last].number - number >= s->store->keep; /* kept until es_steps_trim() all the same */
    if (!too_late && (x->kept == ES_STEPS_NONE || s->links[x->kept].number > number))
        x->kept = step;
    count_runs(s, step);
}

/* The last step of a stream is gone: the one that is the last now is an older one, and those that the stream keeps end
 * with it. What was not kept has gone without a word to the steps after it, so all of them are counted. */
static void keep_older(es_steps *s, es_stream *x)
{
    for (uint32_t step = x->last; step != ES_STEPS_NONE; step = es_steps_older(s, step)) {
        if (s->links[x->last].number - s->links[step].number >= s->store->keep)
            break;
        s->links[step].kept = 1;
        x->kept = step;
    }
    for (uint32_t step = x->kept; step != ES_STEPS_NONE; step = s->links[step].newer - 1)
        s->links[step].run = run_up_to(s, step);
}

static void unchain(es_steps *s, es_stream *x, uint32_t step)
{
    es_step_link link = s->links[step];
    if (link.older != 0)
        s->links[link.older - 1].newer = link.newer;
    if (link.newer != 0)
        s->links[link.newer - 1].older = link.older;
    else
        x->last = link.older - 1;
    if (x->kept == step)
        x->kept = link.newer - 1; /* 0 gives ES_STEPS_NONE */
    s->links[step] = (es_step_link){.older = 0};
    if (link.newer == 0)
        keep_older(s, x);
    else if (link.kept)
        count_runs(s, link.newer - 1);
}

/* The living step of a stream with the highest number. The store does not say that there was a higher one. */
static uint32_t last_of(const es_steps *s, uint32_t stream)
{
    uint32_t found = ES_STEPS_NONE;
    for (uint32_t i = 0; i < s->store->step_slots; i++)
        if (es_rank_has(s->living, i) && s->streams.episodes[s->episode_of[i]].stream == stream &&
            (found == ES_STEPS_NONE || number_of(s, i) > number_of(s, found)))
            found = i;
    return found;
}

/* --- steps ----------------------------------------------------------------------- */

uint32_t es_steps_next(const es_steps *s)
{
    const es_hold *hold = &s->hold;
    if (hold->taken == NULL)
        return es_rank_lowest_absent(s->living);
    return es_hold_room(hold) == 0 ? ES_STEPS_NONE : es_rank_lowest_absent(hold->taken);
}

void es_steps_enter(es_steps *s, uint32_t step, const es_step_head *head)
{
    uint32_t episode = es_streams_episode(&s->streams, head->stream, head->environment, head->episode);
    es_stream *x = &s->streams.all[s->streams.episodes[episode].stream];
    es_rank_add(s->living, step);
    es_hold_enter(&s->hold, step);
    s->streams.episodes[episode].steps++;
    s->episode_of[step] = episode;
    insert(s, &s->bare, step);
    if (s->links != NULL) {
        chain(s, x, step, head->number);
        return;
    }
    if (x->last == ES_STEPS_NONE || number_of(s, x->last) <= head->number)
        x->last = step;
    if (x->kept == ES_STEPS_NONE)
        x->kept = step;
}

static void leave(es_steps *s, uint32_t step)
{
    uint32_t entry = s->episode_of[step], stream = s->streams.episodes[entry].stream;
    es_stream *x = &s->streams.all[stream];
    es_rank_remove(s->living, step);
    es_hold_leave(&s->hold, step);
    es_order_remove(&s->bare, step);
    if (s->links != NULL)
        unchain(s, x, step);
    else if (x->last == step) /* the next one that it keeps has items: one without would have gone */
        x->last = x->kept = last_of(s, stream);
    if (--s->streams.episodes[entry].steps == 0)
        es_streams_free_episode(&s->streams, entry);
}

void es_steps_drop(es_steps *s, uint32_t step)
{
    es_step_record *record = &s->store->steps[step];
    *(volatile uint64_t *)&record->word = es_record_word(es_record_generation(record->word), 0, ES_RECORD_FREE);
    leave(s, step);
}

static void drop_if_unused(es_steps *s, uint32_t step)
{
    if (is_bare(s, step) && !is_kept(s, step))
        es_steps_drop(s, step);
}

void es_steps_trim(es_steps *s, uint32_t step)
{
    es_stream *x = stream_that_has(s, step);
    if (s->links == NULL) {
        uint32_t before = x->kept;
        x->kept = x->last;
        drop_if_unused(s, before != x->last ? before : step);
        return;
    }
    while (x->kept != x->last && s->links[x->last].number - s->links[x->kept].number >= s->store->keep) {
        uint32_t before = x->kept;
        x->kept = s->links[before].newer - 1;
        s->links[before].kept = 0;
        drop_if_unused(s, before);
    }
    if (!es_rank_has(s->living, step))
        return;
    if (s->links[x->last].number - s->links[step].number >= s->store->keep)
        s->links[step].kept = 0;
    drop_if_unused(s, step);
}

static bool follows(const es_steps *s, uint32_t older, uint32_t step)
{
    return number_of(s, older) + 1 == number_of(s, step) && s->episode_of[older] == s->episode_of[step];
}

uint32_t es_steps_next_of_episode(const es_steps *s, uint32_t step)
{
    uint32_t newer = s->links[step].newer - 1;
    return newer != ES_STEPS_NONE && follows(s, step, newer) ? newer : ES_STEPS_NONE;
}

uint32_t es_steps_previous_of_episode(const es_steps *s, uint32_t step)
{
    uint32_t older = es_steps_older(s, step);
    return older != ES_STEPS_NONE && follows(s, older, step) ? older : ES_STEPS_NONE;
}

bool es_steps_are_there(const es_steps *s, uint32_t step, uint64_t n, bool of_one_episode)
{
    for (uint64_t i = 1; i < n; i++) {
        uint32_t older = es_steps_older(s, step);
        if (older == ES_STEPS_NONE || number_of(s, older) + 1 != number_of(s, step) ||
            (of_one_episode && s->episode_of[older] != s->episode_of[step]))
            return false;
        step = older;
    }
    return true;
}

uint32_t es_steps_find(const es_steps *s, uint64_t stream, uint32_t environment, uint64_t number)
{
    uint32_t step = s->links == NULL ? ES_STEPS_NONE : es_steps_last(s, stream, environment);
    while (step != ES_STEPS_NONE && s->links[step].kept && number_of(s, step) > number)
        step = es_steps_older(s, step);
    return step != ES_STEPS_NONE && s->links[step].kept && number_of(s, step) == number ? step : ES_STEPS_NONE;
}

/* --- items ----------------------------------------------------------------------- */

static bool is_protected(const es_steps *s, uint32_t item)
{
    uint32_t table = 0;
    while (item >= s->store->first_item[table + 1])
        table++;
    return s->store->tables[table].is_protected;
}

static bool is_open(const es_steps *s, uint32_t step)
{
    if (!s->some_protected)
        return s->items[step] != 0;
    for (uint32_t i = es_steps_first_item(s, step); i != ES_STEPS_NONE; i = es_steps_next_item(s, i))
        if (!is_protected(s, i))
            return true;
    return false;
}

void es_steps_use(es_steps *s, uint32_t step)
{
    if (is_bare(s, step))
        es_order_remove(&s->bare, step);
    s->links[step].uses++;
}

void es_steps_stop_using(es_steps *s, uint32_t step)
{
    s->links[step].uses--;
    if (is_bare(s, step))
        insert(s, &s->bare, step);
}

void es_steps_link(es_steps *s, uint32_t step, uint64_t span, uint32_t item)
{
    bool was_open = is_open(s, step);
    uint32_t used = step;
    for (uint64_t i = 0; i < span; i++, used = es_steps_older(s, used))
        es_steps_use(s, used);
    if (is_bare(s, step))
        es_order_remove(&s->bare, step);
    uint32_t *link = &s->items[step];
    while (*link > item + 1)
        link = &s->next_item[*link - 1];
    if (s->next_item[item] != *link) /* where each step has one item, this memory is never written to */
        s->next_item[item] = *link;
    *link = item + 1;
    if (!was_open && is_open(s, step))
        insert(s, &s->open, step);
}

void es_steps_unlink(es_steps *s, uint32_t step, uint64_t span, uint32_t item)
{
    uint32_t *link = &s->items[step], used = step;
    bool was_open = is_open(s, step);
    while (*link != item + 1)
        link = &s->next_item[*link - 1];
    *link = s->next_item[item];
    if (s->next_item[item] != 0)
        s->next_item[item] = 0;
    if (was_open && !is_open(s, step))
        es_order_remove(&s->open, step);
    if (span == 0 && is_bare(s, step))
        insert(s, &s->bare, step);
    for (uint64_t i = 0; i < span; i++, used = es_steps_older(s, used))
        es_steps_stop_using(s, used);
}

void es_steps_drop_unused(es_steps *s, uint32_t step, uint64_t span)
{
    uint32_t older = step;
    for (uint64_t i = 0; i < (span == 0 ? 1 : span); i++) {
        step = older;
        older = s->links == NULL ? ES_STEPS_NONE : es_steps_older(s, step);
        drop_if_unused(s, step);
    }
}

void es_steps_sort(es_steps *s, const es_sort_pair *steps, uint64_t n)
{
    s->recovering = false;
    for (uint64_t i = 0; i < n; i++)
        if (is_open(s, steps[i].number)) {
            es_order_remove(&s->open, steps[i].number);
            es_order_append(&s->open, steps[i].number);
        }
}

void es_steps_trim_all(es_steps *s, const es_sort_pair *steps, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (es_rank_has(s->living, steps[i].number))
            es_steps_trim(s, steps[i].number);
}
