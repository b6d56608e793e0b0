/* Where everything is in a segment.
 *
 *   header | leaf table | schema | owner entries | slot words | batch words | histograms | remotes |
 *   versions | weights | sequence words | leases | leaf 0 | leaf 1 | ...
 *
 * A segment with ES_FLAG_WEIGHTS holds versions of weights, not samples: see es_version.h. Each slot has one version, and
 * its ring stays empty. Only such a segment has the parts from "weights" to "leases", and it has no "versions".
 *
 * Everything is a function of es_geometry and the leaves' sizes: es_layout.c
 * computes it, es_layout_format() writes it down, es_layout_check() computes it again from
 * what a foreign segment claims and compares. After that nobody reads an
 * offset from the segment: each process keeps its own es_map.
 */
#ifndef ES_LAYOUT_H
#define ES_LAYOUT_H

#include "base/es_base.h"
#include "base/es_histogram.h"

#define ES_MAGIC UINT64_C(0x314d48534f484345) /* "ECHOSHM1" in memory, little-endian */
#define ES_VERSION 4u

#define ES_MAX_LEARNERS 64u
#define ES_MAX_PRODUCERS 60000u
#define ES_MAX_REMOTES (UINT32_C(1) << 20)
#define ES_MAX_LEAVES 65536u
#define ES_MAX_SCHEMA (UINT32_C(1) << 26)
#define ES_MAX_BATCH_SIZE (UINT64_C(1) << 30)
#define ES_MAX_SLOTS (UINT64_C(1) << 32)
#define ES_MAX_WEIGHTS (UINT64_C(1) << 15) /* slots of a segment of weights */

/* Counters that any process may add to, relaxed. They inform people and decide
 * nothing, so a crash between an event and its count costs a wrong figure only. */
typedef struct es_totals {
    /* by learners */
    _Atomic uint64_t batches_taken, batches_released, occupancy_max;
    /* by producers */
    alignas(ES_CACHE_LINE) _Atomic uint64_t push_blocked;
    _Atomic uint64_t notify_count;
    _Atomic uint64_t active_producers, dead_producers, stalled_producers, reopened_slots;
    _Atomic uint64_t active_remotes, refused_remotes;
    _Atomic uint64_t too_old; /* samples that learners left out for their age */
} es_totals;

/* The registrant turns FREE into LIVE. The owner turns LIVE into FREE as it leaves, or a
 * reaper does after its sweep. Each of them holds the entry's lock byte, so nobody else
 * takes a step in between. If it dies with the byte, the kernel drops the byte, and the
 * entry is still FREE (never registered) or still LIVE (to be reaped). */
enum es_owner_state { ES_OWNER_FREE = 0, ES_OWNER_LIVE = 1 };

typedef struct es_owner {
    alignas(ES_CACHE_LINE) _Atomic uint32_t state;
    _Atomic uint32_t role;
    _Atomic int64_t pid;
    _Atomic uint64_t pid_namespace;
    _Atomic uint64_t start_time_bits;
    /* A bridge's journal: what it is about to commit; see es_journal.h. journal_remote: index + 1, or 0 for nothing. */
    _Atomic uint32_t is_bridge, journal_remote;
    _Atomic uint64_t journal_number, journal_position;
    _Atomic uint64_t journal_count;
    /* Written by the owner alone. Its threads share them, hence atomic adds. */
    alignas(ES_CACHE_LINE) _Atomic uint64_t samples;
    _Atomic uint64_t blocked, blocked_ns;
    _Atomic uint64_t cas_success, cas_failure, reservation_retries;
    _Atomic uint32_t waiting;
} es_owner;
_Static_assert(sizeof(es_owner) == 2 * ES_CACHE_LINE, "one line of identity, one of counters");

/* word: see es_word.h. count and ready_ns are hints. leased_ns is for people: the learner that holds the lease
 * writes it. The word is read by every claim and the count written by every commit: two lines. */
typedef struct es_batch {
    alignas(ES_CACHE_LINE) _Atomic uint64_t word;
    alignas(ES_CACHE_LINE) _Atomic uint32_t count;
    _Atomic uint64_t ready_ns, leased_ns;
} es_batch;

/* A client on another host. Written by the bridge that serves it, and by whoever takes the entry: see es_bridge.c. */
typedef struct es_remote {
    alignas(ES_CACHE_LINE) _Atomic uint64_t word; /* owner index of the bridge, es_remote_state */
    _Atomic uint64_t id[2];
    _Atomic uint64_t committed; /* its samples that are in the ring: the number of its next one */
    _Atomic uint64_t bytes, frames, since_ns;
    _Atomic uint32_t known;                         /* 1: it has come again */
    _Atomic uint32_t wanted;                        /* 1: it has come to another bridge */
    alignas(ES_CACHE_LINE) char peer[ES_PEER_SIZE]; /* for people; may be read while it is written */
} es_remote;
_Static_assert(sizeof(es_remote) == 2 * ES_CACHE_LINE, "one line of figures, one of text");

