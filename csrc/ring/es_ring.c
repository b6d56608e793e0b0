#include "ring/es_ring.h"

#include <stdlib.h>

es_ring *es_ring_open(void *base, uint64_t size, es_locks *locks, int poison, int *error)
{
    es_ring *r = calloc(1, sizeof *r);
    *error = r == NULL ? -ENOMEM : es_layout_map(&r->map, base, size);
    if (*error != ES_OK) {
        free(r);
        return NULL;
    }
    r->scan = calloc(r->map.num_batches, sizeof *r->scan);
    r->held = calloc(r->map.num_batches, sizeof *r->held);
    r->older = calloc(r->map.num_batches, sizeof *r->older);
    pthread_mutex_init(&r->look_lock, NULL);
    pthread_mutex_init(&r->partial_lock, NULL);
    if (r->scan == NULL || r->held == NULL || r->older == NULL) {
        *error = -ENOMEM;
        es_ring_free(r);
        return NULL;
    }
    r->locks = locks;
    r->poison = poison != 0;
    r->fork_generation = es_locks_fork_generation();
    r->detached = r->retired = r->left = 1; /* until es_api_attach() */
    r->seen_reopen = UINT64_MAX;            /* no 32-bit sequence: the first claim searches for re-opened slots */
    r->seen_given_back = UINT64_MAX;        /* and the first look is a full scan */
    return r;
}

void es_ring_free(es_ring *r)
{
    if (r == NULL)
        return;
    pthread_mutex_destroy(&r->look_lock);
    pthread_mutex_destroy(&r->partial_lock);
    es_layout_unmap(&r->map);
    free(r->scan);
    free(r->held);
    free(r->older);
    free(r->leaf_at);
    free(r);
}

void es_ring_set_version(es_ring *r, int64_t version, bool by_hand)
{
    uint64_t word = (uint64_t)version << 1 | by_hand, seen = atomic_load_explicit(&r->version, memory_order_relaxed);
    /* relaxed: see es_ring_version(). */
    while ((by_hand || (seen & 1) == 0) &&
           !atomic_compare_exchange_weak_explicit(&r->version, &seen, word, memory_order_relaxed, memory_order_relaxed))
        ;
}
