/* Observation: the state of the ring after a fault, and the resources that the conductor itself uses. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "storm.h"

static uint64_t rss_kib(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f != NULL) {
        if (fscanf(f, "%*u %llu", &pages) != 1)
            pages = 0;
        fclose(f);
    }
    return pages * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
}

/* Counts the entries of a folder whose names contain part. */
static uint32_t entries(const char *folder, const char *part)
{
    uint32_t n = 0;
    DIR *d = opendir(folder);
    if (d == NULL)
        return 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.' && strstr(e->d_name, part) != NULL;
    closedir(d);
    return n;
}

/* Counts the segments of the storm that are still mapped. Their memory is not free, even if they are unlinked. */
static uint32_t mapped_segments(void)
{
    char line[512];
    uint32_t n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        n += strstr(line, "storm_of_echo_shm") != NULL;
    if (f != NULL)
        fclose(f);
    return n;
}

st_vitals st_vitals_now(void)
{
    struct statvfs v = {0};
    char own[32];
    statvfs("/dev/shm", &v);
    snprintf(own, sizeof own, ".%d-", getpid());
    return (st_vitals){.rss_kib = rss_kib(),
                       .fds = entries("/proc/self/fd", "") - 1,
                       .shm_entries = entries("/dev/shm", ""),
                       .shm_own = entries("/dev/shm", own),
                       .mapped = mapped_segments(),
                       .shm_bytes = (uint64_t)(v.f_blocks - v.f_bfree) * v.f_frsize};
}

/* The kernel's letter for the state of a process, and where in the kernel it sleeps. */
static char process_state(int64_t pid, char *where, size_t room)
{
    char path[64], line[512], state = '-';
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(path, "r");
    where[0] = '\0';
    if (f == NULL)
        return state;
    if (fgets(line, sizeof line, f) != NULL && strrchr(line, ')') != NULL)
        state = strrchr(line, ')')[2];
    fclose(f);
    snprintf(path, sizeof path, "/proc/%lld/wchan", (long long)pid);
    f = fopen(path, "r");
    if (f != NULL) {
        if (fgets(where, (int)room, f) == NULL)
            where[0] = '\0';
        fclose(f);
    }
    return state;
}

static void dump_batch(es_ring *r, uint64_t j)
{
    static const char *const states[] = {"FILL", "LEASED", "RETIRED"};
    static const char letters[] = "-cCOSH"; /* free, claimed, Committed, reOpen, Sealed, Held */
    uint64_t w = atomic_load(&r->map.batches[j].word), size = r->map.batch_size;
    fprintf(stderr, "  batch %llu: %s(round %llu, owner %u) count %x:", (unsigned long long)j,
            es_word_state(w) < 3 ? states[es_word_state(w)] : "?", (unsigned long long)es_word_round(w),
            es_word_owner(w), atomic_load(&r->map.batches[j].count));
    for (uint64_t i = 0; i < size; i++) {
        uint64_t slot = atomic_load(&r->map.slots[j * size + i]);
        if (i >= 16 &&
            es_word_state(slot) == ES_COMMITTED) /* print the first few, and every slot that is not committed */
            continue;
        fprintf(stderr, " %c%llu", es_word_state(slot) < 6 ? letters[es_word_state(slot)] : '?',
                (unsigned long long)es_word_lap(slot));
        if (es_word_state(slot) == ES_CLAIMED || es_word_state(slot) == ES_HELD)
            fprintf(stderr, "/%u", es_word_owner(slot));
    }
    fprintf(stderr, "\n");
}

static void dump_owners(st_storm *s)
{
    es_owner_info info;
    es_ring *r = s->watcher;
    for (int64_t i = es_monitor_next_owner(r, 0, &info); i >= 0; i = es_monitor_next_owner(r, (uint32_t)i + 1, &info)) {
        char where[64];
        char state = process_state(info.id.pid, where, sizeof where);
        uint32_t life = (uint32_t)info.id.start_time;
        fprintf(stderr, "  owner %lld: %s, life %u, pid %lld, state %c %s, lock byte %s, %s%s\n", (long long)i,
                info.id.role == ES_ROLE_LEARNER ? "learner" : "producer", life, (long long)info.id.pid, state, where,
                es_locks_held(s->locks, (uint32_t)i) ? "held" : "free",
                life < ST_LIVES && atomic_load(&s->w.account->killed[life]) ? "killed" : "not killed",
                info.waiting ? ", waiting" : "");
    }
}

static void dump_processes(st_storm *s)
{
    static const char *const states[] = {"empty", "running", "stopped", "dying"};
    for (uint32_t i = 0; i < ST_PROCS; i++) {
        char where[64];
        st_proc *p = &s->w.account->proc[i];
        uint32_t phase = atomic_load(&p->phase);
        if (s->slot[i].state == ST_EMPTY)
            continue;
        fprintf(stderr, "  process %u: life %u, pid %d, %s, kernel says %c %s, was %s\n", i, p->life, s->slot[i].pid,
                states[s->slot[i].state], process_state(s->slot[i].pid, where, sizeof where), where,
                phase < ST_PHASES ? st_phase_name[phase] : "?");
    }
}

void st_dump(st_storm *s, const char *why)
{
    es_header *h = s->watcher->map.hdr;
    fprintf(stderr, "\nthe ring, because %s:\n", why);
    fprintf(stderr,
            "  tail %llu head %llu reopen_seq %u given_back_seq %u closed %u ready_seq %u learner_sleeps %u "
            "space_seq %u producers_sleep %u\n",
            (unsigned long long)atomic_load(&h->tail), (unsigned long long)atomic_load(&h->head),
            atomic_load(&h->reopen_seq), atomic_load(&h->given_back_seq), atomic_load(&h->closed),
            atomic_load(&h->ready_seq), atomic_load(&h->learner_sleeps), atomic_load(&h->space_seq),
            atomic_load(&h->producers_sleep));
    for (uint64_t j = 0; j < s->watcher->map.num_batches && j < 64; j++)
        dump_batch(s->watcher, j);
    dump_owners(s);
    dump_processes(s);
    st_report_faults(s);
}
