#include "ring/es_journal.h"

#include "base/es_clock.h"
#include "base/es_counter.h"
#include "ring/es_stats.h"
#include "ring/es_word.h"

void es_journal_write(es_ring *r, uint32_t remote, uint64_t pos, uint64_t n)
{
    es_owner *mine = &r->map.owners[r->me];
    uint64_t number = es_counter_get(&r->map.remotes[remote].committed);
    atomic_store_explicit(&mine->journal_number, number, memory_order_relaxed);
    atomic_store_explicit(&mine->journal_position, pos, memory_order_relaxed);
    atomic_store_explicit(&mine->journal_count, n, memory_order_relaxed);
    ES_COMPILER_BARRIER();
    atomic_store_explicit(&mine->journal_remote, remote + 1, memory_order_relaxed);
    ES_COMPILER_BARRIER();
}

void es_journal_clear(es_ring *r, uint32_t remote, uint64_t done)
{
    es_remote *it = &r->map.remotes[remote];
    ES_COMPILER_BARRIER();
    atomic_store_explicit(&it->committed, es_counter_get(&it->committed) + done, memory_order_relaxed);
    ES_COMPILER_BARRIER();
    atomic_store_explicit(&r->map.owners[r->me].journal_remote, 0, memory_order_relaxed);
}

/* Whether the bridge, dead or leaving, has committed its claim of pos. */
static bool was_committed(es_map *m, uint32_t bridge, uint64_t pos)
{
    uint64_t lap = pos / m->capacity + 1;
    /* SYNC slot-commit: acquire; the dead owner's last word. */
    uint64_t w = atomic_load_explicit(&m->slots[pos % m->capacity], memory_order_acquire);
    return es_word_lap(w) > lap || (w == es_word(lap, bridge, ES_COMMITTED));
}

static void settle_journal(es_map *m, uint32_t bridge)
{
    es_owner *o = &m->owners[bridge];
    uint32_t remote = atomic_load_explicit(&o->journal_remote, memory_order_relaxed);
    if (remote == 0 || remote > m->num_remotes)
        return;
    uint64_t pos = es_counter_get(&o->journal_position), count = es_counter_get(&o->journal_count), done = 0;
    while (done < count && done < m->capacity && was_committed(m, bridge, pos + done))
        done++;
    atomic_store_explicit(&m->remotes[remote - 1].committed, es_counter_get(&o->journal_number) + done,
                          memory_order_relaxed);
    ES_COMPILER_BARRIER();
    atomic_store_explicit(&o->journal_remote, 0, memory_order_relaxed);
}

void es_journal_settle(es_map *m, uint32_t index)
{
    if (atomic_load_explicit(&m->owners[index].is_bridge, memory_order_relaxed) == 0)
        return;
    settle_journal(m, index);
    ES_COMPILER_BARRIER();
    for (uint32_t i = 0; i < m->num_remotes; i++) {
        /* SYNC remote: acquire, acq_rel; the count is visible to the bridge that takes the entry. */
        uint64_t w = atomic_load_explicit(&m->remotes[i].word, memory_order_acquire);
        if (es_word_remote_bridge(w) != index ||
            (es_word_remote_state(w) != ES_REMOTE_HERE && es_word_remote_state(w) != ES_REMOTE_TAKEN))
            continue;
        uint32_t to = es_word_remote_state(w) == ES_REMOTE_HERE ? ES_REMOTE_AWAY : ES_REMOTE_FREE;
        atomic_store_explicit(&m->remotes[i].since_ns, es_clock_ns(), memory_order_relaxed); /* gone from now on */
        atomic_compare_exchange_strong_explicit(&m->remotes[i].word, &w, es_word_remote(0, to), memory_order_acq_rel,
                                                memory_order_relaxed);
    }
    es_stats_count_remotes(m);
}
