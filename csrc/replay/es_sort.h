/* Sorts many numbers by their keys. */
#ifndef ES_SORT_H
#define ES_SORT_H

#include "base/es_base.h"

typedef struct es_sort_pair {
    uint64_t key;
    uint32_t number, zero;
} es_sort_pair;

/* By ascending key; equal keys stay in order. ES_OK or -ENOMEM. */
int es_sort(es_sort_pair *pairs, uint64_t n);

#endif
