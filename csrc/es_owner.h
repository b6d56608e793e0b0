/* Who is attached, and who of them is dead.
 *
 * Each owner entry has a byte in a small file next to the segment. An owner
 * holds a POSIX record lock on its byte for as long as it lives; the kernel
 * drops the lock when the process dies, after the last store of its last
 * thread. Nothing else, no age and no silence, says that an owner is dead.
 *
 * Record locks belong to a process: a second lock on the same byte by the same
 * process succeeds, and closing any descriptor of the file drops them all. So a
 * process has exactly one es_locks for a file, and that keeps the set of bytes
 * held here.
 *
 * A byte that is held does not tell by whom: by the owner, or by somebody who reaps
 * it and stands still. For a learner, whose lease others wait for at the end of a
 * stream, that must be told apart. So learners have a second byte, past everybody's:
 * who takes a learner's byte holds the second one first, and keeps it until the
 * entry is his own, or the byte free again. With the second byte in hand, the first
 * is held by a living learner or by nobody.
 */
#ifndef ES_OWNER_H
#define ES_OWNER_H

#include <sys/types.h>

#include "es_layout.h"

typedef struct es_locks {
    int fd;
    dev_t device;
    ino_t inode;
    uint32_t count;
    atomic_uchar *held; /* bytes that this process holds: count owners', then learners' second ones */
    struct es_locks *next;
} es_locks;

/* A forked child's inherited locks are closed at the fork: closing them later
 * would drop locks that the child had taken itself meanwhile.
 *
 * Takes over fd, open for reading and writing; bytes [0, count) can be locked.
 * fd -1 makes locks that live in this process alone, for tests. */
es_locks *es_locks_new(int fd, uint32_t count);
/* Closes fd, and so drops every lock. Only when no attachment uses it any more. */
void es_locks_free(es_locks *locks);
/* ES_OK, or -EAGAIN when somebody (this process included) holds the byte. */
int es_locks_try(es_locks *locks, uint32_t index);
void es_locks_drop(es_locks *locks, uint32_t index);
/* The byte of somebody else's entry, to look after it, and a learner's second one with
 * it: ES_OK, -EBUSY when somebody holds the second, -EAGAIN when only the first is held. */
int es_locks_seize(es_locks *locks, uint32_t index);
void es_locks_yield(es_locks *locks, uint32_t index);
/* What was seized is the caller's own from here on. */
void es_locks_keep(es_locks *locks, uint32_t index);
/* 1 held by somebody (this process included), 0 free, or -errno. Takes nothing. */
int es_locks_held(es_locks *locks, uint32_t index);
/* The same for any byte of the file. */
int es_locks_any(es_locks *locks);

/* Changes in the child of every fork: what was inherited belongs to the parent. */
uint32_t es_fork_generation(void);

/* Takes a FREE entry of the identity's role: its index, or ES_ENOOWNER. */
int64_t es_owner_register(es_map *map, es_locks *locks, const es_identity *id);
/* LIVE -> FREE, before the byte is let go of. The entry's words were swept before. */
void es_owner_free(es_map *map, uint32_t index);
/* The next LIVE entry at or above from, but for me, that could be seized, and now is; ES_EMPTY
 * when there is none. *unsure becomes true when on the way there was a learner's
 * entry that somebody else is looking after: it may be dead, and not yet reaped. */
int64_t es_owner_next_dead(es_map *map, es_locks *locks, uint32_t from, uint32_t me, bool *unsure);
/* 1 when some learner's lock byte is held, 0 when all learners are gone. */
int es_owner_learner_alive(es_map *map, es_locks *locks);

/* Counts the producers anew, bridges not among them. */
void es_owners_count(es_map *map);
void es_owner_identity(const es_owner *owner, es_identity *out);
/* One past the highest entry ever used. */
uint32_t es_owners_high(const es_map *map);

#endif
