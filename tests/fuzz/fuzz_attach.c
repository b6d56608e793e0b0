/* Attaches to segments that are damaged, or that change while they are read.
 *
 * A race changes the header at a chosen step of its reader, so the reader may use another value than the one it
 * checked.
 *
 * A segment may be refused or accepted. An accepted one must lie inside its block. All calls that observe,
 * attach, sweep or detach must end, stay inside the block, and keep no lock byte.
 */
#include <stdlib.h>
#include <string.h>

#include "es_core.h"
#include "fuzz_image.h"
#include "fuzz_segment.h"

#define MAX_EDITS 32
#define RACE_BYTES 12
#define NUM_RACES 2

static struct race {
    uint16_t step, word;
    bool swap;    /* swaps the whole header and leaf table */
    bool restore; /* restores what the first race overwrote */
    uint64_t value;
} races[NUM_RACES];
static uint8_t *racing; /* NULL: no race */
static uint64_t racing_size, steps, overwritten;
static uint8_t original[1024], other[1024]; /* header and leaf table of this segment and of another good one */
static uint64_t swapped_bytes;

void fuzz_race(void);
void fuzz_race(void)
{
    if (racing == NULL)
        return;
    for (int i = 0; i < NUM_RACES; i++) {
        uint64_t words = (racing_size < 1024 ? racing_size : 1024) / 8;
        if (races[i].step != steps || words == 0)
            continue;
        if (races[i].swap) {
            memcpy(racing, races[i].restore ? original : other, swapped_bytes);
            continue;
        }
        uint8_t *at = racing + races[races[i].restore ? 0 : i].word % words * 8;
        if (i == 0)
            memcpy(&overwritten, at, 8);
        memcpy(at, races[i].restore ? &overwritten : &races[i].value, 8);
    }
    steps++;
}

static void read_races(fuzz_in *in)
{
    for (int i = 0; i < NUM_RACES; i++) {
        races[i].step = fuzz_byte(in);
        races[i].word = fuzz_byte(in);
        uint8_t what = fuzz_byte(in);
        races[i].restore = i > 0 && what & 1;
        races[i].swap = what & 2;
        races[i].value = fuzz_u64(in);
        fuzz_byte(in);
    }
}

/* Makes a header of another good segment, with its hash and offsets. */
static void make_other(uint8_t *base, uint64_t size, uint64_t draw)
{
    const es_header *hdr = (const es_header *)base;
    swapped_bytes = 0;
    if (size < sizeof original || es_layout_check(base, size) != ES_OK ||
        hdr->offsets.leaves + 8 * 8 > sizeof original || hdr->geometry.num_leaves > 8)
        return;
    uint8_t *copy = fuzz_block(size);
    memcpy(copy, base, size);
    es_header *changed = (es_header *)copy;
    uint64_t *leaf_sizes = (uint64_t *)(copy + hdr->offsets.leaves);
    switch (draw % 5) {
    case 0:
        changed->geometry.num_batches += 1 + draw / 5 % 4;
        break;
    case 1:
        changed->geometry.batch_size *= 2 + draw / 5 % 2;
        break;
    case 2:
        leaf_sizes[draw / 5 % hdr->geometry.num_leaves] += UINT64_C(1) << draw / 40 % 16;
        break;
    case 3:
        changed->geometry.max_producers += 1 + draw / 5 % 64;
        break;
    default:
        changed->geometry.flags ^= 1 + draw / 5 % 3;
    }
    if (fuzz_repair(copy, size, true)) {
        swapped_bytes = sizeof original;
        memcpy(original, base, swapped_bytes);
        memcpy(other, copy, swapped_bytes);
    }
    free(copy);
}

/* es_layout_check() accepted hash and offsets. Computed again, they are the same. */
static void check_nothing_to_repair(const uint8_t *base, uint64_t size)
{
    uint8_t *copy = fuzz_block(size);
    memcpy(copy, base, size);
    FUZZ_CHECK(fuzz_repair(copy, size, true) && memcmp(copy, base, size) == 0);
    free(copy);
}

/* --- an accepted segment lies inside its block ------------------------------ */

static void within(const es_map *m, uint64_t size, const void *at, uint64_t count, uint64_t each)
{
    uint64_t offset = (uint64_t)((const uint8_t *)at - m->base), bytes;
    FUZZ_CHECK(!__builtin_mul_overflow(count, each, &bytes));
    FUZZ_CHECK(offset <= size && bytes <= size - offset);
}

