/* Correct producers and learners on a ring that somebody scribbles on.
 *
 * An input is the shape of the ring and then calls. Each call names the steps before which the scribbler writes
 * or another party makes a call.
 *
 * Any data may be delivered. But every call must end soon after the scribbling ends, must answer within its
 * contract, and must touch nothing outside the ring.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "es_still.h"
#include "words_scene.h"

#define MAX_CALLS 64

static uint8_t sample_bytes[LEAVES][MANY * 40];
static void *const sample[LEAVES] = {sample_bytes[0], sample_bytes[1], sample_bytes[2]};

static bool is_one_of(int64_t rc, const int *results, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (rc == results[i])
            return true;
    return false;
}
#define ONE_OF(rc, ...) \
    FUZZ_CHECK(is_one_of((rc), (const int[]){__VA_ARGS__}, sizeof(int[]){__VA_ARGS__} / sizeof(int)))

static uint64_t timeout(fuzz_in *in)
{
    return fuzz_below(in, 4) == 0 ? 50000 : 0;
}

/* --- sending -------------------------------------------------------------------- */

static void do_send(party *p)
{
    uint64_t ns = timeout(&play->in);
    call_begin("send");
    int rc = es_api_send_wait(p->ring, (void **)sample, ns);
    call_end();
    ONE_OF(rc, ES_OK, ES_FULL, ES_TIMEOUT, ES_ECLOSED, ES_EEVICTED, ES_EDETACHED);
}

static void do_send_many(party *p)
{
    uint64_t n = 1 + fuzz_below(&play->in, MANY), ns = timeout(&play->in);
    call_begin("send_many");
    int64_t rc = es_api_send_many(p->ring, (void **)sample, 0, n, ns);
    call_end();
    if (rc > 0)
        FUZZ_CHECK((uint64_t)rc <= n);
    else
        ONE_OF(rc, ES_FULL, ES_TIMEOUT, ES_ECLOSED, ES_EEVICTED, ES_EDETACHED);
}

static void do_reserve(party *p)
{
    uint64_t ns = timeout(&play->in);
    if (p->kept == MAX_KEPT)
        return;
    int64_t position = 0;
    call_begin("reserve");
    int rc = es_api_reserve(p->ring, ns, &position);
    call_end();
    ONE_OF(rc, ES_OK, ES_FULL, ES_TIMEOUT, ES_ECLOSED, ES_EDETACHED);
    if (rc == ES_OK)
        p->position[p->kept++] = position;
}

static void do_end_reservation(party *p, bool commit)
{
    if (p->kept == 0)
        return;
    int64_t position = p->position[--p->kept];
    call_begin(commit ? "commit" : "abort");
    int rc = (commit ? es_api_commit : es_api_abort)(p->ring, position);
    call_end();
    ONE_OF(rc, ES_OK, ES_EEVICTED, ES_EDETACHED);
}

/* --- taking ----------------------------------------------------------------------- */

static int64_t take(party *p, uint32_t flags, uint64_t ns)
{
    const es_map *m = &p->ring->map;
    es_snapshot snap;
    call_begin(flags & ES_TAKE_SHORT ? "take short" : "take");
    int64_t rc = es_api_take(p->ring, flags, ns, &snap);
    call_end();
    if (rc >= 0) {
        FUZZ_CHECK((uint64_t)rc < m->num_batches && snap.batch == (uint64_t)rc);
        FUZZ_CHECK(snap.length >= 1 && snap.length <= m->batch_size);
        if (p->kept < MAX_KEPT) {
            p->batch[p->kept] = snap.batch;
            p->round[p->kept++] = snap.round;
        } else {
            es_api_give_back(p->ring, snap.batch, snap.round);
        }
    } else {
        ONE_OF(rc, ES_EMPTY, ES_TIMEOUT, ES_ENDED, ES_EDETACHED);
    }
    return rc;
}

