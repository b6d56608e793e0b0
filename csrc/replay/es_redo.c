#include "replay/es_redo.h"

#include "replay/es_replay_types.h"

/* What is in the list may be anybody's, so each offset is checked here, too. */
static bool apply(es_redo *redo, uint64_t length)
{
    uint8_t *base = redo->base;
    uint64_t last = redo->size - sizeof(uint64_t);
    const volatile es_redo_entry *entry = redo->log->entries, *end = entry + length;
    bool whole = true;
    for (; entry < end; entry++) {
        uint64_t offset = entry->offset;
        if (offset % sizeof(uint64_t) != 0 || offset > last)
            whole = false;
        else
            *(volatile uint64_t *)(base + offset) = entry->value;
    }
    return whole;
}

void es_redo_commit(es_redo *redo)
{
    uint64_t length = redo->length;
    redo->length = 0;
    ES_COMPILER_BARRIER(); /* bytes in places marked free, and the list, come before its length */
    *(volatile uint64_t *)&redo->log->length = length;
    ES_COMPILER_BARRIER();
    apply(redo, length);
    ES_COMPILER_BARRIER();
    *(volatile uint64_t *)&redo->log->length = 0;
    ES_COMPILER_BARRIER();
}

int es_redo_recover(es_redo *redo)
{
    uint64_t length = redo->log->length;
    redo->length = 0;
    if (length > redo->room || !apply(redo, length))
        return ES_EDAMAGED;
    ES_COMPILER_BARRIER(); /* killed before this, the next one writes the same words again */
    *(volatile uint64_t *)&redo->log->length = 0;
    return ES_OK;
}