static void check_map(const es_ring *r, uint64_t size)
{
    const es_map *m = &r->map;
    FUZZ_CHECK(m->batch_size >= 1 && m->num_batches >= 1 && m->capacity == m->batch_size * m->num_batches);
    FUZZ_CHECK(m->capacity <= ES_MAX_SLOTS && m->num_owners <= ES_MAX_LEARNERS + ES_MAX_PRODUCERS);
    within(m, size, m->owners, m->num_owners, sizeof *m->owners);
    within(m, size, m->slots, m->capacity, sizeof *m->slots);
    within(m, size, m->batches, m->num_batches, sizeof *m->batches);
    within(m, size, m->hists, es_stats_detailed(m) ? ES_STATS_HISTOGRAMS : 0, sizeof *m->hists);
    for (uint32_t l = 0; l < m->num_leaves; l++) {
        FUZZ_CHECK(es_api_leaf_offset(r, l) == (uint64_t)(m->leaf_data[l] - m->base));
        within(m, size, m->leaf_data[l], m->capacity, es_api_leaf_size(r, l));
        FUZZ_CHECK(l == 0 || m->leaf_data[l] >= m->leaf_data[l - 1] + m->capacity * m->leaf_size[l - 1]);
    }
}

/* --- calls on an accepted segment ----------------------------------------------- */

static void describe(const uint8_t *base, uint64_t size)
{
    es_geometry geo;
    uint8_t identity[16];
    int64_t pid, created;
    es_layout_describe(base, size, &geo, identity, &pid, &created, NULL, 0);
    /* The schema may have grown since the first call: the second one gets no more room than the first reported. */
    uint64_t room = geo.schema_size < 4096 ? geo.schema_size : 4096;
    uint8_t *schema = fuzz_block(room);
    es_layout_describe(base, size, &geo, identity, &pid, &created, schema, room);
    free(schema);
}

static void look_on(es_ring *r)
{
    es_snapshot snap;
    es_owner_info info;
    es_monitor_observe(r, &snap);
    uint32_t owners = es_monitor_owner_entries(r), *held = calloc(owners, sizeof *held);
    int64_t i, last = -1;
    uint64_t word;
    for (i = es_monitor_next_owner(r, 0, &info); i >= 0; last = i, i = es_monitor_next_owner(r, (uint32_t)i + 1, &info))
        FUZZ_CHECK(i > last && i < owners && info.id.index == i);
    for (i = es_monitor_next_claim(r, 0, &word); i >= 0; i = es_monitor_next_claim(r, (uint64_t)i + 1, &word)) {
        FUZZ_CHECK((uint64_t)i < r->map.capacity);
        FUZZ_CHECK(es_monitor_claim_owner(word) <= 0xffff);
    }
    es_monitor_count_held(r, held, owners);
    free(held);
    uint64_t full, *ages = calloc(owners, sizeof *ages);
    es_monitor_lease_ages(r, ages, owners);
    free(ages);
    FUZZ_CHECK(es_monitor_count_committed(r, &full) <= r->map.capacity && full <= r->map.num_batches);
    es_valid(r);
}

static void sweep(es_ring *r, const es_ring *self)
{
    es_identity dead;
    for (int64_t i = es_sweep_next_dead(r, 0, &dead); i >= 0; i = es_sweep_next_dead(r, (uint32_t)i + 1, &dead)) {
        FUZZ_CHECK(i < (int64_t)es_monitor_owner_entries(r) && dead.index == i);
        FUZZ_CHECK(self == NULL || self->detached || i != self->me); /* an owner that holds its byte is not dead */
        FUZZ_CHECK(es_sweep_settle(r, &dead, i % 2 == 0) >= 0 && dead.index == ES_NOBODY);
        FUZZ_CHECK(es_sweep_settle(r, &dead, 1) == ES_EMPTY);
    }
}

static void use(es_ring *r)
{
    uint8_t *sample = calloc(r->map.num_leaves, sizeof(void *)), *mask = malloc(r->map.batch_size);
    void **leaves = (void **)sample;
    for (uint32_t l = 0; l < r->map.num_leaves; l++)
        leaves[l] = calloc(1, r->map.leaf_size[l] + 1);
    if (r->role == ES_ROLE_PRODUCER) {
        for (int i = 0; i < 3; i++)
            es_api_send(r, leaves);
        int64_t position;
        if (es_api_reserve(r, 0, &position) == ES_OK)
            es_api_commit(r, position);
    } else {
        es_snapshot snap;
        for (int i = 0; i < 3; i++) {
            int64_t j = es_api_take(r, i == 2 ? ES_TAKE_SHORT : 0, 0, &snap);
            if (j < 0)
                continue;
            FUZZ_CHECK((uint64_t)j < r->map.num_batches && snap.batch == (uint64_t)j);
            FUZZ_CHECK(es_api_committed_mask(r, snap.batch, snap.round, mask) <= (int64_t)r->map.batch_size);
            FUZZ_CHECK((i == 1 ? es_api_give_back : es_api_release)(r, snap.batch, snap.round) == ES_OK);
        }
    }
    for (uint32_t l = 0; l < r->map.num_leaves; l++)
        free(leaves[l]);
    free(sample);
    free(mask);
}