static void do_mask(party *p)
{
    if (p->kept == 0)
        return;
    uint8_t *mask = malloc(p->ring->map.batch_size);
    call_begin("mask");
    int64_t n = es_api_committed_mask(p->ring, p->batch[p->kept - 1], p->round[p->kept - 1], mask);
    call_end();
    FUZZ_CHECK(n <= (int64_t)p->ring->map.batch_size);
    free(mask);
}

static void do_end_lease(party *p, bool release)
{
    if (p->kept == 0)
        return;
    p->kept--;
    call_begin(release ? "release" : "give back");
    int rc = (release ? es_api_release : es_api_give_back)(p->ring, p->batch[p->kept], p->round[p->kept]);
    call_end();
    /* ES_ESTALE: the scribbler made the batch look free, and it was leased here a second time. */
    ONE_OF(rc, ES_OK, ES_ESTALE, ES_EDETACHED);
}

/* --- waiting ------------------------------------------------------------------------ */

static void do_wait(party *p)
{
    const es_watch both[] = {{p->ring, ES_WATCH_BATCH}, {p->ring, ES_WATCH_ROOM}};
    uint32_t n = 1 + fuzz_below(&play->in, 2), first = n == 2 ? 0 : fuzz_below(&play->in, 2);
    uint64_t ns = timeout(&play->in);
    call_begin("wait");
    int rc = es_api_wait_any(both + first, n, NULL, 0, ns);
    call_end();
    ONE_OF(rc, 0, 1, ES_TIMEOUT, ES_EDETACHED);
}

/* --- reap and observe --------------------------------------------------------------- */

static bool holds(uint32_t index)
{
    for (int i = 0; i < PARTIES; i++)
        if (play->party[i].ring != NULL && !play->party[i].ring->detached && play->party[i].ring->me == index)
            return true;
    return false;
}

static void do_sweep(party *p)
{
    es_identity dead;
    uint32_t from = 0;
    for (;;) {
        call_begin("next dead");
        int64_t i = es_sweep_next_dead(p->ring, from, &dead);
        call_end();
        if (i < 0)
            break;
        FUZZ_CHECK(i < (int64_t)p->ring->map.num_owners && !holds((uint32_t)i));
        from = (uint32_t)i + 1;
        call_begin("settle");
        int64_t rc = es_sweep_settle(p->ring, &dead, fuzz_below(&play->in, 4) != 3);
        call_end();
        FUZZ_CHECK(rc >= 0 && rc <= (int64_t)p->ring->map.capacity);
    }
}

static void do_observe(party *p)
{
    es_snapshot snap;
    es_owner_info info;
    uint64_t word;
    uint32_t held[ES_MAX_LEARNERS + PRODUCERS + 1] = {0};
    uint64_t ages[ES_MAX_LEARNERS + PRODUCERS + 1] = {0}, full;
    call_begin("observe");
    es_monitor_observe(p->ring, &snap);
    for (int64_t i = es_monitor_next_owner(p->ring, 0, &info); i >= 0;
         i = es_monitor_next_owner(p->ring, (uint32_t)i + 1, &info))
        FUZZ_CHECK(i < (int64_t)p->ring->map.num_owners);
    for (int64_t i = es_monitor_next_claim(p->ring, 0, &word); i >= 0;
         i = es_monitor_next_claim(p->ring, (uint64_t)i + 1, &word))
        FUZZ_CHECK((uint64_t)i < p->ring->map.capacity);
    es_monitor_count_held(p->ring, held, es_monitor_owner_entries(p->ring));
    es_monitor_lease_ages(p->ring, ages, es_monitor_owner_entries(p->ring));
    FUZZ_CHECK(es_monitor_count_committed(p->ring, &full) <= p->ring->map.capacity);
    FUZZ_CHECK(full <= p->ring->map.num_batches);
    es_valid(p->ring);
    es_api_learner_alive(p->ring);
    es_sweep_set_stalled(p->ring, 1);
    if (fuzz_below(&play->in, 4) == 3)
        es_api_reset_histograms(p->ring);
    call_end();
}

