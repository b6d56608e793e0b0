#include "es_valid.h"

#include "ring/es_invariant.h"
#include "ring/es_word.h"

static bool live(es_map *m, uint32_t index)
{
    /* SYNC owner-live: acquire. */
    return index < m->num_owners &&
           atomic_load_explicit(&m->owners[index].state, memory_order_acquire) == ES_OWNER_LIVE;
}

static const char *valid_slot(es_map *m, uint64_t q, uint64_t tail)
{
    /* acquire, here and below: es_valid() reads a ring at rest, and each load pairs with the last store. */
    uint64_t w = atomic_load_explicit(&m->slots[q], memory_order_acquire);
    uint64_t b = atomic_load_explicit(&m->batches[q / m->batch_size].word, memory_order_acquire);
    uint64_t round = es_word_round(b), lap = es_word_lap(w);
    const char *wrong = es_invariant_slot(w, b);
    if (wrong != NULL)
        return wrong;
    if (es_word_state(w) == ES_HELD && es_word_state(b) == ES_FILL && lap == round + 1 && !live(m, es_word_owner(w)))
        return "no HELD word of this lap has a reaped owner";
    if (es_word_state(w) == ES_CLAIMED && !live(m, es_word_owner(w)))
        return "no CLAIMED word has a reaped owner";
    uint64_t claimed_laps = tail / m->capacity + (q < tail % m->capacity);
    if (lap < claimed_laps)
        return "p < tail implies S[p mod C].lap >= LAP(p)";
    return NULL;
}

const char *es_valid(es_ring *r)
{
    es_map *m = &r->map;
    uint64_t tail = atomic_load_explicit(&m->hdr->tail, memory_order_acquire);
    for (uint64_t j = 0; j < m->num_batches; j++) {
        uint64_t b = atomic_load_explicit(&m->batches[j].word, memory_order_acquire);
        if (es_word_state(b) > ES_POISONING)
            return "a batch word has a state";
        if ((es_word_state(b) == ES_LEASED || es_word_state(b) == ES_POISONING) && !live(m, es_word_owner(b)))
            return "no LEASED word has a reaped owner";
    }
    for (uint64_t q = 0; q < m->capacity; q++) {
        const char *wrong = valid_slot(m, q, tail);
        if (wrong != NULL)
            return wrong;
    }
    return NULL;
}
