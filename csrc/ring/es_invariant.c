#include "ring/es_invariant.h"

const char *es_invariant_slot(uint64_t w, uint64_t b)
{
    uint64_t round = es_word_round(b), lap = es_word_lap(w);
    bool done = es_word_state(w) == ES_COMMITTED || es_word_state(w) == ES_SEALED || es_word_state(w) == ES_HELD;
    if (es_word_state(w) > ES_HELD || (es_word_state(w) == ES_FREE) != (lap == 0))
        return "a slot word has a state, and lap 0 is FREE";
    if (lap != round && lap != round + 1)
        return "a slot is in its batch's lap or the one before";
    if (lap == round && lap != 0 && !done)
        return "a slot of a released lap is COMMITTED, SEALED or HELD";
    if (es_word_state(b) != ES_FILL && (lap != round + 1 || !done))
        return "every slot of a leased or retired batch is COMMITTED, SEALED or HELD";
    return NULL;
}