static void do_leave(party *p, bool die)
{
    if (die) {
        scene_die(p);
    } else {
        call_begin("detach");
        es_api_detach(p->ring);
        call_end();
    }
    scene_join(p);
}

/* --- the play ----------------------------------------------------------------------- */

static void act(party *p)
{
    bool learner = p < play->party + LEARNERS;
    uint32_t what = fuzz_byte(&play->in);
    if (what >= 250) {
        call_begin("close");
        es_api_close(p->ring);
        call_end();
        return;
    }
    switch (what % 10) {
    case 0:
        do_sweep(p);
        return;
    case 1:
        if (what & 32)
            do_wait(p);
        else
            do_observe(p);
        return;
    case 2:
        do_leave(p, what & 32);
        return;
    case 3:
    case 4:
        do_send(p);
        return;
    case 5:
        do_send_many(p);
        return;
    case 6:
    case 7:
        if (learner)
            take(p, what >> 5 & 3, timeout(&play->in));
        else
            do_reserve(p);
        return;
    case 8:
        if (learner)
            do_mask(p);
        /* fall through */
    default:
        if (learner)
            do_end_lease(p, what & 32);
        else
            do_end_reservation(p, what & 32);
    }
}

static void act_of_somebody(void)
{
    party *p = &play->party[fuzz_below(&play->in, PARTIES)];
    if (p->busy)
        return;
    p->busy = true;
    act(p);
    p->busy = false;
}

/* All parties but one are killed, and the scribbler stops. On a closed ring the last learner reaches the end after
 * some looks, each a second apart. */
static void end_of_stream(void)
{
    party *p = &play->party[0];
    while (p->kept > 0)
        do_end_lease(p, true);
    for (int i = 1; i < PARTIES; i++)
        scene_die(&play->party[i]);
    if (p->ring->detached)
        return;
    es_api_close(p->ring);
    int64_t rc = ES_EMPTY;
    for (uint64_t looks = 0; rc != ES_ENDED && rc != ES_EDETACHED; looks++) {
        if (looks > 20 + 4 * p->ring->map.num_batches) {
            scene_print_words();
            fuzz_fail(__FILE__, __LINE__, "a learner reaches the end of a closed ring");
        }
        do_sweep(p);
        rc = take(p, 0, looks == 0 ? 200000 : 0); /* longer than a reap interval, because a wait repairs the ring */
        while (p->kept > 0)
            do_end_lease(p, true);
        es_still_advance(UINT64_C(1000000000));
    }
    do_leave(p, false);
    call_begin("detach");
    es_api_detach(p->ring);
    call_end();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool registered;
    if (!registered && getenv("FUZZ_LONGEST") != NULL)
        atexit(scene_print_longest);
    registered = true;
    memset(sample_bytes, 0xa5, sizeof sample_bytes); /* differs from bytes that were never written */
    scene_open(data, size);
    scene_interlude = act_of_somebody;
    for (int calls = 0; !fuzz_done(&play->in) && calls < MAX_CALLS; calls++) {
        uint32_t first = fuzz_byte(&play->in);
        if (first >= 208)
            scribble(&play->in);
        else
            act_of_somebody();
    }
    play->in.at = play->in.end;
    play->forever = 0;
    end_of_stream();
    scene_close();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    (void)seed;
    return LLVMFuzzerMutate(data, size, max_size); /* every input is a program */
}

void fuzz_seeds(fuzz_seed_sink *sink)
{
    uint64_t random = 1;
    for (int i = 0; i < 64; i++) {
        uint8_t draws[256];
        for (size_t d = 0; d < sizeof draws; d++)
            draws[d] = (uint8_t)fuzz_random(&random);
        char name[] = "seed-00";
        name[5] = (char)('0' + i / 10), name[6] = (char)('0' + i % 10);
        sink(name, draws, 16 + (size_t)i * 3);
    }
}
