/* Bridges: producers that send on behalf of clients on other hosts.
 *
 * A client numbers its samples. remote.committed says how many of them are in the ring. The journal (es_journal.h)
 * keeps that true whoever dies.
 *
 * Who writes: remote.word by CAS, the process that takes or settles the entry, and the bridge that it names.
 * Everything else in the entry that bridge alone writes (peer with plain stores: a reader may see it half written).
 * Who dies: HERE stays HERE until the bridge is reaped. So nobody answers the client from a count that is not
 * settled.
 */
#include <stdlib.h>
#include <string.h>

#include "api/es_api.h"
#include "base/es_clock.h"
#include "base/es_counter.h"
#include "ring/es_blocking.h"
#include "ring/es_journal.h"
#include "ring/es_leaves.h"
#include "ring/es_owner.h"
#include "ring/es_producer.h"
#include "ring/es_stats.h"
#include "ring/es_word.h"

/* --- waits ------------------------------------------------------------------- */

/* A wait lasts from the first claim that finds the ring full until one does not, or until the client leaves. It
 * counts as a local producer's wait does, however often the bridge sleeps and asks again meanwhile. */
static void count_wait(es_ring *r, uint32_t remote)
{
    es_owner *mine = &r->map.owners[r->me];
    uint64_t now = es_clock_ns();
    if (r->waited_ns == 0) {
        es_counter_add(&mine->blocked, 1);
        es_counter_add(&r->map.hdr->totals.push_blocked, 1);
        atomic_store_explicit(&mine->waiting, 1, memory_order_relaxed);
    } else {
        es_counter_add(&mine->blocked_ns, now - r->waited_ns);
    }
    r->waited_ns = now;
    r->waiting_remote = remote;
}

static void end_wait(es_ring *r, uint32_t remote)
{
    if (r->waited_ns == 0)
        return;
    count_wait(r, remote);
    r->waited_ns = 0;
    atomic_store_explicit(&r->map.owners[r->me].waiting, 0, memory_order_relaxed);
}

/* --- remotes ----------------------------------------------------------------- */

static bool may_bridge(es_ring *r)
{
    return r->fork_generation == es_locks_fork_generation() &&
           atomic_load_explicit(&r->detached, memory_order_relaxed) == 0;
}

static bool serves(es_ring *r, uint32_t remote)
{
    return may_bridge(r) && remote < r->map.num_remotes &&
           atomic_load_explicit(&r->map.remotes[remote].word, memory_order_relaxed) ==
               es_word_remote(r->me, ES_REMOTE_HERE);
}

int es_bridge_begin(es_ring *r)
{
    if (!may_bridge(r) || r->role != ES_ROLE_PRODUCER)
        return ES_EDETACHED;
    if (r->map.versions == NULL) /* it has weights */
        return -EINVAL;
    if (r->leaf_at == NULL)
        r->leaf_at = malloc(r->map.num_leaves * sizeof *r->leaf_at);
    if (r->leaf_at == NULL)
        return -ENOMEM;
    atomic_store_explicit(&r->map.owners[r->me].is_bridge, 1, memory_order_relaxed);
    ES_COMPILER_BARRIER();
    es_owner_count_producers(&r->map);
    return ES_OK;
}

int es_bridge_learn(es_ring *r)
{
    if (!may_bridge(r) || r->role != ES_ROLE_LEARNER)
        return ES_EDETACHED;
    atomic_store_explicit(&r->map.owners[r->me].is_bridge, 1, memory_order_relaxed);
    return ES_OK;
}

static bool has_id(es_remote *it, const uint64_t *id)
{
    return es_counter_get(&it->id[0]) == id[0] && es_counter_get(&it->id[1]) == id[1];
}

static bool turn(es_remote *it, uint64_t from, uint64_t to)
{
    /* SYNC remote: acq_rel; one bridge wins, and what the last one wrote is visible to it. */
    return atomic_compare_exchange_strong_explicit(&it->word, &from, to, memory_order_acq_rel, memory_order_relaxed);
}

