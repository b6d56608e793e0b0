#include "ring/es_layout.h"

#include <stdlib.h>
#include <string.h>

#include "base/es_copy.h"

static bool add(uint64_t *sum, uint64_t n)
{
    return !__builtin_add_overflow(*sum, n, sum);
}

static bool mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static bool align_up(uint64_t *n, uint64_t to)
{
    if (!add(n, to - 1))
        return false;
    *n &= ~(to - 1);
    return true;
}

/* Appends count items of the given size at *end, aligned; *at is where they start. */
static bool place(uint64_t *end, uint64_t align, uint64_t count, uint64_t size, uint64_t *at)
{
    uint64_t bytes;
    if (!align_up(end, align) || !mul(count, size, &bytes))
        return false;
    *at = *end;
    return add(end, bytes);
}

/* Of the slots of weights one is the latest, and one is being filled. Each of the others may be leased. */
#define ES_SPARE_SLOTS 2

static bool holds_weights(const es_geometry *geo)
{
    return (geo->flags & ES_FLAG_WEIGHTS) != 0;
}

static bool geometry_in_range(const es_geometry *geo)
{
    uint64_t slots;
    return geo->batch_size >= 1 && geo->batch_size <= ES_MAX_BATCH_SIZE && geo->num_batches >= 1 &&
           mul(geo->batch_size, geo->num_batches, &slots) && slots <= ES_MAX_SLOTS && geo->max_producers >= 1 &&
           geo->max_producers <= ES_MAX_PRODUCERS && geo->max_remotes <= ES_MAX_REMOTES && geo->num_leaves >= 1 &&
           geo->num_leaves <= ES_MAX_LEAVES && geo->schema_size <= ES_MAX_SCHEMA && geo->reap_interval_ns >= 1 &&
           (geo->flags & ~(uint32_t)(ES_FLAG_READY_ORDER | ES_FLAG_DETAILED | ES_FLAG_WEIGHTS)) == 0 &&
           (!holds_weights(geo) || (geo->batch_size == 1 && slots > ES_SPARE_SLOTS && slots <= ES_MAX_WEIGHTS));
}

/* Where leaf data starts, counted from the start of the data: *end is moved past it. */
static bool place_leaf(uint64_t *end, const es_geometry *geo, uint64_t leaf_size, uint64_t *at)
{
    return place(end, ES_PAGE, geo->batch_size * geo->num_batches, leaf_size, at);
}

static bool offsets_of(const es_geometry *geo, const uint64_t *leaf_sizes, es_offsets *o)
{
    if (!geometry_in_range(geo))
        return false;
    uint64_t end = sizeof(es_header), at;
    uint64_t slots = geo->batch_size * geo->num_batches;
    uint64_t hists = geo->flags & ES_FLAG_DETAILED ? ES_STATS_HISTOGRAMS : 0, weights = holds_weights(geo);
    bool ok =
        place(&end, ES_CACHE_LINE, geo->num_leaves, sizeof(uint64_t), &o->leaves) &&
        place(&end, ES_CACHE_LINE, geo->schema_size, 1, &o->schema) &&
        place(&end, ES_CACHE_LINE, ES_MAX_LEARNERS + (uint64_t)geo->max_producers, sizeof(es_owner), &o->owners) &&
        place(&end, ES_CACHE_LINE, slots, sizeof(uint64_t), &o->slots) &&
        place(&end, ES_CACHE_LINE, geo->num_batches, sizeof(es_batch), &o->batches) &&
        place(&end, ES_CACHE_LINE, hists, sizeof(es_histogram), &o->hists) &&
        place(&end, ES_CACHE_LINE, geo->max_remotes, sizeof(es_remote), &o->remotes) &&
        place(&end, ES_CACHE_LINE, weights ? 0 : slots, sizeof(int64_t), &o->versions) &&
        place(&end, ES_CACHE_LINE, weights, sizeof(es_weights), &o->weights) &&
        place(&end, ES_CACHE_LINE, weights ? slots : 0, sizeof(uint64_t), &o->sequences) &&
        place(&end, ES_CACHE_LINE, weights ? slots - ES_SPARE_SLOTS : 0, sizeof(uint64_t), &o->leases) &&
        place(&end, ES_PAGE, 0, 1, &o->data);
    for (uint32_t l = 0; ok && l < geo->num_leaves; l++)
        ok = place_leaf(&end, geo, leaf_sizes[l], &at);
    ok = ok && align_up(&end, ES_PAGE) && end <= (uint64_t)INT64_MAX;
    o->total = end;
    return ok;
}

