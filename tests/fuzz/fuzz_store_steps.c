#include "fuzz_store_steps.h"

#include <stdbool.h>
#include <stdlib.h>

uint32_t fuzz_store_steps_new(es_replay *r, uint64_t n, void **leaves)
{
    uint32_t num_tables, num_leaves;
    es_replay_shape(r, &num_tables, &num_leaves);
    for (uint32_t l = 0; l < num_leaves && l < FUZZ_LEAVES; l++)
        leaves[l] = fuzz_block(n * es_replay_leaf_size(r, l));
    FUZZ_CHECK(num_leaves <= FUZZ_LEAVES);
    return num_leaves;
}

void fuzz_store_steps_free(void **leaves, uint32_t num_leaves)
{
    for (uint32_t l = 0; l < num_leaves; l++)
        free(leaves[l]);
}

int fuzz_store_steps_add_vector(es_replay *r, fuzz_in *in, uint64_t n)
{
    void *leaves[FUZZ_LEAVES];
    uint32_t num_leaves = fuzz_store_steps_new(r, n, leaves);
    const void **finals = malloc(n * num_leaves * sizeof *finals);
    int64_t *environments = malloc(n * sizeof *environments);
    uint8_t *ends = malloc(n);
    int error;
    es_trouble why = {0};
    for (uint64_t i = 0; i < n; i++) {
        environments[i] = fuzz_below(in, 32) == 0 ? (int64_t)fuzz_value(in, 0) : fuzz_below(in, 40);
        ends[i] = fuzz_below(in, 4) == 0;
        for (uint32_t l = 0; l < num_leaves; l++)
            finals[i * num_leaves + l] =
                fuzz_below(in, 4) == 0 ? NULL : (uint8_t *)leaves[l] + i * es_replay_leaf_size(r, l);
    }
    const es_vector v = {.leaves = (const void *const *)leaves,
                         .finals = fuzz_below(in, 2) ? finals : NULL,
                         .terminated = fuzz_below(in, 2) ? ends : NULL,
                         .truncated = fuzz_below(in, 2) ? ends : NULL,
                         .environments = fuzz_below(in, 2) ? environments : NULL,
                         .n = n,
                         .skips_resets = fuzz_below(in, 2)};
    int64_t done = es_replay_add_vector(r, &v, 0, &error, &why);
    FUZZ_CHECK(done >= 0 && (uint64_t)done <= n && (error == ES_OK) == ((uint64_t)done == n));
    bool wrong = error == ES_EENVIRONMENT || error == ES_ERESET;
    FUZZ_CHECK(!wrong || (done == 0 && why.index < n));
    free(finals);
    free(environments);
    free(ends);
    fuzz_store_steps_free(leaves, num_leaves);
    return wrong ? ES_OK : error;
}