static void describe(es_remote *it, const char *peer)
{
    atomic_store_explicit(&it->since_ns, es_clock_ns(), memory_order_relaxed);
    strncpy(it->peer, peer, sizeof it->peer - 1);
}

/* The entry that this client has already: its index, ES_EMPTY, or ES_UNSURE. */
static int64_t find(es_ring *r, const uint64_t *id, const char *peer)
{
    es_map *m = &r->map;
    for (uint32_t i = 0; i < m->num_remotes; i++) {
        es_remote *it = &m->remotes[i];
        /* SYNC remote: acquire. */
        uint64_t w = atomic_load_explicit(&it->word, memory_order_acquire);
        if (es_word_remote_state(w) == ES_REMOTE_FREE || es_word_remote_state(w) == ES_REMOTE_TAKEN || !has_id(it, id))
            continue;
        bool mine = w == es_word_remote(r->me, ES_REMOTE_HERE);
        if (!mine &&
            (es_word_remote_state(w) != ES_REMOTE_AWAY || !turn(it, w, es_word_remote(r->me, ES_REMOTE_HERE)))) {
            /* The bridge that has it reads this: its connection may be lost without notice. */
            atomic_store_explicit(&it->wanted, 1, memory_order_relaxed);
            return ES_UNSURE;
        }
        if (!has_id(it, id)) { /* meanwhile it was another client's, which has left again */
            /* SYNC remote: release; as it was. */
            atomic_store_explicit(&it->word, w, memory_order_release);
            return ES_UNSURE;
        }
        atomic_store_explicit(&it->wanted, 0, memory_order_relaxed);
        atomic_store_explicit(&it->known, 1, memory_order_relaxed);
        describe(it, peer);
        return i;
    }
    return ES_EMPTY;
}

/* Takes a free entry, or the one that was left the longest ago. was: its word before. */
static int64_t take_entry(es_ring *r, uint64_t *was)
{
    es_map *m = &r->map;
    uint64_t oldest = UINT64_MAX;
    int64_t best = ES_EMPTY;
    for (uint32_t i = 0; i < m->num_remotes && oldest > 0; i++) {
        /* SYNC remote: acquire; since_ns belongs to this word. */
        uint64_t w = atomic_load_explicit(&m->remotes[i].word, memory_order_acquire);
        uint64_t since = es_word_remote_state(w) == ES_REMOTE_FREE ? 0 : es_counter_get(&m->remotes[i].since_ns);
        if ((es_word_remote_state(w) == ES_REMOTE_FREE || es_word_remote_state(w) == ES_REMOTE_AWAY) &&
            since < oldest) {
            oldest = since;
            *was = w;
            best = i;
        }
    }
    if (best < 0)
        return ES_ENOOWNER;
    return turn(&m->remotes[best], *was, es_word_remote(r->me, ES_REMOTE_TAKEN)) ? best : ES_AGAIN;
}

/* Whether another entry is this client's, or may become so: nobody knows yet whose a TAKEN entry
 * will be. */
static bool may_be_elsewhere(es_map *m, int64_t mine, const uint64_t *id)
{
    for (uint32_t i = 0; i < m->num_remotes; i++) {
        es_remote *it = &m->remotes[i];
        /* SYNC remote: acquire. */
        uint32_t state = es_word_remote_state(atomic_load_explicit(&it->word, memory_order_acquire));
        if (i != mine && (state == ES_REMOTE_TAKEN || (state != ES_REMOTE_FREE && has_id(it, id))))
            return true;
    }
    return false;
}

/* An entry, TAKEN, for a client that has none. ES_UNSURE: another bridge may be giving it one as well.
 *
 * Two bridges can do this for one client: it may have lost its connection to the first, which still has its hello
 * to read. Each bridge takes an entry and then looks at all others, with a fence in between. So at least one of the
 * two sees the other's entry, and puts its own back. What was in the entry is still there then. */
