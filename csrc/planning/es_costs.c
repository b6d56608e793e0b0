#include "planning/es_costs.h"

#include <math.h>

#include "base/es_base.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* GCC contracts nothing under -std=c11 */
#endif

static bool is_length(int64_t length)
{
    return length >= 0 && length <= ES_COSTS_LONGEST;
}

/* t(t + 1) - r(r + 1) = (t - r)(t + r + 1) is below 2^64, and nothing cancels. */
uint64_t es_costs_effective(const int64_t *lengths, const int64_t *reused, uint64_t n, double scale, double *costs)
{
    for (uint64_t i = 0; i < n; i++) {
        if (!is_length(lengths[i]) || !is_length(reused[i]))
            return i;
        uint64_t t = (uint64_t)lengths[i], r = (uint64_t)reused[i], pairs = t > r ? (t - r) * (t + r + 1) / 2 : 0;
        costs[i] = scale * (double)pairs;
    }
    return n;
}

uint64_t es_costs_priorities(const double *rewards, const double *costs, const double *queue_times, uint64_t n,
                             double bandwidth_weight, double queue_weight, double epsilon, double *priorities)
{
    for (uint64_t i = 0; i < n; i++) {
        /* Comparisons with NaN are false. */
        if (!isfinite(rewards[i]) || !(costs[i] >= 0 && costs[i] < INFINITY) ||
            !(queue_times[i] >= 0 && queue_times[i] < INFINITY))
            return i;
        priorities[i] = rewards[i] / (bandwidth_weight * costs[i] + queue_weight * queue_times[i] + epsilon);
    }
    return n;
}

/* What each addition rounds away is added at the end: A. Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation
 * endlicher Summen", ZAMM 54, 1974. */
uint64_t es_costs_total(const double *values, uint64_t n, double least, uint32_t absolute, double *total)
{
    double sum = 0, lost = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (!(isfinite(values[i]) && values[i] >= least))
            return i;
        double value = absolute ? fabs(values[i]) : values[i], next = sum + value;
        lost += fabs(sum) >= fabs(value) ? (sum - next) + value : (value - next) + sum;
        sum = next;
    }
    *total = isfinite(sum) ? sum + lost : sum; /* infinity has lost NaN */
    return n;
}

static bool is_share(double value)
{
    return value > 0 && value <= 1;
}

uint64_t es_costs_weights(const double *probabilities, const double *shares, uint64_t n, double size, double beta,
                          double *weights)
{
    for (uint64_t i = 0; i < n; i++) {
        if (!is_share(probabilities[i]) || !is_share(shares[i]))
            return i;
        weights[i] = pow(size * (probabilities[i] * shares[i]), -beta);
        if (!(weights[i] < INFINITY))
            return i;
    }
    return n;
}
