/* The segment of a round, and its processes: they are started, killed, stopped and collected here. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storm.h"

/* --- the segment ------------------------------------------------------------- */

/* These names differ from those of the Python side, so that `echo-shm gc` and other test runs do not remove them. */
static int create_files(st_storm *s)
{
    st_world *w = &s->w;
    snprintf(w->shm_name, sizeof w->shm_name, "/storm_of_echo_shm.%d-%u", s->conductor_pid, w->round);
    snprintf(w->lock_path, sizeof w->lock_path, "/dev/shm/storm_of_echo_shm_locks.%d-%u", s->conductor_pid, w->round);
    int lock_fd = open(w->lock_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    s->locks = lock_fd < 0 ? NULL : es_locks_new(lock_fd, es_locks_creator_byte() + 1);
    if (s->locks == NULL || es_locks_try(s->locks, es_locks_creator_byte()) != ES_OK)
        return -1;
    return shm_open(w->shm_name, O_RDWR | O_CREAT | O_EXCL, 0600);
}

bool st_segment_open(st_storm *s, const st_config *c)
{
    static const char schema[] = "storm";
    static const uint8_t uuid[16] = "storm";
    st_world *w = &s->w;
    w->config = *c;
    st_shape_init(&w->shape, c->sample_bytes);
    es_geometry geo = {.batch_size = c->batch_size,
                       .num_batches = c->num_batches,
                       .reap_interval_ns = c->reap_ms * UINT64_C(1000000),
                       .max_producers = c->max_producers,
                       .num_leaves = w->shape.num_leaves,
                       .schema_size = sizeof schema,
                       .flags = c->flags};
    w->slice_ns = geo.reap_interval_ns;
    w->size = es_layout_size(&geo, w->shape.size);
    int error, fd = create_files(s);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)w->size) != 0)
        return false;
    w->base = mmap(NULL, w->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (w->base == MAP_FAILED ||
        es_layout_format(w->base, w->size, &geo, w->shape.size, schema, uuid, getpid(), 1) != ES_OK)
        return false;
    s->watcher = es_api_open(w->base, w->size, s->locks, 0, &error);
    return s->watcher != NULL;
}

void st_segment_close(st_storm *s)
{
    es_api_free(s->watcher);
    s->watcher = NULL;
    if (s->w.base != NULL && s->w.base != MAP_FAILED)
        munmap(s->w.base, s->w.size);
    s->w.base = NULL;
    shm_unlink(s->w.shm_name);
    unlink(s->w.lock_path);
    es_locks_free(s->locks);
    s->locks = NULL;
}

/* --- processes ----------------------------------------------------------------- */

static void child(st_storm *s, uint32_t slot)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != s->conductor_pid)
        _exit(0);
    prctl(PR_SET_TIMERSLACK, 1);
    signal(SIGINT, SIG_IGN); /* from a terminal: the conductor ends its children */
    signal(SIGTERM, SIG_DFL);
    close(s->guardian_fd);
    st_proc *proc = &s->w.account->proc[slot];
    st_actor actor = {.w = &s->w, .a = s->w.account, .proc = proc, .life = proc->life, .slot = slot};
    actor.random = es_random_of(s->w.seed, (uint64_t)s->w.round << 32 | proc->life);
    int fd = open(s->w.lock_path, O_RDWR | O_CLOEXEC);
    actor.locks = fd < 0 ? NULL : es_locks_new(fd, es_locks_creator_byte() + 1);
    if (actor.locks == NULL) {
        st_fault_add(s->w.account, ST_CODE, st_id(proc->life, 0), -1, -errno, "the lock file cannot be opened");
        _exit(4);
    }
    if (slot < ST_LEARNERS)
        st_learn(&actor);
    else
        st_produce(&actor);
    _exit(0);
}