static int64_t take_new(es_ring *r, const uint64_t *id)
{
    int64_t index = ES_AGAIN;
    uint64_t was = 0;
    for (int tries = 0; tries < ES_TRIES && index == ES_AGAIN; tries++)
        index = take_entry(r, &was);
    if (index == ES_AGAIN)
        return ES_ENOOWNER;
    if (index < 0 || id == NULL)
        return index;
    /* FENCE remote-new: pairs with itself in another bridge. */
    atomic_thread_fence(memory_order_seq_cst);
    bool its_own =
        es_word_remote_state(was) == ES_REMOTE_AWAY && has_id(&r->map.remotes[index], id); /* left just now */
    if (!its_own && !may_be_elsewhere(&r->map, index, id))
        return index;
    /* SYNC remote: release; as it was. */
    atomic_store_explicit(&r->map.remotes[index].word, was, memory_order_release);
    return ES_UNSURE;
}

int64_t es_bridge_open(es_ring *r, const uint8_t *id, uint64_t number, const char *peer)
{
    uint64_t key[2] = {0, 0};
    if (!may_bridge(r))
        return ES_EDETACHED;
    if (id != NULL)
        memcpy(key, id, sizeof key);
    int64_t index = id == NULL ? ES_EMPTY : find(r, key, peer);
    if (index == ES_EMPTY) {
        index = take_new(r, id == NULL ? NULL : key);
        if (index < 0)
            return index;
        es_remote *it = &r->map.remotes[index];
        atomic_store_explicit(&it->id[0], key[0], memory_order_relaxed);
        atomic_store_explicit(&it->id[1], key[1], memory_order_relaxed);
        atomic_store_explicit(&it->committed, number, memory_order_relaxed);
        atomic_store_explicit(&it->known, 0, memory_order_relaxed);
        atomic_store_explicit(&it->wanted, 0, memory_order_relaxed);
        atomic_store_explicit(&it->bytes, 0, memory_order_relaxed);
        atomic_store_explicit(&it->frames, 0, memory_order_relaxed);
        describe(it, peer);
        /* SYNC remote: release. Only its bridge, or that bridge's reaper, changes a TAKEN word. */
        atomic_store_explicit(&it->word, es_word_remote(r->me, ES_REMOTE_HERE), memory_order_release);
    }
    if (index >= 0)
        es_stats_count_remotes(&r->map);
    return index;
}

int64_t es_bridge_find(es_ring *r, const uint8_t *id, const char *peer)
{
    uint64_t key[2];
    if (!may_bridge(r))
        return ES_EDETACHED;
    memcpy(key, id, sizeof key);
    int64_t index = find(r, key, peer);
    /* A bridge that wanted the oldest entry may have it for a moment, and puts it back. */
    if (index == ES_EMPTY && may_be_elsewhere(&r->map, -1, key))
        return ES_UNSURE;
    if (index >= 0)
        es_stats_count_remotes(&r->map);
    return index;
}

int es_bridge_leave(es_ring *r, uint32_t remote, int keep)
{
    if (!serves(r, remote))
        return ES_ESTALE;
    if (remote == r->waiting_remote)
        end_wait(r, remote);
    es_remote *it = &r->map.remotes[remote];
    atomic_store_explicit(&it->since_ns, es_clock_ns(), memory_order_relaxed);
    /* SYNC remote: release; the count is visible to the bridge that takes the entry. */
    atomic_store_explicit(&it->word, es_word_remote(0, keep ? ES_REMOTE_AWAY : ES_REMOTE_FREE), memory_order_release);
    es_stats_count_remotes(&r->map);
    return ES_OK;
}

int es_bridge_known(es_ring *r, uint32_t remote)
{
    return serves(r, remote) && atomic_load_explicit(&r->map.remotes[remote].known, memory_order_relaxed) != 0;
}

int es_bridge_wanted(es_ring *r, uint32_t remote)
{
    return serves(r, remote) && atomic_load_explicit(&r->map.remotes[remote].wanted, memory_order_relaxed) != 0;
}

