/* What es_layout_format() writes and what es_layout_check() refuses. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "es_fixture.h"
#include "es_test.h"

static es_header *header(es_fix *f)
{
    return (es_header *)f->base;
}

/* A formatted segment is accepted. Zero-filled words are an empty ring. */
TEST(accepts_what_it_formatted)
{
    es_fix *f = fix_new(3, 2, ES_FLAG_DETAILED);
    CHECK_EQ(es_layout_check(f->base, f->size), ES_OK);
    es_ring *r = fix_open(f, 0);
    CHECK_STR(es_valid(r), NULL);
    es_geometry geo;
    uint8_t uuid[16];
    int64_t pid, created;
    char schema[64] = "";
    es_layout_describe(f->base, f->size, &geo, uuid, &pid, &created, schema, sizeof schema);
    CHECK_EQ(memcmp(&geo, &f->geo, sizeof geo), 0);
    CHECK_STR(schema, "id:u8 pattern:40");
    fix_free(f);
}

/* Until the magic is stored a segment is unfinished, whatever its other fields say. */
TEST(reports_unfinished_while_magic_is_zero)
{
    es_fix *f = fix_new(2, 2, 0);
    header(f)->magic = 0;
    CHECK_EQ(es_layout_check(f->base, f->size), ES_EINIT);
    header(f)->magic = ES_MAGIC + 1;
    CHECK_EQ(es_layout_check(f->base, f->size), ES_EMAGIC);
    fix_free(f);
}

typedef struct being_made {
    uint8_t *base;
    uint64_t size;
    es_geometry geo;
    uint8_t *schema;
} being_made;

static const uint64_t one_leaf[] = {8};

static void *make_it(void *arg)
{
    static const uint8_t uuid[16] = {1};
    being_made *it = arg;
    CHECK_EQ(es_layout_format(it->base, it->size, &it->geo, one_leaf, it->schema, uuid, 1, 1), ES_OK);
    return NULL;
}

/* A process that looks at a segment that is being made sees it as unfinished until it is complete. */
TEST(unfinished_until_it_is_whole)
{
    being_made it = {.geo = fix_geometry(1, 1, 0)};
    it.geo.num_leaves = 1;
    it.geo.schema_size = 1 << 22; /* the hash of it takes a while */
    it.size = es_layout_size(&it.geo, one_leaf);
    it.base = aligned_alloc(ES_PAGE, it.size);
    it.schema = calloc(1, it.geo.schema_size);
    REQUIRE(it.base != NULL && it.schema != NULL);
    memset(it.base, 0, it.size);
    pthread_t maker;
    pthread_create(&maker, NULL, make_it, &it);
    int rc;
    while ((rc = es_layout_check(it.base, it.size)) == ES_EINIT)
        ;
    CHECK_EQ(rc, ES_OK);
    pthread_join(maker, NULL);
    free(it.base);
    free(it.schema);
}

/* Another version or header size is refused before any other field is trusted. */
TEST(refuses_another_version)
{
    es_fix *f = fix_new(2, 2, 0);
    header(f)->version++;
    CHECK_EQ(es_layout_check(f->base, f->size), ES_EVERSION);
    header(f)->version--;
    header(f)->header_size += 64;
    CHECK_EQ(es_layout_check(f->base, f->size), ES_EVERSION);
    fix_free(f);
}

/* The mapped size must be the recorded size. Nothing beyond it is read. */
TEST(refuses_a_truncated_or_grown_segment)
{
    es_fix *f = fix_new(2, 2, 0);
    for (uint64_t size = 0; size < f->size; size += 64) {
        /* exactly size bytes, so that a sanitizer catches a read beyond them */
        uint8_t *cut = aligned_alloc(64, size > 0 ? size : 64);
        memcpy(cut, f->base, size);
        CHECK_EQ(es_layout_check(cut, size), ES_ESIZE);
        if (size >= sizeof(es_header)) { /* if the header records the cut size, its offsets are wrong */
            ((es_header *)cut)->offsets.total = size;
            CHECK_EQ(es_layout_check(cut, size), ES_EOFFSET);
        }
        free(cut);
    }
    CHECK_EQ(es_layout_check(f->base, f->size + 64), ES_ESIZE);
    fix_free(f);
}

/* Every offset is recomputed and compared. */
TEST(refuses_every_wrong_offset)
{
    es_fix *f = fix_new(2, 2, ES_FLAG_DETAILED);
    uint64_t *offset = (uint64_t *)&header(f)->offsets;
    for (size_t i = 0; i < sizeof(es_offsets) / sizeof *offset; i++) {
        bool total = &offset[i] == &header(f)->offsets.total;
        const uint64_t by[] = {64, UINT64_MAX - 63, UINT64_C(1) << 40};
        for (size_t d = 0; d < sizeof by / sizeof *by; d++) {
            offset[i] += by[d];
            CHECK_EQ(es_layout_check(f->base, f->size), total ? ES_ESIZE : ES_EOFFSET);
            offset[i] -= by[d];
        }
    }
    CHECK_EQ(es_layout_check(f->base, f->size), ES_OK);
    fix_free(f);
}

