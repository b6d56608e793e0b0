/* A shared plan, the exponential moving average of plans, and how far plans are from it.
 *
 * Plans are rows of dim numbers, one after the other, of float (_f32) or double (_f64). The average is computed in
 * double. Differences are rounded to the type of the plans. A square is added to a partial sum with one rounding. 512
 * squares have 32 partial sums, which are added pairwise, in that type, too. So every kind of instructions gives the same
 * bits, and a float's error is some 2^-21 at most. NaNs and infinities are not looked for: they come out as such. */
#ifndef ES_PLAN_H
#define ES_PLAN_H

#include "base/es_types.h"

/* The instructions to use on this processor, for the others: an es_lanes_kind. Plain ones are always right. */
uint32_t es_plan_best(void);

/* distances[i] = the sum of the squares of row i of plans - row i of others; i < n. Rows of others begin stride numbers
 * apart: dim, or 0 if all are compared with one. */
void es_plan_distances_f32(uint32_t kind, const float *plans, const float *others, uint64_t stride, uint64_t n,
                           uint64_t dim, double *distances);
void es_plan_distances_f64(uint32_t kind, const double *plans, const double *others, uint64_t stride, uint64_t n,
                           uint64_t dim, double *distances);

/* Takes n plans, one after the other: mean = decay * mean + (1 - decay) * plan. distances[i] is that of row i from the
 * mean before it is taken. */
void es_plan_take_f32(uint32_t kind, float *mean, const float *plans, uint64_t n, uint64_t dim, double decay,
                      double *distances);
void es_plan_take_f64(uint32_t kind, double *mean, const double *plans, uint64_t n, uint64_t dim, double decay,
                      double *distances);

/* scores[i] = plan_weight * the distance of row i of plans from ema + reward_weight * |reward i|; i < n. Rewards are stride
 * numbers apart: 1, or 0 if there is one for all. Returns how many of the scores are finite. */
uint64_t es_plan_surprise_f32(uint32_t kind, const float *plans, const float *ema, uint64_t n, uint64_t dim,
                              const double *rewards, uint64_t stride, double plan_weight, double reward_weight,
                              double *scores);
uint64_t es_plan_surprise_f64(uint32_t kind, const double *plans, const double *ema, uint64_t n, uint64_t dim,
                              const double *rewards, uint64_t stride, double plan_weight, double reward_weight,
                              double *scores);
/* The same of distances that are known, in their place: distances[i] = plan_weight * distances[i] + reward_weight * |reward i|. */
uint64_t es_plan_scores(double *distances, const double *rewards, uint64_t stride, uint64_t n, double plan_weight,
                        double reward_weight);

#endif
