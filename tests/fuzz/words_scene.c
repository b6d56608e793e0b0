#include "words_scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "es_core.h"
#include "es_still.h"

scene *play;
void (*scene_interlude)(void);

/* --- steps -------------------------------------------------------------------- */

#define MAX_DEPTH 2
#define MAX_NAMES 32

static struct call {
    const char *name;
    uint64_t quiet, total; /* steps since the last interruption, and since the start */
    uint32_t next;         /* steps until the next interruption; 0: there is none */
} calls[MAX_DEPTH];
static int depth;
static bool interrupted; /* the scribbler is writing: its steps do not count */

static struct longest {
    const char *name;
    uint64_t quiet, total;
} longest[MAX_NAMES];

/* How often the core tries before it gives up. Any bound finds a core that never gives up. */
#ifndef ES_TRIES
#define ES_TRIES 1000
#endif

uint64_t scene_bound(void)
{
    uint64_t words = play->geo.batch_size * play->geo.num_batches + play->geo.num_batches;
    return 50 * words + 50 * ES_TRIES + 4 * ES_STATS_HISTOGRAMS * ES_HISTOGRAM_BUCKETS;
}

static void note_longest(const struct call *c)
{
    for (int i = 0; i < MAX_NAMES; i++) {
        if (longest[i].name != NULL && longest[i].name != c->name)
            continue;
        longest[i].name = c->name;
        longest[i].quiet = c->quiet > longest[i].quiet ? c->quiet : longest[i].quiet;
        longest[i].total = c->total > longest[i].total ? c->total : longest[i].total;
        return;
    }
}

void scene_print_longest(void)
{
    for (int i = 0; i < MAX_NAMES && longest[i].name != NULL; i++)
        printf("%-14s at most %6lu steps without an interruption, %8lu in all\n", longest[i].name,
               (unsigned long)longest[i].quiet, (unsigned long)longest[i].total);
}

void call_begin(const char *name)
{
    FUZZ_CHECK(depth < MAX_DEPTH);
    calls[depth++] = (struct call){.name = name, .next = fuzz_byte(&play->in)};
}

void call_end(void)
{
    note_longest(&calls[--depth]);
    if (depth > 0) /* the inner call may have changed what the outer call sees: the outer bound starts again */
        calls[depth - 1].quiet = 0;
}

static void hang(const struct call *c)
{
    fprintf(stderr, "%s: %lu steps without an interruption, %lu in all, B = %lu, K = %lu\n", c->name,
            (unsigned long)c->quiet, (unsigned long)c->total, (unsigned long)play->geo.batch_size,
            (unsigned long)play->geo.num_batches);
    fuzz_fail(__FILE__, __LINE__, "a call ends soon after the scribbler has stopped");
}

void es_step(void);
void es_step(void)
{
    if (depth == 0 || interrupted)
        return;
    struct call *c = &calls[depth - 1];
    c->quiet++;
    c->total++;
    if (play->forever != 0) {
        /* Even if the scribbler never stops, no call may run forever. */
        if (c->total > 20 * scene_bound())
            hang(c);
        if (c->total % play->period != 0)
            return;
        uint8_t draws[16];
        for (size_t i = 0; i < sizeof draws; i++)
            draws[i] = (uint8_t)fuzz_random(&play->forever);
        fuzz_in in = {draws, draws + sizeof draws};
        interrupted = true;
        scribble(&in);
        interrupted = false;
        return;
    }
    if (c->quiet > scene_bound())
        hang(c);
    if (c->next == 0 || --c->next > 0)
        return;
    c->quiet = 0;
    if (fuzz_byte(&play->in) < 192) {
        interrupted = true;
        for (uint32_t n = fuzz_below(&play->in, 3); n-- < 3;)
            scribble(&play->in);
        interrupted = false;
    } else if (depth < MAX_DEPTH) {
        scene_interlude();
    }
    c->next = fuzz_byte(&play->in);
}

