/* storm: rounds of kills until the time is over. Exit status 1: the account does not balance. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "storm.h"

/* More growth than this after the warm-up is a leak. The account is allocated whole at the start. */
#define MOST_GROWTH_KIB 4096
#define WARM_UP_ROUNDS 3

static volatile int interrupted;

static void on_signal(int number)
{
    interrupted = number;
}

/* The guardian. It outlives the conductor, even if the conductor is killed, and removes the names that are left. */
static void guard(int fd, int conductor_pid)
{
    char byte, part[32];
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    while (read(fd, &byte, 1) > 0) /* nothing is written: read() ends when the last process of the storm has ended */
        ;
    snprintf(part, sizeof part, ".%d-", conductor_pid);
    DIR *d = opendir("/dev/shm");
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char path[300];
        snprintf(path, sizeof path, "/dev/shm/%s", e->d_name);
        if (strncmp(e->d_name, "storm_of_echo_shm", 17) == 0 && strstr(e->d_name, part) != NULL)
            unlink(path);
    }
    _exit(0);
}

static bool start_guardian(st_storm *s)
{
    int ends[2];
    if (pipe(ends) != 0)
        return false;
    s->guardian_fd = ends[1];
    s->guardian_pid = fork();
    if (s->guardian_pid == 0) {
        close(ends[1]);
        guard(ends[0], s->conductor_pid);
    }
    close(ends[0]);
    return s->guardian_pid > 0;
}

/* Prints what grew or was left behind. Returns false if there was any. */
static bool is_flat(const st_vitals *start, const st_vitals *warm, const st_vitals *end)
{
    bool flat = true;
    if (end->shm_own != 0)
        flat = !fprintf(stderr, "storm: %u entries were left in /dev/shm\n", end->shm_own);
    if (end->mapped != 0)
        flat = !fprintf(stderr, "storm: %u segments are still mapped\n", end->mapped);
    if (end->fds != start->fds)
        flat = !fprintf(stderr, "storm: %u descriptors at the start, %u at the end\n", start->fds, end->fds);
    if (end->rss_kib > warm->rss_kib + MOST_GROWTH_KIB)
        flat = !fprintf(stderr, "storm: memory grew from %llu to %llu KiB\n", (unsigned long long)warm->rss_kib,
                        (unsigned long long)end->rss_kib);
    return flat;
}

static double since(uint64_t start)
{
    return (double)(es_clock_ns() - start) / 1e9;
}

static bool rounds(st_storm *s, const st_options *o, st_vitals *warm)
{
    bool ok = true;
    double told = 0;
    *warm = st_vitals_now();
    for (uint32_t round = 0; ok && !interrupted && since(s->start_ns) < o->seconds; round++) {
        st_config config = st_config_of(o, round);
        double left = o->seconds - since(s->start_ns);
        s->random = es_random_of(o->seed, UINT64_C(1) << 63 | round);
        ok = st_round(s, &config, round, left < o->round_seconds ? left : o->round_seconds);
        if (round < WARM_UP_ROUNDS)
            *warm = st_vitals_now();
        if (!o->quiet && since(s->start_ns) >= told + 10) {
            told = since(s->start_ns);
            st_report_line(s, &config, told);
        }
    }
    return ok;
}

int main(int argc, char **argv)
{
    static st_storm s;
    st_options o;
    if (!st_options_parse(argc, argv, &o))
        return 2;
    s.conductor_pid = getpid();
    s.interrupted = &interrupted;
    s.next_life = ST_LIVES; /* the first round clears the whole account */
    s.watchdog_ns = (uint64_t)(o.watchdog_seconds * 1e9);
    s.w.seed = o.seed;
    s.w.account = st_account_new();
    st_repair_watch(s.w.account);
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGHUP, &act, NULL);
    prctl(PR_SET_TIMERSLACK, 1);
    printf("storm of %.0f s, seed %llu\n", o.seconds, (unsigned long long)o.seed);
    fflush(stdout);
    if (s.w.account == NULL || !start_guardian(&s)) {
        perror("storm");
        return 2;
    }
    st_vitals start = st_vitals_now(), warm, end;
    s.start_ns = es_clock_ns();
    bool ok = rounds(&s, &o, &warm);
    double seconds = since(s.start_ns);
    end = st_vitals_now();
    st_report(&s, seconds, &start, &warm, &end);
    ok = is_flat(&start, &warm, &end) && ok;
    if (o.json != NULL)
        ok = st_report_json(&s, &o, seconds, &start, &warm, &end, ok && !interrupted) && ok;
    if (interrupted) {
        printf("storm: interrupted\n");
        return 128 + interrupted;
    }
    printf(ok ? "storm: the account balances\n" : "storm: FAILED\n");
    return ok ? 0 : 1;
}
