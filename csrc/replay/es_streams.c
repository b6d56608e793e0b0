#include "replay/es_streams.h"

#include <stdlib.h>

#define FIRST_ROOM 64u

void es_streams_free(es_streams *s)
{
    free(s->episodes);
    free(s->all);
    free(s->buckets);
}

static uint32_t *bucket(const es_streams *s, uint64_t id, uint32_t environment)
{
    uint64_t h = (id ^ (environment * UINT64_C(0x9e3779b97f4a7c15))) * UINT64_C(0xbf58476d1ce4e5b9);
    return &s->buckets[(h >> 32) & (s->num_buckets - 1)];
}

static bool grow_episodes(es_streams *s)
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

static bool grow_streams(es_streams *s)
{
    uint32_t room = s->stream_room == 0 ? FIRST_ROOM : 2 * s->stream_room;
    uint32_t *buckets = calloc(room, sizeof *buckets);
    es_stream *grown = buckets == NULL ? NULL : realloc(s->all, room * sizeof *grown);
    if (grown == NULL) {
        free(buckets);
        return false;
    }
    free(s->buckets);
    s->all = grown;
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

int es_streams_reserve(es_streams *s)
{
    bool room = (s->free_episode != 0 || grow_episodes(s)) && (s->free_stream != 0 || grow_streams(s));
    return room ? ES_OK : -ENOMEM;
}

uint32_t es_streams_find(const es_streams *s, uint64_t id, uint32_t environment)
{
    for (uint32_t i = s->num_buckets == 0 ? 0 : *bucket(s, id, environment); i != 0; i = s->all[i - 1].next)
        if (s->all[i - 1].id == id && s->all[i - 1].environment == environment)
            return i - 1;
    return ES_STREAMS_NONE;
}

static uint32_t stream_of(es_streams *s, uint64_t id, uint32_t environment)
{
    uint32_t found = es_streams_find(s, id, environment);
    if (found != ES_STREAMS_NONE)
        return found;
    uint32_t *head = bucket(s, id, environment);
    uint32_t made = s->free_stream - 1;
    s->free_stream = s->all[made].next;
    s->all[made] = (es_stream){
        .id = id, .environment = environment, .last = ES_STREAMS_NONE, .kept = ES_STREAMS_NONE, .next = *head};
    *head = made + 1;
    return made;
}

static void free_stream(es_streams *s, uint32_t stream)
{
    es_stream *x = &s->all[stream];
    uint32_t *link = bucket(s, x->id, x->environment);
    while (*link != stream + 1)
        link = &s->all[*link - 1].next;
    *link = x->next;
    *x = (es_stream){.next = s->free_stream};
    s->free_stream = stream + 1;
}

uint32_t es_streams_episode(es_streams *s, uint64_t id, uint32_t environment, uint32_t number)
{
    uint32_t stream = stream_of(s, id, environment);
    es_stream *x = &s->all[stream];
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

void es_streams_free_episode(es_streams *s, uint32_t entry)
{
    es_episode *e = &s->episodes[entry];
    es_stream *x = &s->all[e->stream];
    uint32_t stream = e->stream;
    if (e->older != 0)
        s->episodes[e->older - 1].newer = e->newer;
    *(e->newer != 0 ? &s->episodes[e->newer - 1].older : &x->newest) = e->older;
    *e = (es_episode){.older = s->free_episode};
    s->free_episode = entry + 1;
    if (--x->episodes == 0)
        free_stream(s, stream);
}
