/* One row, compiled once for each kind of instructions and each type: es_plan.c includes this file with LANES(name),
 * TARGET, BYTES (of a register), NUMBER, WIDE(v, type) and NARROW(v, type) defined, and LANES(fused) and LANES(sum). It has
 * no guard for that reason.
 *
 * Number j of a block is added to partial sum j mod ES_PLAN_LANES, in NUMBER. Sum j then takes sum j + h, for h from half
 * of them down to 1. The sums of the blocks are added in double. */

#define WIDTH (BYTES / (int)sizeof(NUMBER))
#define VECTORS (ES_PLAN_LANES / WIDTH)
#define DOUBLES (BYTES / 8)

typedef NUMBER LANES(numbers) __attribute__((vector_size(BYTES)));
/* As many numbers as a register has of doubles. */
typedef NUMBER LANES(some) __attribute__((vector_size(DOUBLES * sizeof(NUMBER))));
typedef double LANES(doubles) __attribute__((vector_size(BYTES)));

TARGET __attribute__((always_inline)) static inline double LANES(total)(LANES(numbers) * sum)
{
#pragma GCC unroll 16
    for (int half = VECTORS / 2; half > 0; half /= 2)
#pragma GCC unroll 16
        for (int v = 0; v < half; v++)
            sum[v] += sum[v + half];
    return LANES(sum)(sum[0]);
}

TARGET __attribute__((always_inline)) static inline void LANES(add)(LANES(numbers) * sum, const NUMBER *a,
                                                                    const NUMBER *b)
{
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++) {
        LANES(numbers) x, y;
        memcpy(&x, a + v * WIDTH, sizeof x);
        memcpy(&y, b + v * WIDTH, sizeof y);
        x -= y;
        sum[v] = LANES(fused)(x, sum[v]);
    }
}

/* Of a block, or of less. */
TARGET static double LANES(block)(const NUMBER *a, const NUMBER *b, uint64_t n)
{
    LANES(numbers) sum[VECTORS] = {{0}};
    for (; n >= ES_PLAN_LANES; n -= ES_PLAN_LANES, a += ES_PLAN_LANES, b += ES_PLAN_LANES) {
        for (int i = 0; i < (int)sizeof(NUMBER) * ES_PLAN_LANES; i += 64) /* lines of rows to come */
            __builtin_prefetch((const char *)a + ES_PLAN_AHEAD + i);
        LANES(add)(sum, a, b);
    }
    if (n > 0) { /* the rest, and zeros */
        NUMBER last_a[ES_PLAN_LANES] = {0}, last_b[ES_PLAN_LANES] = {0};
        memcpy(last_a, a, n * sizeof *a);
        memcpy(last_b, b, n * sizeof *b);
        LANES(add)(sum, last_a, last_b);
    }
    return LANES(total)(sum);
}

TARGET static double LANES(distance)(const NUMBER *a, const NUMBER *b, uint64_t dim)
{
    double all = 0;
    for (uint64_t at = 0; at < dim; at += ES_PLAN_BLOCK)
        all += LANES(block)(a + at, b + at, dim - at < ES_PLAN_BLOCK ? dim - at : ES_PLAN_BLOCK);
    return all;
}

/* The distance, then mean takes plan. */
TARGET static double LANES(take)(NUMBER *mean, const NUMBER *plan, uint64_t dim, double decay)
{
    double distance = LANES(distance)(plan, mean, dim), rest = 1 - decay;
    for (; dim >= DOUBLES; dim -= DOUBLES, mean += DOUBLES, plan += DOUBLES) {
        LANES(some) old, new;
        memcpy(&old, mean, sizeof old);
        memcpy(&new, plan, sizeof new);
        LANES(doubles)
        mixed = decay * (LANES(doubles))WIDE(old, LANES(doubles)) + rest * (LANES(doubles))WIDE(new, LANES(doubles));
        old = (LANES(some))NARROW(mixed, LANES(some));
        memcpy(mean, &old, sizeof old);
    }
    for (uint64_t i = 0; i < dim; i++)
        mean[i] = (NUMBER)(decay * (double)mean[i] + rest * (double)plan[i]);
    return distance;
}

#undef WIDTH
#undef VECTORS
#undef DOUBLES
