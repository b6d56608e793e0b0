#include "replay/es_steps.h"

#include <stdlib.h>
#include <string.h>

#include "base/es_memory.h"

#define FIRST_ROOM 64u

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
    for (uint32_t t = 0; t < store->num_tables; t++)
        s->some_protected |= store->tables[t].is_protected != 0;
    bool whole = s->living != NULL && s->episode_of != NULL && s->items != NULL && s->next_item != NULL;
    return es_order_init(&s->open, slots) == ES_OK && whole ? ES_OK : -ENOMEM;
}

void es_steps_free(es_steps *s)
{
    es_rank_free(s->living);
    es_order_free(&s->open);
    free(s->episode_of);
    free(s->items);
    free(s->next_item);
    free(s->episodes);
    free(s->streams);
    free(s->buckets);
}

/* --- streams and episodes -------------------------------------------------------- */

static uint32_t *bucket(const es_steps *s, uint64_t id, uint32_t environment)
{
    uint64_t h = (id ^ (environment * UINT64_C(0x9e3779b97f4a7c15))) * UINT64_C(0xbf58476d1ce4e5b9);
    return &s->buckets[(h >> 32) & (s->num_buckets - 1)];
}

static bool grow_episodes(es_steps *s)
{
    uint32_t room = s->episode_room == 0 ? FIRST_ROOM : 2 * s->episode_room;
    es_episode *grown = realloc(s->episodes, room * sizeof *grown);
    if (grown == NULL)
        return false;
    s->episodes = grown;
    for (uint32_t i = room; i-- > s->episode_room;) {
        grown[i] = (es_episode){.older = s->free_episode};
        s->free_episode = i + 1;
    }
    s->episode_room = room;
    return true;
}

static bool grow_streams(es_steps *s)
{
    uint32_t room = s->stream_room == 0 ? FIRST_ROOM : 2 * s->stream_room;
    uint32_t *buckets = calloc(room, sizeof *buckets);
    es_stream *grown = buckets == NULL ? NULL : realloc(s->streams, room * sizeof *grown);
    if (grown == NULL) {
        free(buckets);
        return false;
    }
    free(s->buckets);
    s->streams = grown;
    s->buckets = buckets;
    s->num_buckets = room;
    for (uint32_t i = 0; i < s->stream_room; i++) { /* all are in use */
        uint32_t *head = bucket(s, grown[i].id, grown[i].environment);
        grown[i].next = *head;
        *head = i + 1;
    }
    for (uint32_t i = room; i-- > s->stream_room;) {
        grown[i] = (es_stream){.next = s->free_stream};
        s->free_stream = i + 1;
    }
    s->stream_room = room;
    return true;
}

int es_steps_reserve(es_steps *s)
{
    bool room = (s->free_episode != 0 || grow_episodes(s)) && (s->free_stream != 0 || grow_streams(s));
    return room ? ES_OK : -ENOMEM;
}

static uint32_t stream_of(es_steps *s, uint64_t id, uint32_t environment)
{
    uint32_t *head = bucket(s, id, environment);
    for (uint32_t i = *head; i != 0; i = s->streams[i - 1].next)
        if (s->streams[i - 1].id == id && s->streams[i - 1].environment == environment)
            return i - 1;
    uint32_t made = s->free_stream - 1;
    s->free_stream = s->streams[made].next;
    s->streams[made] = (es_stream){.id = id, .environment = environment, .last = ES_STEPS_NONE, .next = *head};
    *head = made + 1;
    return made;
}

static void free_stream(es_steps *s, uint32_t stream)
{
    es_stream *x = &s->streams[stream];
    uint32_t *link = bucket(s, x->id, x->environment);
    while (*link != stream + 1)
        link = &s->streams[*link - 1].next;
    *link = x->next;
    *x = (es_stream){.next = s->free_stream};
    s->free_stream = stream + 1;
}

/* The episode of that number, an old or a new entry. A stream's episodes are in order, because some of its steps may
 * come late. */
static uint32_t episode_of(es_steps *s, uint32_t stream, uint32_t number)
{
    es_stream *x = &s->streams[stream];
    uint32_t newer = 0, older = x->newest;
    while (older != 0 && s->episodes[older - 1].number > number) {
        newer = older;
        older = s->episodes[older - 1].older;
    }
    if (older != 0 && s->episodes[older - 1].number == number)
        return older - 1;
    uint32_t made = s->free_episode - 1;
    s->free_episode = s->episodes[made].older;
    s->episodes[made] = (es_episode){.stream = stream, .number = number, .older = older, .newer = newer};
    if (older != 0)
        s->episodes[older - 1].newer = made + 1;
    *(newer != 0 ? &s->episodes[newer - 1].older : &x->newest) = made + 1;
    x->episodes++;
    return made;
}