uint64_t es_layout_size(const es_geometry *geo, const uint64_t *leaf_sizes)
{
    es_offsets o;
    return offsets_of(geo, leaf_sizes, &o) ? o.total : 0;
}

/* FNV-1a, 64 bit: http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t fnv1a(uint64_t h, const void *data, uint64_t n)
{
    const uint8_t *p = data;
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

static uint64_t format_hash(const es_geometry *geo, const uint64_t *leaf_sizes, const void *schema)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    uint32_t version = ES_VERSION;
    h = fnv1a(h, &version, sizeof version);
    h = fnv1a(h, geo, sizeof *geo);
    h = fnv1a(h, leaf_sizes, geo->num_leaves * sizeof *leaf_sizes);
    return fnv1a(h, schema, geo->schema_size);
}

int es_layout_format(void *base, uint64_t size, const es_geometry *geo, const uint64_t *leaf_sizes, const void *schema,
                     const uint8_t *uuid, int64_t pid, int64_t created_ns)
{
    es_header *hdr = base;
    es_offsets o;
    if (!offsets_of(geo, leaf_sizes, &o))
        return ES_EGEOMETRY;
    if (size < o.total)
        return ES_ESIZE;
    hdr->version = ES_VERSION;
    hdr->header_size = sizeof *hdr;
    hdr->geometry = *geo;
    hdr->offsets = o;
    hdr->format_hash = format_hash(geo, leaf_sizes, schema);
    hdr->creator_pid = pid;
    hdr->created_ns = created_ns;
    memcpy(hdr->uuid, uuid, sizeof hdr->uuid);
    memcpy((uint8_t *)base + o.leaves, leaf_sizes, geo->num_leaves * sizeof *leaf_sizes);
    memcpy((uint8_t *)base + o.schema, schema, geo->schema_size);
    /* Slot and batch words, owners and hints: zero is their empty state. SYNC magic: release; a
     * process that loads the magic (es_layout_check) sees the rest. */
    atomic_store_explicit(&hdr->magic, ES_MAGIC, memory_order_release);
    return ES_OK;
}

#define LEAVES_AT ((sizeof(es_header) + ES_CACHE_LINE - 1) & ~(uint64_t)(ES_CACHE_LINE - 1))

/* Whether the leaf table of this geometry lies inside the segment. */
static bool leaf_table_fits(const es_geometry *geo, uint64_t size)
{
    return geometry_in_range(geo) && LEAVES_AT + geo->num_leaves * sizeof(uint64_t) <= size;
}

int es_layout_check(const void *base, uint64_t size)
{
    const es_header *hdr = base;
    if (size < sizeof *hdr)
        return ES_ESIZE;
    /* SYNC magic: acquire; pairs with es_layout_format(). */
    uint64_t magic = atomic_load_explicit(&((es_header *)(uintptr_t)hdr)->magic, memory_order_acquire);
    if (magic == 0)
        return ES_EINIT;
    if (magic != ES_MAGIC)
        return ES_EMAGIC;
    if (hdr->version != ES_VERSION || hdr->header_size != sizeof *hdr)
        return ES_EVERSION;
    /* A copy: what is checked must be what is used, even if somebody writes to the segment
     * meanwhile. */
    es_geometry geo = hdr->geometry;
    es_offsets claimed = hdr->offsets, o;
    if (!geometry_in_range(&geo))
        return ES_EGEOMETRY;
    if (claimed.total != size)
        return ES_ESIZE;
    if (!leaf_table_fits(&geo, size))
        return ES_EOFFSET;
    const uint64_t *leaf_sizes = (const uint64_t *)((const uint8_t *)base + LEAVES_AT);
    if (!offsets_of(&geo, leaf_sizes, &o))
        return ES_EGEOMETRY;
    if (memcmp(&o, &claimed, sizeof o) != 0)
        return ES_EOFFSET;
    if (hdr->format_hash != format_hash(&geo, leaf_sizes, (const uint8_t *)base + o.schema))
        return ES_EHASH;
    return ES_OK;
}

