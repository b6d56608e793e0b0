/* One row, compiled once for each kind of instructions and each type: es_plan.c includes this file with LANES(name),
 * TARGET, WIDTH, NUMBER, WIDE(v, type) and NARROW(v, type) defined. It has no guard for that reason.
 *
 * Number j of a row is added to partial sum j mod ES_PLAN_LANES. Sum j then takes sum j + h, for h from half of them
 * down to 1. A vector has WIDTH of the sums. */

#define VECTORS (ES_PLAN_LANES / WIDTH)

typedef double LANES(doubles) __attribute__((vector_size(8 * WIDTH)));
typedef NUMBER LANES(numbers) __attribute__((vector_size(sizeof(NUMBER) * WIDTH)));

TARGET __attribute__((always_inline)) static inline LANES(numbers) LANES(load)(const NUMBER *x)
{
    LANES(numbers) some;
    memcpy(&some, x, sizeof some);
    return some;
}

TARGET __attribute__((always_inline)) static inline LANES(doubles) LANES(wide)(LANES(numbers) v)
{
    return (LANES(doubles))WIDE(v, LANES(doubles));
}

/* The square of the difference, which is rounded to NUMBER first: float conversions take longest. */
TARGET __attribute__((always_inline)) static inline LANES(doubles) LANES(square)(LANES(numbers) a, LANES(numbers) b)
{
    LANES(doubles) between = LANES(wide)(a - b);
    return between * between;
}

/* The same; mean takes plan. */
TARGET __attribute__((always_inline)) static inline LANES(doubles)
    LANES(mix)(NUMBER *mean, const NUMBER *plan, double decay)
{
    LANES(numbers) old = LANES(load)(mean), new = LANES(load)(plan);
    LANES(doubles) mixed = decay * LANES(wide)(old) + (1 - decay) * LANES(wide)(new);
    LANES(numbers) rounded = (LANES(numbers))NARROW(mixed, LANES(numbers));
    memcpy(mean, &rounded, sizeof rounded);
    return LANES(square)(new, old);
}

TARGET __attribute__((always_inline)) static inline double LANES(total)(LANES(doubles) * sum)
{
#pragma GCC unroll 16
    for (int half = VECTORS / 2; half > 0; half /= 2)
#pragma GCC unroll 16
        for (int v = 0; v < half; v++)
            sum[v] += sum[v + half];
    double last[WIDTH];
    memcpy(last, sum, sizeof last);
    for (int half = WIDTH / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            last[j] += last[j + half];
    return last[0];
}

TARGET static double LANES(distance)(const NUMBER *a, const NUMBER *b, uint64_t dim)
{
    LANES(doubles) sum[VECTORS] = {{0}};
    for (; dim >= ES_PLAN_LANES; dim -= ES_PLAN_LANES, a += ES_PLAN_LANES, b += ES_PLAN_LANES)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++)
            sum[v] += LANES(square)(LANES(load)(a + v * WIDTH), LANES(load)(b + v * WIDTH));
    if (dim > 0) { /* the rest, and zeros */
        NUMBER last_a[ES_PLAN_LANES] = {0}, last_b[ES_PLAN_LANES] = {0};
        memcpy(last_a, a, dim * sizeof *a);
        memcpy(last_b, b, dim * sizeof *b);
        for (int v = 0; v < VECTORS; v++)
            sum[v] += LANES(square)(LANES(load)(last_a + v * WIDTH), LANES(load)(last_b + v * WIDTH));
    }
    return LANES(total)(sum);
}

/* The distance, then mean takes plan. */
TARGET static double LANES(take)(NUMBER *mean, const NUMBER *plan, uint64_t dim, double decay)
{
    LANES(doubles) sum[VECTORS] = {{0}};
    for (; dim >= ES_PLAN_LANES; dim -= ES_PLAN_LANES, mean += ES_PLAN_LANES, plan += ES_PLAN_LANES)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++)
            sum[v] += LANES(mix)(mean + v * WIDTH, plan + v * WIDTH, decay);
    if (dim > 0) {
        NUMBER last_mean[ES_PLAN_LANES] = {0}, last_plan[ES_PLAN_LANES] = {0};
        memcpy(last_mean, mean, dim * sizeof *mean);
        memcpy(last_plan, plan, dim * sizeof *plan);
        for (int v = 0; v < VECTORS; v++)
            sum[v] += LANES(mix)(last_mean + v * WIDTH, last_plan + v * WIDTH, decay);
        memcpy(mean, last_mean, dim * sizeof *mean);
    }
    return LANES(total)(sum);
}

#undef VECTORS