int64_t es_bridge_committed(es_ring *r, uint32_t remote)
{
    return serves(r, remote) ? (int64_t)es_counter_get(&r->map.remotes[remote].committed) : ES_ESTALE;
}

int es_bridge_count(es_ring *r, uint32_t remote, uint64_t bytes, uint64_t frames)
{
    if (!serves(r, remote))
        return ES_ESTALE;
    es_counter_add(&r->map.remotes[remote].bytes, bytes);
    es_counter_add(&r->map.remotes[remote].frames, frames);
    return ES_OK;
}

int es_bridge_count_refused(es_ring *r)
{
    if (!may_bridge(r))
        return ES_EDETACHED;
    es_counter_add(&r->map.hdr->totals.refused_remotes, 1);
    return ES_OK;
}

/* --- samples ----------------------------------------------------------------- */

/* n samples, leaf after leaf or sample after sample. leaves: room for a pointer to each. */
typedef struct block {
    const uint8_t *data;
    uint64_t n;
    int64_t version;
    bool rows;
    void **leaves;
} block;

/* Makes b->leaves point at the leaves of a block of that many samples, which starts at data: its
 * bytes. */
static uint64_t point(const es_map *m, const block *b, const uint8_t *data, uint64_t samples)
{
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < m->num_leaves; l++) {
        b->leaves[l] = (void *)(uintptr_t)(data + bytes);
        bytes += samples * m->leaf_size[l];
    }
    return bytes;
}

static void copy_block(es_map *m, uint64_t pos, uint64_t run, const block *b, uint64_t first)
{
    if (!b->rows) {
        point(m, b, b->data, b->n);
        es_leaves_write_run(m, pos, run, b->leaves, first);
        return;
    }
    uint64_t row = point(m, b, b->data, 1);
    for (uint64_t i = 0; i < run; i++) {
        point(m, b, b->data + (first + i) * row, 1);
        es_leaves_write(m, pos + i, b->leaves);
    }
}

static int64_t claim(es_ring *r, uint32_t remote, uint64_t want, uint64_t timeout_ns, uint64_t *pos)
{
    int64_t rc = es_blocking_claim(r, want, 0, pos);
    if (rc == ES_FULL || rc == ES_TIMEOUT) {
        count_wait(r, remote);
        if (timeout_ns > 0)
            rc = es_blocking_claim(r, want, timeout_ns, pos);
    }
    if (rc > 0)
        end_wait(r, remote);
    return rc;
}

static int64_t send_block(es_ring *r, uint32_t remote, const block *b, uint64_t first, uint64_t timeout_ns)
{
    uint64_t sent = 0;
    int64_t rc = ES_OK;
    while (rc == ES_OK && first + sent < b->n) {
        uint64_t pos;
        int64_t run = claim(r, remote, b->n - first - sent, sent == 0 ? timeout_ns : 0, &pos);
        if (run < 0) {
            rc = run;
            break;
        }
        es_journal_write(r, remote, pos, (uint64_t)run);
        copy_block(&r->map, pos, (uint64_t)run, b, first + sent);
        es_leaves_stamp(&r->map, pos, (uint64_t)run, b->version);
        uint64_t done = es_producer_commit(r, pos, (uint64_t)run);
        es_journal_clear(r, remote, done);
        sent += done;
        rc = done < (uint64_t)run ? ES_EEVICTED : ES_OK;
    }
    return sent > 0 ? (int64_t)sent : rc;
}

int64_t es_bridge_send(es_ring *r, uint32_t remote, const void *data, uint64_t first, uint64_t n, int rows,
                       int64_t version, uint64_t timeout_ns)
{
    if (!serves(r, remote))
        return ES_ESTALE;
    block b = {.data = data, .version = version, .n = n, .rows = rows != 0, .leaves = r->leaf_at};
    return send_block(r, remote, &b, first, timeout_ns);
}
