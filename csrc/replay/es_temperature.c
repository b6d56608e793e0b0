#include "replay/es_temperature.h"

#include <float.h>
#include <math.h>

#include "replay/es_exp.h"

/* Temperatures that are tried, as multiples of the widest depth: at the least one nothing but the greatest priority
 * counts, at the greatest all are the same. */
#define LEAST 0x1p-64
#define GREATEST 0x1p40
/* The effective sample size moves by less than this, in proportion. */
#define NEAR 1.0005

/* Keeps the bins that are not empty, with their means in place of their sums. The first one always is: it has the
 * greatest priority. */
static uint64_t pack(es_temperature *h)
{
    uint64_t n = 1;
    h->sum[0] = h->sum[0] / (double)h->count[0] / h->unit;
    for (uint64_t i = h->lowest; i <= h->highest; i++)
        if (h->count[i] > 0) {
            h->sum[n] = h->sum[i] / (double)h->count[i] / h->unit;
            h->count[n++] = h->count[i];
        }
    return n;
}

static double effective(const es_temperature *h, uint64_t bins, double temperature)
{
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < bins; i++) {
        double weight = es_exp(-(h->sum[i] / temperature));
        sum += (double)h->count[i] * weight;
        squares += (double)h->count[i] * weight * weight;
    }
    return sum * sum / squares;
}

double es_temperature_choose(es_temperature *h, double share)
{
    if (h->total == 0 || h->widest <= 0)
        return 0;
    double wanted = share * (double)h->total, low = fmax(h->widest * LEAST, DBL_MIN);
    double high = fmax(fmin(h->widest, DBL_MAX / GREATEST) * GREATEST, low);
    uint64_t bins = pack(h);
    while (high / low > NEAR) {
        double middle = sqrt(low) * sqrt(high);
        if (effective(h, bins, middle) < wanted)
            low = middle;
        else
            high = middle;
    }
    return high;
}