/* Weights: see es_version.h. latest is read by every look for news, the others by who sleeps and who wakes. */
typedef struct es_weights {
    alignas(ES_CACHE_LINE) _Atomic uint64_t latest;
    alignas(ES_CACHE_LINE) _Atomic uint32_t news_seq; /* a futex pair, as ready_seq and learner_sleeps */
    _Atomic uint32_t reader_sleeps;
} es_weights;

typedef struct es_offsets {
    uint64_t leaves, schema, owners, slots, batches, hists, remotes, versions, weights, sequences, leases, data, total;
} es_offsets;

typedef struct es_header {
    /* Written once by es_layout_format(); magic last. */
    _Atomic uint64_t magic;
    uint32_t version;
    uint32_t header_size;
    uint64_t format_hash;
    es_geometry geometry;
    es_offsets offsets;
    uint8_t uuid[16];
    int64_t creator_pid;
    int64_t created_ns; /* since the epoch */

    /* Hint: next position to claim. Any producer, CAS +1. */
    alignas(ES_CACHE_LINE) _Atomic uint64_t tail;
    /* Hint: oldest batch that was not seen leased. Any learner, CAS +1. */
    alignas(ES_CACHE_LINE) _Atomic uint64_t head;
    /* Rarely written, read by every claim and every look. */
    alignas(ES_CACHE_LINE) _Atomic uint32_t reopen_seq;
    _Atomic uint32_t given_back_seq;
    _Atomic uint32_t closed; /* 0 -> 1, by the creator, forever */
    _Atomic uint32_t owners_high;
    _Atomic uint64_t closed_ns;
    _Atomic uint32_t shared;        /* 0 -> 1, by a learner that attaches beside another, forever; see es_lease.h */
    _Atomic int64_t latest_version; /* hint: of the weights that belong to this ring; by whoever publishes them */
    /* Futex pairs: the sequence is parked on, the flag says that somebody may be. */
    alignas(ES_CACHE_LINE) _Atomic uint32_t ready_seq;
    _Atomic uint32_t learner_sleeps;
    alignas(ES_CACHE_LINE) _Atomic uint32_t space_seq;
    _Atomic uint32_t producers_sleep;
    _Atomic uint32_t passed_over; /* hint: one of them was woken in vain before; see es_wake.h */
    alignas(ES_CACHE_LINE) es_totals totals;
} es_header;

enum { ES_STATS_LOOK, ES_STATS_COPY, ES_STATS_DWELL, ES_STATS_HISTOGRAMS };

/* One process's private picture of the segment. */
typedef struct es_map {
    uint8_t *base;
    es_header *hdr;
    es_owner *owners;
    _Atomic uint64_t *slots;
    es_batch *batches;
    es_histogram *hists;
    es_remote *remotes;
    _Atomic int64_t *versions;                  /* of the weights that each slot's sample was made with: es_leaves.h */
    es_weights *weights;                        /* NULL: the segment holds samples */
    _Atomic uint64_t *sequences;                /* one for each slot of weights */
    _Atomic uint64_t *leases;                   /* num_leases of them */
    uint64_t batch_size, num_batches, capacity; /* B, K, C = B * K */
    uint32_t num_owners, num_leaves, num_remotes, num_leases, flags;
    uint64_t reap_interval_ns;
    bool streams;        /* the segment is larger than the caches: see es_leaves.c */
    uint64_t *leaf_size; /* bytes of one sample, private copy */
    uint8_t **leaf_data; /* leaf_data[l] + index * leaf_size[l] */
} es_map;

/* Bytes that a segment of this geometry takes, or 0 when it is out of range. */
uint64_t es_layout_size(const es_geometry *geo, const uint64_t *leaf_sizes);

/* Lays an empty ring out in zero-filled memory of at least es_layout_size() bytes. */
int es_layout_format(void *base, uint64_t size, const es_geometry *geo, const uint64_t *leaf_sizes, const void *schema,
                     const uint8_t *uuid, int64_t pid, int64_t created_ns);

/* ES_OK, or what is wrong with a foreign segment of size bytes. Reads within
 * [base, base + size) whatever it finds there, and writes nothing. */
int es_layout_check(const void *base, uint64_t size);

/* What a segment that passed es_layout_check() says of itself. schema gets the first room
 * bytes of its schema, which has geo->schema_size bytes. */
void es_layout_describe(const void *base, uint64_t size, es_geometry *geo, uint8_t *uuid, int64_t *pid,
                        int64_t *created_ns, void *schema, uint64_t room);

/* Fills *map from a segment that passed es_layout_check(); es_layout_unmap() frees what it allocates. */
int es_layout_map(es_map *map, void *base, uint64_t size);
void es_layout_unmap(es_map *map);

#endif
