#define _GNU_SOURCE /* pthread_atfork, fcntl */
#include "ring/es_locks.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic uint32_t fork_generation;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static es_locks *all;

static void before_fork(void)
{
    pthread_mutex_lock(&all_lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&all_lock);
}

static void in_child(void)
{
    atomic_fetch_add_explicit(&fork_generation, 1, memory_order_relaxed);
    for (es_locks *l = all; l != NULL; l = l->next) {
        if (l->fd >= 0)
            close(l->fd);
        l->fd = -1;
    }
    pthread_mutex_unlock(&all_lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

uint32_t es_locks_fork_generation(void)
{
    /* relaxed: written only in a child, before it runs anything else. */
    return atomic_load_explicit(&fork_generation, memory_order_relaxed);
}

es_locks *es_locks_new(int fd, uint32_t count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    es_locks *locks = malloc(sizeof *locks);
    if (locks == NULL)
        return NULL;
    struct stat status = {0};
    if (fd >= 0)
        fstat(fd, &status);
    *locks = (es_locks){.fd = fd, .device = status.st_dev, .inode = status.st_ino, .count = count};
    locks->held = calloc(count + ES_MAX_LEARNERS, sizeof *locks->held);
    if (locks->held == NULL) {
        free(locks);
        return NULL;
    }
    pthread_mutex_lock(&all_lock);
    locks->next = all;
    all = locks;
    pthread_mutex_unlock(&all_lock);
    return locks;
}

void es_locks_free(es_locks *locks)
{
    if (locks == NULL)
        return;
    pthread_mutex_lock(&all_lock);
    for (es_locks **at = &all; *at != NULL; at = &(*at)->next)
        if (*at == locks) {
            *at = locks->next;
            break;
        }
    /* Another thread may have opened the file again meanwhile and taken locks. Closing this
     * descriptor would drop them. Then it stays open, which is rare. */
    bool shared = false;
    for (const es_locks *l = all; l != NULL; l = l->next)
        shared = shared || (l->fd >= 0 && l->device == locks->device && l->inode == locks->inode);
    if (locks->fd >= 0 && !shared)
        close(locks->fd);
    pthread_mutex_unlock(&all_lock);
    free(locks->held);
    free(locks);
}

/* The second byte of learner i: in the file, past those of all owners and the creator's; and in
 * locks->held. */
#define SECOND_BYTE(i) (ES_MAX_LEARNERS + ES_MAX_PRODUCERS + 1 + (i))
#define SECOND(locks, i) ((locks)->count + (i))

/* length 0: up to the end of the file. */
static int byte_lock(const es_locks *locks, int command, short type, uint32_t index, uint32_t length, short *found)
{
    struct flock fl = {.l_type = type, .l_whence = SEEK_SET, .l_start = index, .l_len = length};
    while (fcntl(locks->fd, command, &fl) != 0)
        if (errno != EINTR)
            return errno == EACCES ? -EAGAIN : -errno;
    if (found != NULL)
        *found = fl.l_type;
    return ES_OK;
}

static int take_byte(es_locks *locks, uint32_t at, uint32_t byte)
{
    unsigned char no = 0;
    /* Threads of this process exclude each other here, processes by the kernel.
     * SYNC held: acq_rel; pairs with the release store in drop_byte(). */
    if (!atomic_compare_exchange_strong_explicit(&locks->held[at], &no, 1, memory_order_acq_rel, memory_order_relaxed))
        return -EAGAIN;
    int rc = locks->fd < 0 ? ES_OK : byte_lock(locks, F_SETLK, F_WRLCK, byte, 1, NULL);
    if (rc != ES_OK)
        /* SYNC held: release. */
        atomic_store_explicit(&locks->held[at], 0, memory_order_release);
    return rc;
}

static void drop_byte(es_locks *locks, uint32_t at, uint32_t byte)
{
    if (locks->fd >= 0)
        byte_lock(locks, F_SETLK, F_UNLCK, byte, 1, NULL);
    /* SYNC held: release; after the kernel's unlock, never before: another thread could take the
     * byte in between, and this unlock would drop its lock. */
    atomic_store_explicit(&locks->held[at], 0, memory_order_release);
}

int es_locks_try(es_locks *locks, uint32_t index)
{
    return index < locks->count ? take_byte(locks, index, index) : -EINVAL;
}

void es_locks_drop(es_locks *locks, uint32_t index)
{
    drop_byte(locks, index, index);
}

int es_locks_seize(es_locks *locks, uint32_t index)
{
    int rc = index < ES_MAX_LEARNERS ? take_byte(locks, SECOND(locks, index), SECOND_BYTE(index)) : ES_OK;
    if (rc != ES_OK)
        return rc == -EAGAIN ? -EBUSY : rc;
    rc = es_locks_try(locks, index);
    if (rc != ES_OK)
        es_locks_keep(locks, index);
    return rc;
}

void es_locks_yield(es_locks *locks, uint32_t index)
{
    es_locks_drop(locks, index);
    es_locks_keep(locks, index);
}

void es_locks_keep(es_locks *locks, uint32_t index)
{
    if (index < ES_MAX_LEARNERS)
        drop_byte(locks, SECOND(locks, index), SECOND_BYTE(index));
}

int es_locks_held(es_locks *locks, uint32_t index)
{
    short type = F_UNLCK;
    if (index >= locks->count)
        return -EINVAL;
    /* SYNC held: acquire; pairs with take_byte() and drop_byte(). */
    if (atomic_load_explicit(&locks->held[index], memory_order_acquire))
        return 1;
    if (locks->fd < 0)
        return 0;
    int rc = byte_lock(locks, F_GETLK, F_WRLCK, index, 1, &type);
    return rc != ES_OK ? rc : type != F_UNLCK;
}

int es_locks_any(es_locks *locks)
{
    short type = F_UNLCK;
    for (uint32_t i = 0; i < locks->count + ES_MAX_LEARNERS; i++)
        /* SYNC held: acquire. */
        if (atomic_load_explicit(&locks->held[i], memory_order_acquire))
            return 1;
    if (locks->fd < 0)
        return 0;
    int rc = byte_lock(locks, F_GETLK, F_WRLCK, 0, 0, &type);
    return rc != ES_OK ? rc : type != F_UNLCK;
}

uint32_t es_locks_creator_byte(void)
{
    return ES_MAX_LEARNERS + ES_MAX_PRODUCERS;
}
