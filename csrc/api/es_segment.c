/* Segments before a ring is attached to them, and their lock files. */
#include "api/es_api.h"
#include "ring/es_layout.h"
#include "ring/es_locks.h"

uint64_t es_segment_size(const es_geometry *geo, const uint64_t *leaf_sizes)
{
    return es_layout_size(geo, leaf_sizes);
}

int es_segment_format(void *base, uint64_t size, const es_geometry *geo, const uint64_t *leaf_sizes, const void *schema,
                      const uint8_t *uuid, int64_t pid, int64_t created_ns)
{
    return es_layout_format(base, size, geo, leaf_sizes, schema, uuid, pid, created_ns);
}

int es_segment_check(const void *base, uint64_t size)
{
    return es_layout_check(base, size);
}

void es_segment_describe(const void *base, uint64_t size, es_geometry *geo, uint8_t *uuid, int64_t *pid,
                         int64_t *created_ns, void *schema, uint64_t room)
{
    es_layout_describe(base, size, geo, uuid, pid, created_ns, schema, room);
}

uint32_t es_segment_creator_byte(void)
{
    return es_locks_creator_byte();
}

es_locks *es_segment_locks_new(int fd, uint32_t count)
{
    return es_locks_new(fd, count);
}

void es_segment_locks_free(es_locks *locks)
{
    es_locks_free(locks);
}

int es_segment_locks_try(es_locks *locks, uint32_t index)
{
    return es_locks_try(locks, index);
}

void es_segment_locks_drop(es_locks *locks, uint32_t index)
{
    es_locks_drop(locks, index);
}

int es_segment_locks_held(es_locks *locks, uint32_t index)
{
    return es_locks_held(locks, index);
}

int es_segment_locks_any(es_locks *locks)
{
    return es_locks_any(locks);
}