static void expect_geometry(es_fix *f, es_geometry geo, int want)
{
    es_geometry good = header(f)->geometry;
    header(f)->geometry = geo;
    CHECK_EQ(es_layout_check(f->base, f->size), want);
    header(f)->geometry = good;
}

#define WITH(field, value, want)          \
    do {                                  \
        es_geometry geo_ = f->geo;        \
        geo_.field = (value);             \
        expect_geometry(f, geo_, (want)); \
    } while (0)

/* Counts out of range are refused as such, before they are multiplied. */
TEST(refuses_geometry_out_of_range)
{
    es_fix *f = fix_new(2, 2, 0);
    WITH(batch_size, 0, ES_EGEOMETRY);
    WITH(batch_size, ES_MAX_BATCH_SIZE + 1, ES_EGEOMETRY);
    WITH(batch_size, UINT64_MAX, ES_EGEOMETRY);
    WITH(num_batches, 0, ES_EGEOMETRY);
    WITH(num_batches, UINT64_MAX, ES_EGEOMETRY);
    WITH(num_batches, UINT64_C(1) << 63, ES_EGEOMETRY); /* num_batches * batch_size wraps to 0 */
    WITH(num_batches, ES_MAX_SLOTS, ES_EGEOMETRY);
    es_geometry wraps = f->geo; /* 2^70 slots; all other tables have valid sizes */
    wraps.batch_size = ES_MAX_BATCH_SIZE;
    wraps.num_batches = UINT64_C(1) << 40;
    expect_geometry(f, wraps, ES_EGEOMETRY);
    const uint64_t nothing[FIX_LEAVES] = {0, 0};
    CHECK_EQ(es_layout_size(&wraps, nothing), 0);
    WITH(reap_interval_ns, 0, ES_EGEOMETRY);
    WITH(max_producers, 0, ES_EGEOMETRY);
    WITH(max_producers, ES_MAX_PRODUCERS + 1, ES_EGEOMETRY);
    WITH(num_leaves, 0, ES_EGEOMETRY);
    WITH(num_leaves, ES_MAX_LEAVES + 1, ES_EGEOMETRY);
    WITH(schema_size, ES_MAX_SCHEMA + 1, ES_EGEOMETRY);
    WITH(flags, 4, ES_EGEOMETRY);
    fix_free(f);
}

/* A wrong count that is in range moves an offset, or changes the hash if it moves none. */
TEST(refuses_plausible_geometry_that_is_not_its_own)
{
    es_fix *f = fix_new(2, 2, 0);
    WITH(batch_size, 8, ES_EOFFSET);
    WITH(num_batches, 8, ES_EOFFSET);
    WITH(batch_size, ES_MAX_BATCH_SIZE, ES_EOFFSET);
    WITH(max_producers, ES_MAX_PRODUCERS, ES_EOFFSET);
    WITH(num_leaves, ES_MAX_LEAVES, ES_EOFFSET);
    WITH(schema_size, ES_MAX_SCHEMA, ES_EOFFSET);
    WITH(flags, ES_FLAG_DETAILED, ES_EOFFSET);
    WITH(schema_size, f->geo.schema_size - 1, ES_EHASH);
    fix_free(f);
}

/* Leaf sizes that overflow are out of range. Other wrong sizes change the total, or the hash if the sum is equal. */
TEST(refuses_a_corrupt_leaf_table)
{
    es_fix *f = fix_new(2, 2, 0);
    uint64_t *leaf = (uint64_t *)(f->base + header(f)->offsets.leaves);
    uint64_t was = leaf[0];
    leaf[0] = UINT64_MAX;
    CHECK_EQ(es_layout_check(f->base, f->size), ES_EGEOMETRY);
    leaf[0] = UINT64_MAX / 4;
    CHECK_EQ(es_layout_check(f->base, f->size), ES_EGEOMETRY);
    leaf[0] = UINT64_C(1) << 59;
    CHECK_EQ(es_layout_check(f->base, f->size), ES_EOFFSET);
    leaf[0] = 4096;
    CHECK_EQ(es_layout_check(f->base, f->size), ES_EOFFSET);
    leaf[0] = was + 1; /* rounds up to the same page */
    CHECK_EQ(es_layout_check(f->base, f->size), ES_EHASH);
    leaf[0] = was;
    CHECK_EQ(es_layout_check(f->base, f->size), ES_OK);
    fix_free(f);
}

/* The hash covers every byte of the schema and its own field. */
TEST(refuses_any_flipped_schema_byte)
{
    es_fix *f = fix_new(2, 2, 0);
    uint8_t *schema = f->base + header(f)->offsets.schema;
    for (uint32_t i = 0; i < f->geo.schema_size; i++) {
        schema[i] ^= 0x10;
        CHECK_EQ(es_layout_check(f->base, f->size), ES_EHASH);
        schema[i] ^= 0x10;
    }
    header(f)->format_hash ^= 1;
    CHECK_EQ(es_layout_check(f->base, f->size), ES_EHASH);
    fix_free(f);
}