void scene_print_words(void)
{
    const es_header *hdr = (const es_header *)play->base;
    const es_map *m = &play->party[0].ring->map;
    fprintf(stderr, "B = %lu, K = %lu, tail %#lx, head %#lx, closed %u since %#lx, learner 0 is owner %u\n",
            (unsigned long)m->batch_size, (unsigned long)m->num_batches, (unsigned long)hdr->tail,
            (unsigned long)hdr->head, hdr->closed, (unsigned long)hdr->closed_ns, play->party[0].ring->me);
    for (uint64_t j = 0; j < m->num_batches; j++) {
        uint64_t b = m->batches[j].word;
        fprintf(stderr, "batch %lu: round %#lx owner %u state %u;", (unsigned long)j, (unsigned long)es_word_round(b),
                es_word_owner(b), es_word_state(b));
        for (uint64_t i = 0; i < m->batch_size; i++) {
            uint64_t w = m->slots[j * m->batch_size + i];
            fprintf(stderr, " %#lx/%u/%u", (unsigned long)es_word_lap(w), es_word_owner(w), es_word_state(w));
        }
        fprintf(stderr, "\n");
    }
}

/* --- the scribbler ---------------------------------------------------------------- */

static uint64_t word_near(fuzz_in *in, uint64_t w)
{
    static const uint16_t owners[] = {0, 1, 2, 63, 64, 65, 66, 67, 68, 0xffff};
    uint32_t how = fuzz_byte(in), state = fuzz_byte(in);
    uint64_t lap = es_word_lap(w);
    if (how < 96)
        lap += fuzz_below(in, 5) - UINT64_C(2);
    else if (how < 160)
        lap = fuzz_value(in, (UINT64_C(1) << 44) - 1);
    uint32_t owner = how & 1 ? owners[fuzz_below(in, 10)] : es_word_owner(w);
    return es_word(lap, owner, state < 192 ? state % 6 : state & 15);
}

static void write32(_Atomic uint32_t *at, fuzz_in *in)
{
    atomic_store(at, (uint32_t)fuzz_value(in, atomic_load(at)));
}

static void write64(_Atomic uint64_t *at, fuzz_in *in)
{
    atomic_store(at, fuzz_value(in, atomic_load(at)));
}

/* Writes a position: near the edge of a lap or a batch, just below 2^64, or any. */
static void write_position(_Atomic uint64_t *at, fuzz_in *in, uint64_t lap)
{
    uint32_t how = fuzz_byte(in);
    if (how < 128)
        atomic_store(at, atomic_load(at) + lap * (fuzz_below(in, 7) - UINT64_C(3)) + fuzz_below(in, 3) - 1);
    else if (how < 160)
        atomic_store(at, UINT64_MAX / lap * lap + fuzz_below(in, 9) - 4);
    else
        write64(at, in);
}

static void scribble_hint(fuzz_in *in)
{
    es_header *hdr = (es_header *)play->base;
    _Atomic uint32_t *hints[] = {&hdr->reopen_seq, &hdr->given_back_seq, &hdr->closed,    &hdr->owners_high,
                                 &hdr->ready_seq,  &hdr->learner_sleeps, &hdr->space_seq, &hdr->producers_sleep};
    es_totals *totals = &hdr->totals;
    _Atomic uint64_t *counters[] = {&hdr->closed_ns,           &totals->batches_taken, &totals->batches_released,
                                    &totals->occupancy_max,    &totals->push_blocked,  &totals->active_producers,
                                    &totals->stalled_producers};
    uint32_t which = fuzz_below(in, 15);
    if (which < 8)
        write32(hints[which], in);
    else
        write64(counters[which - 8], in);
}

static void scribble_owner(fuzz_in *in, es_map *m)
{
    uint32_t which = fuzz_byte(in);
    es_owner *o = &m->owners[(which < 192 ? (which % 2 ? ES_MAX_LEARNERS : 0) + which / 2 % 4 : which) % m->num_owners];
    switch (fuzz_below(in, 6)) {
    case 0:
    case 1:
        atomic_store(&o->state, fuzz_below(in, 3));
        break;
    case 2:
        write32(&o->role, in);
        break;
    case 3:
        atomic_store(&o->pid, (int64_t)fuzz_value(in, 1));
        break;
    case 4:
        write64(&o->start_time_bits, in);
        break;
    default:
        write64(&o->samples, in);
    }
}

