/* Versions of weights: one publisher writes them, any number of readers copy or lease the latest.
 *
 * latest        [version:48 | slot:16]; 0: nothing was published. The publisher alone stores it.
 * Sequence word of a slot   2 * version: the slot has all of that version. 2 * version + 1: it was to be filled with it.
 *               The publisher alone stores it.
 * Lease         [owner + 1:32 | slot + 1:32]; 0: free. CAS from 0 by the owner, which alone stores it until it frees it. A
 *               dead owner's are freed by whoever holds its lock byte. slot 0: its owner has not named one yet.
 *
 * What always holds:
 *   1. The slot of latest has all bytes of that version, and its sequence word is 2 * version.
 *   2. While a lease names a slot, and its owner has found the sequence word of that slot whole since it named it,
 *      nobody stores to the slot's bytes.
 *   3. latest never falls.
 *   4. The publisher waits for nobody. Of num_leases + 2 slots one is the latest, and each lease names at most one.
 *
 * If the publisher dies while it fills a slot, latest still names the version before, and the next publisher may use the
 * same number again: nobody can have seen it, because readers come through latest alone. */
#ifndef ES_VERSION_H
#define ES_VERSION_H

#include "ring/es_ring.h"

enum { ES_VERSION_SLOT_BITS = 16 };

/* The number in a value of latest. */
static inline uint64_t es_version_number(uint64_t latest)
{
    return latest >> ES_VERSION_SLOT_BITS;
}
/* And the slot. */
static inline uint64_t es_version_slot(uint64_t latest)
{
    return latest & ((UINT64_C(1) << ES_VERSION_SLOT_BITS) - 1);
}

/* The word, for the calls below: 0 when nothing was published. */
uint64_t es_version_latest(const es_map *map);

/* Publishes one version, leaf l of which is leaf_size[l] bytes at leaves[l]. number: more than that of the latest; 0: the
 * next one. Returns the number; -EINVAL if it cannot be this one; ES_ESCRIBBLED. One thread of one process at a time; the
 * caller sees to that. */
int64_t es_version_publish(es_map *map, uint64_t number, void *const *leaves);

/* Copies the version that latest names to leaves: ES_OK; ES_LAPPED when it was overwritten meanwhile, so what was copied
 * is to be thrown away; ES_ESCRIBBLED. */
int es_version_copy(const es_map *map, uint64_t latest, void *const *leaves);

/* Leases the latest version: the index of the lease, and *latest. ES_NOTHING; ES_FULL when no lease is free; ES_LAPPED
 * when versions came too fast; ES_ESCRIBBLED. */
int64_t es_version_lease(es_map *map, uint32_t owner, uint64_t *latest);
/* ES_ESTALE when it is not the owner's. */
int es_version_release(es_map *map, uint32_t owner, int64_t lease);
/* Frees all leases of an owner that is leaving, or dead. */
void es_version_release_all(es_map *map, uint32_t owner);
/* Whose the lease is, or ES_EMPTY. */
int64_t es_version_holder(const es_map *map, uint32_t lease);

/* Sleeps until the latest version is at least that one, or the segment is closed, at most timeout_ns. ES_OK, ES_TIMEOUT,
 * -EINTR; ES_EDETACHED when the attachment was stopped; ES_OK also for no reason. */
int es_version_wait(es_ring *r, uint64_t number, uint64_t timeout_ns);
/* Wakes all readers, whether or not the flag says that one sleeps. */
void es_version_wake_all(es_map *map);

#endif
