/* Streams and their episodes, as long as some of their steps live. Private, and derived from the steps' records. */
#ifndef ES_STREAMS_H
#define ES_STREAMS_H

#include "base/es_base.h"

/* No stream, or no step. */
#define ES_STREAMS_NONE UINT32_MAX

typedef struct es_episode {
    uint32_t stream;
    uint32_t number; /* in its stream */
    uint32_t steps;  /* living ones; 0: the entry is free */
    uint32_t older;  /* the next lower number of the same stream; or the next free entry. Plus 1 */
    uint32_t newer;  /* the next higher one, plus 1 */
} es_episode;

typedef struct es_stream {
    uint64_t id;
    uint32_t environment;
    uint32_t episodes; /* entries; 0: the entry is free */
    uint32_t newest;   /* the entry of its episode with the highest number, plus 1 */
    uint32_t last;     /* its living step with the highest number, or ES_STREAMS_NONE */
    uint32_t kept;     /* the first one of those that it keeps: they end with the last one */
    uint32_t next;     /* of the same bucket, or free, plus 1 */
} es_stream;

/* All zero: there is none. */
typedef struct es_streams {
    es_episode *episodes;
    es_stream *all;
    uint32_t *buckets; /* streams, plus 1 */
    uint32_t episode_room, free_episode, stream_room, free_stream, num_buckets;
} es_streams;

void es_streams_free(es_streams *s);
/* Makes room for one more stream and episode, so that es_streams_episode() cannot fail: ES_OK or -ENOMEM. */
int es_streams_reserve(es_streams *s);
/* ES_STREAMS_NONE: there is none. Who wrote the steps, and in which environment. */
uint32_t es_streams_find(const es_streams *s, uint64_t id, uint32_t environment);
/* The episode of that number, an old or a new entry; its stream, too. A stream's episodes are in order, because some of
 * its steps may come late. */
uint32_t es_streams_episode(es_streams *s, uint64_t id, uint32_t environment, uint32_t number);
/* It has no steps any more. A stream without episodes goes, too. */
void es_streams_free_episode(es_streams *s, uint32_t entry);

#endif