void scribble(fuzz_in *in)
{
    es_map *m = &play->party[0].ring->map;
    es_header *hdr = m->hdr;
    uint64_t q = fuzz_byte(in) % m->capacity;
    es_batch *b = &m->batches[q % m->num_batches];
    switch (fuzz_below(in, 16)) {
    case 0:
    case 1:
    case 2:
    case 3:
        atomic_store(&m->slots[q], word_near(in, atomic_load(&m->slots[q])));
        break;
    case 4:
        for (uint64_t i = 0; i < m->capacity; i++)
            atomic_store(&m->slots[i], word_near(in, atomic_load(&m->slots[i])));
        break;
    case 5:
    case 6:
    case 7:
        atomic_store(&b->word, word_near(in, atomic_load(&b->word)));
        break;
    case 8:
        write32(&b->count, in);
        break;
    case 9:
        write64(q % 2 ? &b->ready_ns : &b->leased_ns, in);
        break;
    case 10:
    case 11:
        write_position(&hdr->tail, in, m->capacity);
        break;
    case 12:
        write_position(&hdr->head, in, m->num_batches);
        break;
    case 13:
        scribble_owner(in, m);
        break;
    case 14:
        if (es_stats_detailed(m))
            write64(&m->hists[q % ES_STATS_HISTOGRAMS].bucket[q], in);
        break;
    default:
        scribble_hint(in);
    }
}

/* --- the ring -------------------------------------------------------------------- */

static uint64_t fixed_bytes(void)
{
    return ((es_header *)play->base)->offsets.owners;
}

static bool is_hint(uint64_t at)
{
    return at >= offsetof(es_header, tail) && at < sizeof(es_header);
}

void scene_join(party *p)
{
    int error;
    bool learner = p < play->party + LEARNERS;
    es_identity id = {.role = learner ? ES_ROLE_LEARNER : ES_ROLE_PRODUCER, .pid = 1, .start_time = 1.5};
    if (p->ring == NULL)
        p->ring = es_api_open(play->base, play->size, play->locks, p == play->party, &error);
    FUZZ_CHECK(p->ring != NULL);
    p->kept = 0;
    es_api_attach(p->ring, &id); /* may fail: the scribbler may have filled all entries */
}

void scene_die(party *p)
{
    if (!p->ring->detached)
        es_locks_drop(play->locks, p->ring->me);
    es_api_free(p->ring);
    p->ring = NULL;
}

scene *scene_open(const uint8_t *data, size_t size)
{
    static const uint64_t leaf_sizes[] = {8, 1, 0, 5, 40, 4};
    play = calloc(1, sizeof *play);
    fuzz_in in = {data, data + size};
    uint8_t mode = fuzz_byte(&in);
    play->geo = (es_geometry){.batch_size = 1 + fuzz_below(&in, 5),
                              .num_batches = 1 + fuzz_below(&in, 4),
                              .reap_interval_ns = 100000,
                              .max_producers = PRODUCERS + 1,
                              .num_leaves = LEAVES,
                              .schema_size = 16,
                              .flags = mode & (ES_FLAG_READY_ORDER | ES_FLAG_DETAILED)};
    for (int l = 0; l < LEAVES; l++)
        play->leaf_sizes[l] = leaf_sizes[fuzz_below(&in, 6)];
    if (mode >= 224) {
        play->period = 1 + fuzz_below(&in, 40);
        play->forever = fuzz_u64(&in) | 1;
    }
    play->in = in;
    play->f = fix_new_leaves(&play->geo, play->leaf_sizes);
    play->size = play->f->size;
    play->base = play->f->base;
    play->locks = play->f->locks;
    es_still_begin();
    es_still_look_ns = 1000;
    depth = 0;
    for (int i = 0; i < PARTIES; i++)
        scene_join(&play->party[i]);
    play->fixed = fuzz_block(fixed_bytes());
    memcpy(play->fixed, play->base, fixed_bytes());
    return play;
}

/* Pages end between the leaves. No copy may write there. */
static void check_padding(const es_map *m)
{
    for (uint32_t l = 0; l < m->num_leaves; l++) {
        const uint8_t *at = m->leaf_data[l] + m->capacity * m->leaf_size[l];
        const uint8_t *end = l + 1 < m->num_leaves ? m->leaf_data[l + 1] : m->base + play->size;
        while (at < end)
            FUZZ_CHECK(*at++ == 0);
    }
}

void scene_close(void)
{
    for (uint64_t i = 0; i < fixed_bytes(); i++)
        FUZZ_CHECK(is_hint(i) || play->base[i] == play->fixed[i]);
    check_padding(&play->party[0].ring->map);
    FUZZ_CHECK(es_locks_any(play->locks) == 0);
    for (int i = 0; i < PARTIES; i++)
        es_api_free(play->party[i].ring);
    free(play->fixed);
    fix_free(play->f);
    free(play);
    play = NULL;
}
