/* The steps that the replay's own process stores: which environments they are of, and where each one's episode stands.
 * Private memory. Whoever opens the store later begins another stream. */
#ifndef ES_OWN_H
#define ES_OWN_H

#include "base/es_base.h"
#include "replay/es_tables.h"

typedef struct es_own {
    uint64_t stream;
    uint32_t version; /* of the weights that the next steps are made with */
    uint32_t num_environments;
    es_environment *environments; /* at least one */
    void *zeros;                  /* as many as the largest leaf has bytes */
} es_own;

/* ES_OK or -ENOMEM. */
int es_own_init(es_own *own, const es_tables *m, uint64_t stream);
void es_own_free(es_own *own);

/* See the functions of es_replay.h. */
int es_own_add(es_own *own, es_tables *m, const void *const *leaves, uint32_t flags, const double *priorities,
               es_trouble *why);
int es_own_add_last(es_own *own, es_tables *m, const void *const *leaves, const void *const *final, uint32_t flags,
                    const double *priorities, es_trouble *why);
int64_t es_own_extend(es_own *own, es_tables *m, const void *const *leaves, uint64_t n, const uint8_t *flags,
                      const double *priorities, int *error, es_trouble *why);
int64_t es_own_add_vector(es_own *own, es_tables *m, const es_vector *v, uint64_t first, int *error, es_trouble *why);

/* The next step begins an episode: of every environment, or of n of them. */
void es_own_end_all(es_own *own);
void es_own_end_some(es_own *own, const int64_t *environments, uint64_t n);
/* Goes on as another es_own of that stream, which had n environments. ES_OK, -ENOMEM, or ES_EENVIRONMENT. */
int es_own_go_on(es_own *own, uint64_t stream, const es_environment *environments, uint64_t n);

#endif