void st_spawn(st_storm *s, uint32_t slot)
{
    st_proc *proc = &s->w.account->proc[slot];
    proc->life = s->next_life++;
    atomic_store(&proc->phase, ST_STARTING);
    atomic_store(&proc->owner, 0);
    int pid = fork();
    if (pid == 0)
        child(s, slot);
    if (pid < 0) {
        st_fault_add(s->w.account, ST_CODE, st_id(proc->life, 0), -1, -errno, "fork");
        return;
    }
    s->slot[slot] = (st_slot){.state = ST_RUNNING, .pid = pid};
}

void st_kill(st_storm *s, uint32_t slot)
{
    if (slot >= ST_PROCS)
        return;
    st_slot *p = &s->slot[slot];
    bool spared = (slot < ST_LEARNERS ? s->w.config.learner_kill_rate : s->w.config.kill_rate) == 0;
    if ((p->state != ST_RUNNING && p->state != ST_STOPPED) || (spared && !s->over))
        return;
    atomic_store(&s->w.account->killed[s->w.account->proc[slot].life], 1);
    kill(p->pid, SIGKILL);
    if (p->state == ST_STOPPED) {
        s->sum.killed_stopped++;
        st_continue(s, slot);
    }
    p->state = ST_DYING;
}

void st_stop(st_storm *s, uint32_t slot, uint64_t for_ns)
{
    if (slot >= ST_PROCS || s->slot[slot].state != ST_RUNNING)
        return;
    atomic_fetch_add(&s->w.account->stopped, 1);
    kill(s->slot[slot].pid, SIGSTOP);
    s->slot[slot].state = ST_STOPPED;
    s->slot[slot].until_ns = es_clock_ns() + for_ns;
    s->sum.stops++;
}

void st_continue(st_storm *s, uint32_t slot)
{
    if (s->slot[slot].state != ST_STOPPED)
        return;
    kill(s->slot[slot].pid, SIGCONT);
    s->slot[slot].state = ST_RUNNING;
    atomic_store(&s->w.account->calm_ns, es_clock_ns());
    atomic_fetch_sub(&s->w.account->stopped, 1);
}

/* Counts a kill by the phase that the process wrote last. */
static void note_death(st_storm *s, uint32_t slot)
{
    st_account *a = s->w.account;
    bool producer = slot >= ST_LEARNERS;
    uint32_t phase = atomic_load(&a->proc[slot].phase);
    s->sum.killed_in[producer][phase < ST_PHASES ? phase : ST_IDLE]++;
    *(producer ? &s->sum.kills_producers : &s->sum.kills_learners) += 1;
    es_owner_info info;
    uint32_t owner = atomic_load(&a->proc[slot].owner);
    if (producer && es_monitor_next_owner(s->watcher, owner, &info) == (int64_t)owner && info.waiting &&
        info.id.start_time == (double)a->proc[slot].life)
        s->sum.killed_parked++;
}

static void collect_one(st_storm *s, uint32_t slot, int status)
{
    st_account *a = s->w.account;
    uint32_t life = a->proc[slot].life;
    a->gone[life] = 1;
    bool by_us = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && atomic_load(&a->killed[life]);
    if (by_us)
        note_death(s, slot);
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        s->sum.left++;
    else
        st_fault_add(a, ST_CODE, st_id(life, 0), -1, status, "a process ended by itself, with this wait status");
    if (s->slot[slot].state == ST_STOPPED) /* it ended before the signal came */
        st_continue(s, slot);
    s->slot[slot].state = ST_EMPTY;
}

uint32_t st_collect(st_storm *s, uint32_t from, uint32_t to)
{
    int status, pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (uint32_t i = 0; i < ST_PROCS; i++)
            if (s->slot[i].state != ST_EMPTY && s->slot[i].pid == pid) {
                collect_one(s, i, status);
                break;
            }
    uint32_t n = 0;
    for (uint32_t i = from; i < to; i++)
        n += s->slot[i].state != ST_EMPTY;
    return n;
}

void st_kill_all(st_storm *s)
{
    s->over = true;
    for (uint32_t i = 0; i < ST_PROCS; i++)
        st_kill(s, i);
    while (st_collect(s, 0, ST_PROCS) > 0)
        st_nap(50000);
}