void es_layout_describe(const void *base, uint64_t size, es_geometry *geo, uint8_t *uuid, int64_t *pid,
                        int64_t *created_ns, void *schema, uint64_t room)
{
    const es_header *hdr = base;
    *geo = hdr->geometry;
    if (geo->schema_size > size) /* somebody has changed it since the check: the caller must not allocate that much */
        geo->schema_size = 0;
    memcpy(uuid, hdr->uuid, sizeof hdr->uuid);
    *pid = hdr->creator_pid;
    *created_ns = hdr->created_ns;
    /* A process that can write the segment may change these after es_layout_check(). */
    uint64_t at = hdr->offsets.schema, bytes = geo->schema_size < room ? geo->schema_size : room;
    if (bytes > 0 && at <= size && bytes <= size - at)
        memcpy(schema, (const uint8_t *)base + at, bytes);
}

int es_layout_map(es_map *map, void *base, uint64_t size)
{
    int rc = es_layout_check(base, size);
    if (rc != ES_OK)
        return rc;
    memset(map, 0, sizeof *map);
    es_header *hdr = base;
    es_geometry geo = hdr->geometry;
    es_offsets o = hdr->offsets, again;
    /* A process that can write the segment may change it after es_layout_check(). The private
     * copies are what counts, so they are checked again. */
    if (!leaf_table_fits(&geo, size))
        return ES_EOFFSET;
    map->leaf_size = malloc(geo.num_leaves * sizeof *map->leaf_size);
    map->leaf_data = malloc(geo.num_leaves * sizeof *map->leaf_data);
    if (map->leaf_size == NULL || map->leaf_data == NULL) {
        es_layout_unmap(map);
        return -ENOMEM;
    }
    memcpy(map->leaf_size, (uint8_t *)base + LEAVES_AT, geo.num_leaves * sizeof *map->leaf_size);
    if (!offsets_of(&geo, map->leaf_size, &again) || memcmp(&o, &again, sizeof o) != 0 || o.total != size) {
        es_layout_unmap(map);
        return ES_EOFFSET;
    }
    map->base = base;
    map->hdr = hdr;
    map->owners = (es_owner *)((uint8_t *)base + o.owners);
    map->slots = (_Atomic uint64_t *)((uint8_t *)base + o.slots);
    map->batches = (es_batch *)((uint8_t *)base + o.batches);
    map->hists = (es_histogram *)((uint8_t *)base + o.hists);
    map->remotes = (es_remote *)((uint8_t *)base + o.remotes);
    if (holds_weights(&geo)) {
        map->weights = (es_weights *)((uint8_t *)base + o.weights);
        map->sequences = (_Atomic uint64_t *)((uint8_t *)base + o.sequences);
        map->leases = (_Atomic uint64_t *)((uint8_t *)base + o.leases);
        map->num_leases = (uint32_t)(geo.num_batches - ES_SPARE_SLOTS);
    } else {
        map->versions = (_Atomic int64_t *)((uint8_t *)base + o.versions);
    }
    map->batch_size = geo.batch_size;
    map->num_batches = geo.num_batches;
    map->capacity = geo.batch_size * geo.num_batches;
    map->num_owners = ES_MAX_LEARNERS + geo.max_producers;
    map->num_leaves = geo.num_leaves;
    map->num_remotes = geo.max_remotes;
    map->flags = geo.flags;
    map->reap_interval_ns = geo.reap_interval_ns;
    map->streams = es_copy_outgrows_caches(size);
    uint64_t end = o.data, at = 0;
    for (uint32_t l = 0; l < geo.num_leaves; l++) {
        (void)place_leaf(&end, &geo, map->leaf_size[l], &at);
        map->leaf_data[l] = (uint8_t *)base + at;
    }
    return ES_OK;
}

void es_layout_unmap(es_map *map)
{
    free(map->leaf_size);
    free(map->leaf_data);
    map->leaf_size = NULL;
    map->leaf_data = NULL;
}
