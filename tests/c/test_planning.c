/* What planning reads and writes, for the sanitizers: arrays of exact sizes, and trees that grow and shrink. What comes
 * out is compared with slow twins in tests/planning. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "es_test.h"
#include "planning/es_costs.h"
#include "planning/es_plan.h"
#include "planning/es_prefix_index.h"

/* Every length of a row, for each kind of instructions: nothing beyond it is read or written. */
TEST(planning_rows_of_any_length)
{
    const uint64_t n = 2;
    for (uint32_t kind = 0; kind <= es_plan_best(); kind++)
        for (uint64_t dim = 1; dim < 100; dim++) {
            float *plans = malloc(n * dim * sizeof *plans), *mean = calloc(dim, sizeof *mean);
            double *plans64 = malloc(n * dim * sizeof *plans64), *mean64 = calloc(dim, sizeof *mean64);
            double distances[2];
            for (uint64_t i = 0; i < n * dim; i++)
                plans[i] = 2, plans64[i] = 2;
            es_plan_distances_f32(kind, plans, mean, 0, n, dim, distances);
            CHECK(distances[0] == 4 * (double)dim && distances[1] == distances[0]);
            es_plan_distances_f64(kind, plans64, plans64, dim, n, dim, distances);
            CHECK(distances[0] == 0 && distances[1] == 0);
            CHECK_EQ(es_plan_surprise_f32(kind, plans, mean, n, dim, mean64, 0, 2, 1, distances), n);
            CHECK(distances[0] == 8 * (double)dim && distances[1] == distances[0]);
            CHECK_EQ(es_plan_surprise_f64(kind, plans64, mean64, n, dim, plans64, n - 1, 2, INFINITY, distances), 0);
            es_plan_take_f32(kind, mean, plans, n, dim, 0.5, distances);
            CHECK(distances[1] == (double)dim && mean[dim - 1] == 1.5F);
            es_plan_take_f64(kind, mean64, plans64, n, dim, 0.5, distances);
            CHECK(distances[1] == (double)dim && mean64[dim - 1] == 1.5);
            CHECK_EQ(es_plan_scores(distances, mean64, 0, n, 1, 2), n);
            CHECK(distances[1] == (double)dim + 3);
            free(plans), free(mean), free(plans64), free(mean64);
        }
}

/* The longest sequences that there can be: no integer overflows. */
TEST(planning_longest_sequences)
{
    const int64_t lengths[] = {ES_COSTS_LONGEST, ES_COSTS_LONGEST, ES_COSTS_LONGEST + 1};
    const int64_t reused[] = {0, ES_COSTS_LONGEST - 1, 0};
    double costs[3];
    CHECK_EQ(es_costs_effective(lengths, reused, 3, 1, costs), 2);
    CHECK(costs[0] == 0x1p61 + 0x1p30 && costs[1] == 0x1p31);
}

#define MOST 40  /* blocks of a sequence */
#define LEASES 5 /* at a time */

typedef struct owner {
    es_prefix_index *index;
    uint64_t block_size, next;
    uint8_t *state; /* of each number: 0 offered at most, 1 held, 2 evicted */
    uint32_t leases[LEASES];
    uint64_t num_leases;
} owner;

static int64_t *new_tokens(const owner *o, uint64_t blocks, es_random *r)
{
    int64_t *tokens = malloc(blocks * o->block_size * sizeof *tokens);
    for (uint64_t i = 0; i < blocks * o->block_size; i++)
        tokens[i] = es_random_below(r, 20) > 0;
    return tokens;
}

static void went(owner *o, const int64_t *numbers, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        CHECK_EQ(o->state[numbers[i]], 1);
        o->state[numbers[i]] = 2;
    }
}

/* A sequence is found, and leased if there is a place for the lease. */
static void find(owner *o, const int64_t *tokens, uint64_t blocks)
{
    int64_t *numbers = malloc(blocks * sizeof *numbers);
    uint32_t end;
    int64_t found = es_prefix_index_match(o->index, tokens, blocks, numbers, &end);
    REQUIRE(found >= 0 && found <= (int64_t)blocks);
    for (int64_t i = 0; i < found; i++)
        CHECK_EQ(o->state[numbers[i]], 1);
    if (o->num_leases < LEASES) {
        es_prefix_index_lease(o->index, end);
        o->leases[o->num_leases++] = end;
    }
    free(numbers);
}

static void insert(owner *o, const int64_t *tokens, uint64_t blocks)
{
    int64_t *numbers = malloc(blocks * sizeof *numbers), *evicted = malloc(blocks * sizeof *evicted);
    for (uint64_t i = 0; i < blocks; i++)
        numbers[i] = (int64_t)(o->next + i);
    es_prefix_insertion done;
    REQUIRE_EQ(es_prefix_index_insert(o->index, tokens, blocks, numbers, &done, evicted), ES_OK);
    went(o, evicted, done.evicted);
    for (uint64_t i = 0; i < done.known; i++)
        CHECK_EQ(o->state[numbers[i]], 1);
    for (uint64_t i = done.known; i < done.known + done.taken; i++)
        o->state[o->next + i] = 1;
    o->next += blocks;
    free(numbers), free(evicted);
}

/* Each block that is taken goes once. At the end all go: those that are leased when their leases have ended. */
TEST(planning_every_block_goes_once)
{
    const uint64_t rounds = es_test_scaled(20000) + 100, capacity = 200;
    es_random r = es_random_new(1);
    int64_t gone[200];
    for (uint64_t block_size = 1; block_size < 4; block_size++) {
        owner o = {.index = es_prefix_index_new(block_size, capacity), .block_size = block_size};
        o.state = calloc(rounds * MOST, 1);
        for (uint64_t round = 0; round < rounds; round++) {
            uint64_t blocks = es_random_below(&r, MOST) + 1;
            int64_t *tokens = new_tokens(&o, blocks, &r);
            switch (es_random_below(&r, 4)) {
            case 0:
                find(&o, tokens, blocks);
                break;
            case 1:
                if (o.num_leases > 0)
                    es_prefix_index_release(o.index, o.leases[--o.num_leases]);
                break;
            case 2:
                went(&o, gone, es_prefix_index_evict(o.index, es_random_below(&r, 50), gone));
                break;
            default:
                insert(&o, tokens, blocks);
            }
            free(tokens);
        }
        while (o.num_leases > 0)
            es_prefix_index_release(o.index, o.leases[--o.num_leases]);
        went(&o, gone, es_prefix_index_evict(o.index, capacity, gone));
        CHECK_EQ(es_prefix_index_blocks(o.index), 0);
        CHECK(memchr(o.state, 1, rounds * MOST) == NULL);
        es_prefix_index_free(o.index);
        free(o.state);
    }
}
