/* Options, and the configurations of the rounds. Each dimension has a few values. Each value is used once before any is
 * used again, in an order drawn from the seed. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "storm.h"

enum st_dimension {
    D_SIZE,
    D_BATCH,
    D_NUM,
    D_PRODUCERS,
    D_LEARNERS,
    D_PLACES,
    D_ORDER,
    D_REAP,
    D_RATE,
    D_LEARNER_RATE,
    D_STOPS,
    D_ENDING,
    DIMENSIONS
};
_Static_assert(DIMENSIONS == 12, "st_options.fixed has a place for each");

static const struct deck {
    const char *name, *what;
    int64_t least, most;
    uint32_t n;
    int64_t value[6];
} decks[DIMENSIONS] = {
    [D_SIZE] = {"sample-bytes", "bytes of a sample, in several leaves", 20, 1 << 20, 5, {20, 20, 300, 4096, 102400}},
    [D_BATCH] = {"batch-size", "samples per batch", 1, ST_BATCH, 5, {1, 3, 8, 32, 256}},
    [D_NUM] = {"num-batches", "batches in the ring", 1, 1024, 5, {1, 2, 4, 8, 32}},
    [D_PRODUCERS] = {"producers", "producers at a time", 1, ST_PRODUCERS, 4, {2, 4, 6, 12}},
    [D_LEARNERS] = {"learners", "learners at a time", 1, ST_LEARNERS, 4, {1, 2, 3, 4}},
    [D_PLACES] =
        {"max-producers", "owner entries for producers, those of dead ones included", 1, 60000, 3, {16, 64, 1024}},
    [D_ORDER] = {"ready-order", "0: fifo, 1: ready", 0, 1, 2, {0, 1}},
    [D_REAP] = {"reap-ms", "milliseconds between sweeps", 1, 10000, 4, {1, 2, 5, 20}},
    [D_RATE] = {"kill-rate",
                "producers killed per second; 0: no process is killed, and the reap interval is long",
                0,
                100000,
                5,
                {0, 400, 1500, 3000, 4000}},
    [D_LEARNER_RATE] = {"learner-kill-rate", "learners killed per second, in addition", 0, 10000, 4, {0, 5, 20, 60}},
    [D_STOPS] = {"stop-rate", "processes stopped per second", 0, 10000, 3, {0, 30, 150}},
    [D_ENDING] = {"ending",
                  "of a round: 0 all leave, 1 all are killed, 2 the ring closes, 3 it closes and a claim is evicted",
                  0,
                  ST_ENDINGS - 1,
                  5,
                  {0, 1, 2, 2, 3}},
};

static void usage(void)
{
    printf("storm [options]\n"
           "  --seconds S         how long (10)\n"
           "  --round-seconds S   how long a round on one segment lasts (a tenth of --seconds, from 1 to 4)\n"
           "  --seed N            repeats the configurations and the random choices of a run\n"
           "  --watchdog S        seconds without a batch, while no process is stopped, that are a hang (20)\n"
           "  --json FILE         writes the figures to a file\n"
           "  --quiet             prints only the summary\n"
           "A dimension that is given stays fixed. The others change from round to round:\n");
    for (int d = 0; d < DIMENSIONS; d++)
        printf("  --%-17s %s\n", decks[d].name, decks[d].what);
}

static bool number(const char *text, double least, double most, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (*text != '\0' && *end == '\0' && *out >= least && *out <= most)
        return true;
    fprintf(stderr, "storm: %s: use a number from %.15g to %.15g\n", text, least, most);
    return false;
}

enum { O_SECONDS = 'A', O_ROUND, O_SEED, O_WATCHDOG, O_JSON, O_QUIET, O_HELP, O_DIMENSION };

static bool take_option(st_options *o, int option, const char *value)
{
    double x;
    switch (option) {
    case O_SECONDS:
        return number(value, 0.1, 1e6, &o->seconds);
    case O_ROUND:
        return number(value, 0.1, 1e6, &o->round_seconds);
    case O_SEED:
        o->seed = strtoull(value, NULL, 0);
        return true;
    case O_WATCHDOG:
        return number(value, 0.001, 1e6, &o->watchdog_seconds);
    case O_JSON:
        o->json = value;
        return true;
    case O_QUIET:
        o->quiet = true;
        return true;
    default:
        break;
    }
    if (option < O_DIMENSION || option >= O_DIMENSION + DIMENSIONS) {
        usage();
        return false;
    }
    int d = option - O_DIMENSION;
    if (!number(value, (double)decks[d].least, (double)decks[d].most, &x))
        return false;
    o->fixed[d] = (int64_t)x;
    return true;
}

bool st_options_parse(int argc, char **argv, st_options *o)
{
    static const struct option plain[] = {
        {"seconds", 1, NULL, O_SECONDS},   {"round-seconds", 1, NULL, O_ROUND}, {"seed", 1, NULL, O_SEED},
        {"json", 1, NULL, O_JSON},         {"quiet", 0, NULL, O_QUIET},         {"help", 0, NULL, O_HELP},
        {"watchdog", 1, NULL, O_WATCHDOG},
    };
    enum { PLAIN = sizeof plain / sizeof plain[0] };
    struct option longs[PLAIN + DIMENSIONS + 1] = {{0}};
    memcpy(longs, plain, sizeof plain);
    *o = (st_options){.seconds = 10, .watchdog_seconds = 20};
    o->seed = (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    for (int d = 0; d < DIMENSIONS; d++) {
        longs[PLAIN + d] = (struct option){decks[d].name, 1, NULL, O_DIMENSION + d};
        o->fixed[d] = -1;
    }
    for (int option; (option = getopt_long(argc, argv, "", longs, NULL)) != -1;)
        if (!take_option(o, option, optarg))
            return false;
    if (optind < argc) {
        usage();
        return false;
    }
    if (o->round_seconds == 0)
        o->round_seconds = o->seconds < 10 ? 1 : o->seconds > 40 ? 4 : o->seconds / 10;
    return true;
}

/* The value of dimension d in a round. The deck is shuffled again each time all of its values have been used. */
static int64_t draw(const st_options *o, int d, uint32_t round)
{
    const struct deck *deck = &decks[d];
    if (o->fixed[d] >= 0)
        return o->fixed[d];
    uint32_t order[6];
    es_random random = es_random_of(o->seed, (uint64_t)(d + 1) << 32 | round / deck->n);
    for (uint32_t i = 0; i < deck->n; i++) {
        uint32_t j = es_random_below(&random, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    return deck->value[order[round % deck->n]];
}

/* With a larger ring most writes would be the first to a page. */
#define MOST_BYTES (UINT64_C(24) << 20)

st_config st_config_of(const st_options *o, uint32_t round)
{
    es_random random = es_random_of(o->seed, round);
    st_config c = {.sample_bytes = (uint64_t)draw(o, D_SIZE, round),
                   .batch_size = (uint64_t)draw(o, D_BATCH, round),
                   .num_batches = (uint64_t)draw(o, D_NUM, round),
                   .producers = (uint32_t)draw(o, D_PRODUCERS, round),
                   .learners = (uint32_t)draw(o, D_LEARNERS, round),
                   .max_producers = (uint32_t)draw(o, D_PLACES, round),
                   .flags = draw(o, D_ORDER, round) ? ES_FLAG_READY_ORDER : 0,
                   .reap_ms = (uint32_t)draw(o, D_REAP, round),
                   .kill_rate = (uint32_t)draw(o, D_RATE, round),
                   .learner_kill_rate = (uint32_t)draw(o, D_LEARNER_RATE, round),
                   .stop_rate = (uint32_t)draw(o, D_STOPS, round),
                   .ending = (enum st_ending)draw(o, D_ENDING, round)};
    if (c.kill_rate == 0 && o->fixed[D_REAP] < 0) {
        c.learner_kill_rate = 0;
        c.reap_ms = ST_CALM_REAP_MS;
        c.ending = ST_END_CLOSE; /* a close wakes every process, however long it would sleep */
    }
    c.poison = es_random_below(&random, 2) == 0;
    c.partial = es_random_below(&random, 4) == 0;
    c.flags |= es_random_below(&random, 3) == 0 ? ES_FLAG_DETAILED : 0;
    for (int d = D_NUM; c.sample_bytes * c.batch_size * c.num_batches > MOST_BYTES; d = D_NUM + D_BATCH - d) {
        uint64_t *n = d == D_NUM ? &c.num_batches : &c.batch_size;
        *n = *n > 1 ? *n / 2 : 1;
    }
    return c;
}

void st_config_text(const st_config *c, char *text, size_t room)
{
    static const char *const endings[ST_ENDINGS] = {"left", "killed", "closed", "closed, evicting"};
    snprintf(text, room,
             "%llu B x %llu x %llu, %s, %u producers (%u places), %u learners, reap %u ms, kills %u/s, "
             "of learners %u/s, stops %u/s%s%s%s, %s at the end",
             (unsigned long long)c->sample_bytes, (unsigned long long)c->batch_size, (unsigned long long)c->num_batches,
             c->flags & ES_FLAG_READY_ORDER ? "ready" : "fifo", c->producers, c->max_producers, c->learners, c->reap_ms,
             c->kill_rate, c->learner_kill_rate, c->stop_rate, c->poison ? ", poisoned" : "",
             c->partial ? ", partial takes" : "", c->flags & ES_FLAG_DETAILED ? ", detailed" : "", endings[c->ending]);
}