static void free_episode(es_steps *s, uint32_t entry)
{
    es_episode *e = &s->episodes[entry];
    es_stream *x = &s->streams[e->stream];
    uint32_t stream = e->stream;
    if (e->older != 0)
        s->episodes[e->older - 1].newer = e->newer;
    *(e->newer != 0 ? &s->episodes[e->newer - 1].older : &x->newest) = e->older;
    *e = (es_episode){.older = s->free_episode};
    s->free_episode = entry + 1;
    if (--x->episodes == 0)
        free_stream(s, stream);
}

/* --- steps ----------------------------------------------------------------------- */

uint32_t es_steps_next(const es_steps *s)
{
    return es_rank_lowest_absent(s->living);
}

/* A step without items is its stream's last one. */
static void keep(es_steps *s, uint32_t step)
{
    uint64_t arrival = s->store->steps[step].arrival;
    s->kept++;
    if (arrival < s->kept_from)
        s->kept_from = arrival;
}

uint32_t es_steps_enter(es_steps *s, uint32_t step, const es_step_head *head)
{
    uint32_t stream = stream_of(s, head->stream, head->environment);
    uint32_t episode = episode_of(s, stream, head->episode);
    es_rank_add(s->living, step);
    s->episodes[episode].steps++;
    s->episode_of[step] = episode;
    uint32_t before = s->streams[stream].last;
    if (before != ES_STEPS_NONE && s->store->steps[before].number > head->number)
        return step;
    s->streams[stream].last = step;
    keep(s, step);
    if (before != ES_STEPS_NONE && s->items[before] == 0)
        s->kept--; /* it is about to go */
    return before;
}

static bool is_kept(const es_steps *s, uint32_t step)
{
    return s->streams[s->episodes[s->episode_of[step]].stream].last == step;
}

/* The living step of a stream with the highest number. The store does not say that there was a higher one. */
static uint32_t last_of(const es_steps *s, uint32_t stream)
{
    uint32_t found = ES_STEPS_NONE;
    for (uint32_t i = 0; i < s->store->step_slots; i++)
        if (es_rank_has(s->living, i) && s->episodes[s->episode_of[i]].stream == stream &&
            (found == ES_STEPS_NONE || s->store->steps[i].number > s->store->steps[found].number))
            found = i;
    return found;
}

static void leave(es_steps *s, uint32_t step)
{
    uint32_t entry = s->episode_of[step], stream = s->episodes[entry].stream;
    es_rank_remove(s->living, step);
    if (s->streams[stream].last == step) { /* the next one that it keeps has items: one without would have gone */
        s->streams[stream].last = last_of(s, stream);
        s->kept--;
    }
    if (--s->episodes[entry].steps == 0)
        free_episode(s, entry);
}

void es_steps_drop(es_steps *s, uint32_t step)
{
    es_step_record *record = &s->store->steps[step];
    *(volatile uint64_t *)&record->word = es_record_word(es_record_generation(record->word), 0, ES_RECORD_FREE);
    leave(s, step);
}

void es_steps_drop_if_unused(es_steps *s, uint32_t step)
{
    if (s->items[step] == 0 && !is_kept(s, step))
        es_steps_drop(s, step);
}

uint32_t es_steps_idlest(es_steps *s)
{
    uint32_t found = ES_STEPS_NONE;
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < s->stream_room; i++) {
        const es_stream *x = &s->streams[i];
        if (x->episodes == 0 || x->last == ES_STEPS_NONE || s->items[x->last] != 0)
            continue;
        uint64_t arrival = s->store->steps[x->last].arrival;
        if (found == ES_STEPS_NONE || arrival < oldest)
            found = x->last, oldest = arrival;
    }
    s->kept_from = oldest;
    return found;
}

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

void es_steps_link(es_steps *s, uint32_t step, uint32_t item)
{
    if (s->items[step] == 0 && is_kept(s, step))
        s->kept--;
    bool was_open = es_order_has(&s->open, step);
    if (s->next_item[item] != s->items[step]) /* where each step has one item, this memory is never written to */
        s->next_item[item] = s->items[step];
    s->items[step] = item + 1;
    if (!was_open && is_open(s, step))
        es_order_append(&s->open, step);
}

void es_steps_unlink(es_steps *s, uint32_t step, uint32_t item)
{
    uint32_t *link = &s->items[step];
    while (*link != item + 1)
        link = &s->next_item[*link - 1];
    *link = s->next_item[item];
    if (s->next_item[item] != 0)
        s->next_item[item] = 0;
    if (es_order_has(&s->open, step) && !is_open(s, step))
        es_order_remove(&s->open, step);
    if (s->items[step] == 0 && is_kept(s, step))
        keep(s, step);
}

void es_steps_reorder(es_steps *s, const es_sort_pair *steps, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (es_order_has(&s->open, steps[i].number)) {
            es_order_remove(&s->open, steps[i].number);
            es_order_append(&s->open, steps[i].number);
        }
}