static void join(uint8_t *base, uint64_t size, es_locks *locks, uint32_t role)
{
    int error;
    es_identity id = {.role = role, .pid = 1, .start_time = 1.5};
    es_ring *r = es_api_open(base, size, locks, role == ES_ROLE_LEARNER, &error);
    FUZZ_CHECK((r != NULL) == (error == ES_OK));
    if (r == NULL)
        return;
    check_map(r, size);
    sweep(r, NULL); /* as a process that finds the table full */
    int64_t index = es_api_attach(r, &id);
    FUZZ_CHECK(index < (int64_t)r->map.num_owners);
    if (index >= 0) {
        FUZZ_CHECK(es_api_attach(r, &id) == -EALREADY);
        look_on(r);
        sweep(r, r);
        use(r);
        FUZZ_CHECK(es_api_detach(r) == ES_OK && es_api_detach(r) == ES_EDETACHED);
    }
    es_api_free(r);
}

static void observe(uint8_t *base, uint64_t size)
{
    int error;
    es_identity id = {.role = ES_ROLE_LEARNER};
    es_ring *r = es_api_open(base, size, NULL, 0, &error);
    FUZZ_CHECK(r != NULL || racing != NULL); /* a segment that es_layout_check() accepts can be opened */
    if (r == NULL)
        return;
    check_map(r, size);
    look_on(r);
    FUZZ_CHECK(es_api_attach(r, &id) == ES_EREADONLY && es_sweep_next_dead(r, 0, &id) == ES_EREADONLY);
    FUZZ_CHECK(es_api_close(r) == ES_EREADONLY && es_api_learner_alive(r) == ES_EREADONLY);
    es_api_free(r);
}

static void use_segment(uint8_t *base, uint64_t size, fuzz_in *in, uint8_t mode)
{
    bool with_races = (mode & RACES) != 0;
    (void)in;
    static es_locks *locks; /* checked to be empty after each input */
    if (locks == NULL)
        locks = es_locks_new(-1, FUZZ_MAX_SEGMENT / sizeof(es_owner));
    racing = NULL;
    if (with_races)
        make_other(base, size, races[0].value);
    racing = with_races ? base : NULL;
    racing_size = size;
    steps = 0;
    uint8_t *before = fuzz_block(size);
    if (!with_races)
        memcpy(before, base, size);
    int rc = es_layout_check(base, size);
    if (rc == ES_OK && !with_races)
        check_nothing_to_repair(base, size);
    if (rc == ES_OK)
        describe(base, size);
    if (rc == ES_OK || with_races) {
        observe(base, size);
        FUZZ_CHECK(with_races || memcmp(before, base, size) == 0); /* observing changes nothing */
        join(base, size, locks, ES_ROLE_LEARNER);
        join(base, size, locks, ES_ROLE_PRODUCER);
        FUZZ_CHECK(es_locks_any(locks) == 0);
    }
    racing = NULL;
    free(before);
}

/* --- inputs ------------------------------------------------------------------ */

static uint8_t *good(fuzz_in *in, uint64_t *size)
{
    fuzz_shape shape = fuzz_draw_shape(in);
    return fuzz_draw_segment(in, &shape, size);
}

static uint64_t repair(uint8_t *base, uint64_t size, bool offsets)
{
    return fuzz_repair(base, size, offsets) ? ((es_header *)base)->offsets.total : 0;
}

static uint8_t *damaged(fuzz_in *in, uint8_t mode, uint64_t *size)
{
    uint8_t *base = good(in, size);
    uint32_t cut = fuzz_byte(in);
    for (int edits = 0; edits < MAX_EDITS && !fuzz_done(in); edits++)
        fuzz_edit(in, base, *size);
    if (mode & (FIT_OFFSETS | FIT_HASH))
        base = fuzz_repaired(base, size, (mode & FIT_OFFSETS) != 0, FUZZ_MAX_SEGMENT);
    if (cut >= 224) { /* a few bytes or pages less or more than the recorded size */
        uint64_t by = cut & 1 ? (cut & 15) >> 1 : (uint64_t)ES_PAGE * ((cut & 7) >> 1);
        uint64_t to = cut & 16 ? *size + by : *size > by ? *size - by : 0;
        base = fuzz_resized(base, size, to);
        if (cut & 8 && to >= sizeof(es_header))
            ((es_header *)base)->offsets.total = to;
    }
    return base;
}

const fuzz_images fuzz_target = {
    .body_at = 1 + NUM_RACES * RACE_BYTES,
    .header = sizeof(es_header),
    .max_edits = 4,
    .program_step = 1,
    .read_races = read_races,
    .good = good,
    .damaged = damaged,
    .edit = fuzz_edit,
    .repair = repair,
    .use = use_segment,
};
