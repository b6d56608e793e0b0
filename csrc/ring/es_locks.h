/* The lock file: the kernel's locks on its bytes tell who is alive. * Each owner entry has a byte
 * in a small file next to the segment. An owner holds a POSIX record lock on its byte for as long
 * as it lives. The kernel drops the lock when the process dies, after the last store of its last
 * thread. Nothing else says that an owner is dead: no age, no silence. * Record locks belong to a
 * process. A second lock on the same byte by the same process succeeds, and closing any descriptor
 * of the file drops them all. So a process has exactly one es_locks for a file, which keeps the
 * set of bytes held here. * A held byte does not tell who holds it: the owner, or somebody who
 * reaps it and is stopped. For a learner this must be told apart, because others wait for its
 * lease at the end of a stream. So learners have a second byte, past all others. Whoever takes a
 * learner's byte holds the second one first, and keeps it until the entry is its own or the byte
 * is free again. A process that holds the second byte knows: if another process holds the first,
 * that is the learner, and it lives. */
#ifndef ES_LOCKS_H
#define ES_LOCKS_H

#include <sys/types.h>

#include "ring/es_layout.h"

typedef struct es_locks {
    int fd;
    dev_t device;
    ino_t inode;
    uint32_t count;
    atomic_uchar *held; /* bytes that this process holds: count owners', then learners' second ones */
    struct es_locks *next;
} es_locks;

/* Takes over fd, open for reading and writing; bytes [0, count) can be locked.
 * fd -1 makes locks that live in this process alone, for a ring in private memory.
 *
 * A fork closes the inherited fd in the child at once. A later close would drop locks
 * that the child has taken itself meanwhile. */
es_locks *es_locks_new(int fd, uint32_t count);
/* Closes fd, which drops every lock. Only when no attachment uses it any more. */
void es_locks_free(es_locks *locks);
/* ES_OK, or -EAGAIN when somebody (this process included) holds the byte. */
int es_locks_try(es_locks *locks, uint32_t index);
void es_locks_drop(es_locks *locks, uint32_t index);
/* Takes the byte of somebody else's entry, to look after it, and a learner's second one with
 * it: ES_OK, -EBUSY when somebody holds the second, -EAGAIN when only the first is held. */
int es_locks_seize(es_locks *locks, uint32_t index);
/* Drops what was seized. */
void es_locks_yield(es_locks *locks, uint32_t index);
/* Keeps the first byte of what was seized: the entry is the caller's own from here on. */
void es_locks_keep(es_locks *locks, uint32_t index);
/* 1 held by somebody (this process included), 0 free, or -errno. Takes nothing. */
int es_locks_held(es_locks *locks, uint32_t index);
/* The same for any byte of the file. */
int es_locks_any(es_locks *locks);
/* The byte that a segment's creator holds. Owners' bytes lie below it, learners' second ones above. */
uint32_t es_locks_creator_byte(void);

/* Changes in the child of every fork: what was inherited belongs to the parent. */
uint32_t es_locks_fork_generation(void);

#endif
