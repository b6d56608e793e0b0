/* What attention over a sequence costs, which rollout pays most for it, and the weights of what was drawn. */
#ifndef ES_COSTS_H
#define ES_COSTS_H

#include "base/es_types.h"

/* The longest sequence: for it and below, a cost is rounded once. */
#define ES_COSTS_LONGEST (INT64_C(1) << 31)

/* costs[i] = scale * (t(t + 1) - r(r + 1)) / 2 with t = lengths[i] and r = reused[i], or 0 if r > t. Returns n, or the
 * first i at which a length is negative or above ES_COSTS_LONGEST. */
uint64_t es_costs_effective(const int64_t *lengths, const int64_t *reused, uint64_t n, double scale, double *costs);

/* priorities[i] = rewards[i] / (bandwidth_weight * costs[i] + queue_weight * queue_times[i] + epsilon). epsilon is above
 * 0. Returns n, or the first i at which a number is not finite, or a cost or time is negative. */
uint64_t es_costs_priorities(const double *rewards, const double *costs, const double *queue_times, uint64_t n,
                             double bandwidth_weight, double queue_weight, double epsilon, double *priorities);

/* *total = the sum of values, or of their absolute values, as if it were added in doubles of twice the length, and then
 * rounded; infinite if a part of the sum is. Returns n, or the first i at which a number is not finite or below least. */
uint64_t es_costs_total(const double *values, uint64_t n, double least, uint32_t absolute, double *total);

/* weights[i] = (size * (probabilities[i] * shares[i])) ** -beta. size is 1 or more, beta 0 or more. Returns n, or the first
 * i at which a probability or a share is not above 0 and at most 1, or the weight is infinite. */
uint64_t es_costs_weights(const double *probabilities, const double *shares, uint64_t n, double size, double beta,
                          double *weights);

#endif
