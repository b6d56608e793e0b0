#include "replay/es_sort.h"

#include <stdlib.h>
#include <string.h>

/* A radix sort, byte by byte from the lowest. Bytes that all keys share are passed over. */
int es_sort(es_sort_pair *pairs, uint64_t n)
{
    uint64_t all = UINT64_MAX, any = 0;
    for (uint64_t i = 0; i < n; i++)
        all &= pairs[i].key, any |= pairs[i].key;
    if (n < 2 || all == any)
        return ES_OK;
    es_sort_pair *other = malloc(n * sizeof *other), *from = pairs, *to = other;
    if (other == NULL)
        return -ENOMEM;
    for (int shift = 0; shift < 64; shift += 8) {
        if (((all ^ any) >> shift & 0xff) == 0)
            continue;
        uint64_t start[256] = {0}, sum = 0;
        for (uint64_t i = 0; i < n; i++)
            start[from[i].key >> shift & 0xff]++;
        for (int b = 0; b < 256; b++) {
            uint64_t count = start[b];
            start[b] = sum;
            sum += count;
        }
        for (uint64_t i = 0; i < n; i++)
            to[start[from[i].key >> shift & 0xff]++] = from[i];
        es_sort_pair *swap = from;
        from = to;
        to = swap;
    }
    if (from != pairs)
        memcpy(pairs, from, n * sizeof *pairs);
    free(other);
    return ES_OK;
}