/* Opening refuses what es_layout_check() refuses, with the same code. */
TEST(opening_reports_what_the_check_found)
{
    es_fix *f = fix_new(2, 2, 0);
    int error = 0;
    header(f)->version++;
    CHECK(es_api_open(f->base, f->size, f->locks, 0, &error) == NULL);
    CHECK_EQ(error, ES_EVERSION);
    fix_free(f);
}

/* es_layout_format() refuses a geometry that es_layout_check() would refuse, and memory that is too small. */
TEST(formats_nothing_it_would_refuse)
{
    uint64_t leaf[2] = {8, 8};
    es_geometry geo = fix_geometry(0, 2, 0);
    uint8_t *memory = aligned_alloc(64, 4096), uuid[16] = {0};
    memset(memory, 0, 4096);
    CHECK_EQ(es_layout_size(&geo, leaf), 0);
    CHECK_EQ(es_layout_format(memory, 4096, &geo, leaf, "", uuid, 1, 1), ES_EGEOMETRY);
    geo = fix_geometry(2, 2, 0);
    CHECK_EQ(es_layout_format(memory, 4096, &geo, leaf, "", uuid, 1, 1), ES_ESIZE);
    CHECK_EQ(es_layout_check(memory, 4096), ES_EINIT);
    leaf[1] = UINT64_MAX / 2;
    CHECK_EQ(es_layout_size(&geo, leaf), 0);
    free(memory);
}

/* Leaves do not overlap, and each starts on a page. A leaf of size 0 takes no space. */
TEST(places_zero_size_leaves)
{
    const uint64_t sizes[4] = {0, 5, 0, 4096};
    es_geometry geo = fix_geometry(3, 2, 0);
    geo.num_leaves = 4;
    geo.schema_size = 0;
    es_fix *f = fix_new_leaves(&geo, sizes);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQ(es_api_leaf_offset(p, i) % ES_PAGE, 0);
    CHECK_EQ(es_api_leaf_offset(p, 1), es_api_leaf_offset(p, 0));
    CHECK(es_api_leaf_offset(p, 2) >= es_api_leaf_offset(p, 1) + 6 * 5);
    CHECK(es_api_leaf_offset(p, 3) >= es_api_leaf_offset(p, 2));
    CHECK(es_api_leaf_offset(p, 3) + 6 * 4096 <= f->size);
    uint8_t none[1] = {7}, five[5] = "abcd", page[4096] = {1};
    void *leaves[4] = {none, five, none, page};
    for (int lap = 0; lap < 3; lap++) {
        for (int i = 0; i < 6; i++)
            CHECK_EQ(es_api_send(p, leaves), ES_OK);
        CHECK_EQ(fix_take_k(l, 0), 2 * lap);
        CHECK_EQ(memcmp(f->base + es_api_leaf_offset(l, 1) + 2 * 5, "abcd", 5), 0);
        CHECK_EQ(fix_take_k(l, 0), 2 * lap + 1);
    }
    fix_free(f);
}

/* A leaf that comes with a null pointer is not written: the slot keeps what an earlier sample had there. */
TEST(leaves_alone_what_nobody_reads)
{
    const uint64_t sizes[4] = {1, 8, 24, 4096};
    es_geometry geo = fix_geometry(1, 2, 0);
    geo.num_leaves = 4;
    geo.schema_size = 0;
    es_fix *f = fix_new_leaves(&geo, sizes);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    uint8_t old[4096], new[4096];
    memset(old, 1, sizeof old);
    memset(new, 2, sizeof new);
    for (uint32_t kept = 0; kept < 4; kept++) {
        void *before[4] = {old, old, old, old}, *after[4] = {new, new, new, new};
        after[kept] = NULL;
        for (int i = 0; i < 4; i++) /* two laps */
            CHECK_EQ(es_api_send(p, i < 2 ? before : after), ES_OK), fix_take_k(l, 0);
        for (uint32_t i = 0; i < 4; i++)
            CHECK_EQ(memcmp(f->base + es_api_leaf_offset(p, i), i == kept ? old : new, sizes[i]), 0);
    }
    fix_free(f);
}

/* A ring of one slot works. */
TEST(one_slot_is_enough)
{
    es_fix *f = fix_new(1, 1, 0);
    es_ring *p = fix_producer(f), *l = fix_learner(f);
    for (int64_t k = 0; k < 5; k++) {
        CHECK_EQ(fix_send(p, 100 + (uint64_t)k), ES_OK);
        CHECK_EQ(fix_send(p, 0), ES_FULL);
        CHECK_EQ(fix_take_k(l, 0), k);
        CHECK_EQ(fix_take_k(l, 0), ES_EMPTY);
        CHECK_STR(es_valid(l), NULL);
    }
    fix_free(f);
}
