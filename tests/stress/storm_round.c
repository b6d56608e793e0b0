/* A round: the conductor fills a fresh segment with processes, and kills, stops and replaces them. It owns nothing in
 * the ring. It reads words, and sweeps and drains at the end. */
#include <stdio.h>
#include <string.h>

#include "es_watchdog.h"
#include "storm.h"

static void respawn(st_storm *s)
{
    const st_config *c = &s->w.config;
    for (uint32_t i = 0; i < ST_PROCS; i++) {
        bool wanted = i < ST_LEARNERS ? i < c->learners : i - ST_LEARNERS < c->producers;
        if (wanted && s->slot[i].state == ST_EMPTY && s->next_life < ST_LIVES)
            st_spawn(s, i);
    }
}

/* Whether the process in a slot has begun its work and has not been killed. */
static bool at_work(st_storm *s, uint32_t slot)
{
    return s->slot[slot].state == ST_RUNNING &&
           atomic_load_explicit(&s->w.account->proc[slot].phase, memory_order_relaxed) > ST_ATTACHING;
}

static bool asleep(st_storm *s, uint32_t slot)
{
    st_proc *proc = &s->w.account->proc[slot];
    if (slot < ST_LEARNERS)
        return atomic_load_explicit(&proc->phase, memory_order_relaxed) == ST_PARKING;
    uint32_t owner = atomic_load_explicit(&proc->owner, memory_order_relaxed);
    return atomic_load_explicit(&s->watcher->map.owners[owner].waiting, memory_order_relaxed) != 0;
}

/* A random process, or ST_PROCS if none is fit. Sometimes this may be any process. Usually it is at work, and
 * preferably awake. If processes were killed before they get to work, the storm would test nothing. */
static uint32_t victim(st_storm *s, bool learner)
{
    uint32_t first = learner ? 0 : ST_LEARNERS, n = learner ? s->w.config.learners : s->w.config.producers;
    uint32_t start = es_random_below(&s->random, n);
    if (es_random_below(&s->random, 32) == 0)
        return first + start;
    bool any = es_random_below(&s->random, 4) == 0;
    for (uint32_t i = 0; i < 2 * n; i++) {
        uint32_t slot = first + (start + i) % n;
        if (at_work(s, slot) && (any || i >= n || !asleep(s, slot)))
            return slot;
    }
    return ST_PROCS;
}

static void kill_some(st_storm *s, bool learner)
{
    const st_config *c = &s->w.config;
    if (es_random_below(&s->random, 1000) == 0) /* all of a kind at once */
        for (uint32_t i = 0; i < (learner ? c->learners : c->producers); i++)
            st_kill(s, (learner ? 0 : ST_LEARNERS) + i);
    else
        st_kill(s, victim(s, learner));
}

/* After so long without progress there are no more kills: the next death might end a hang and hide it. */
#define NO_KILLS_NS UINT64_C(500000000)

/* Does the kills that are due by now, a few at most. Returns when the next one is due. */
static uint64_t kill_due(st_storm *s, bool learner, uint32_t rate, uint64_t due, uint64_t now)
{
    if (rate == 0 || s->still_ns > NO_KILLS_NS)
        return due;
    for (int n = 0; due <= now && n < 8; n++) {
        kill_some(s, learner);
        due += st_pause_ns(&s->random, 1e9 / rate);
    }
    return due + 5000000 < now ? now : due; /* it cannot keep up: the kills that were missed are dropped */
}

static void stop_one(st_storm *s)
{
    uint64_t mean = es_random_below(&s->random, 16) == 0 ? 60000000 : 4000000;
    st_stop(s, victim(s, es_random_below(&s->random, 5) == 0), st_pause_ns(&s->random, (double)mean));
}

static void end_stops(st_storm *s, uint64_t now)
{
    for (uint32_t i = 0; i < ST_PROCS; i++)
        if (s->slot[i].state == ST_STOPPED && s->slot[i].until_ns <= now) {
            if (es_random_below(&s->random, 3) == 0)
                st_kill(s, i); /* unless it is spared */
            st_continue(s, i);
        }
}

/* The most that the watchdog counts for one step. A machine that stood still is not a hang of the ring. */
#define MOST_STEP_NS UINT64_C(100000000)
#define STOOD_STILL_NS UINT64_C(500000000)

static void watch_progress(st_storm *s, uint64_t now)
{
    st_account *a = s->w.account;
    uint64_t take = atomic_load(&a->last_take_ns), step = now - s->watched_ns;
    uint32_t producers = 0, learners = 0;
    for (uint32_t i = 0; i < ST_PROCS; i++)
        *(i < ST_LEARNERS ? &learners : &producers) += at_work(s, i);
    if (producers == 0 || learners == 0 || st_calm(&s->w.config))
        atomic_store(&a->calm_ns, now);
    if (step > STOOD_STILL_NS)
        atomic_store(&a->stood_still_ns, now);
    s->still_ns += step < MOST_STEP_NS ? step : MOST_STEP_NS;
    if (take != s->seen_take_ns || atomic_load(&a->stopped) != 0)
        s->still_ns = 0;
    s->watched_ns = now;
    s->seen_take_ns = take;
    if (s->still_ns > s->watchdog_ns) {
        st_fault_add(a, ST_HUNG, 0, -1, (int64_t)(s->still_ns / 1000000), "ms without a batch");
        st_dump(s, "no batch was taken");
    }
}

/* Measures the conductor's longest wait for a processor. Gaps on a busy machine are to be compared with it. */
static void nap(st_storm *s)
{
    uint64_t wanted = 50000 + es_random_below(&s->random, 100000), start = es_clock_ns();
    st_nap(wanted);
    uint64_t late = es_clock_ns() - start - wanted;
    if (late < UINT64_MAX / 2 && late > s->sum.late_ns)
        s->sum.late_ns = late;
}

/* A round does not end while nothing moves. Either a batch comes, or the watchdog ends the round. */
static bool is_stuck(const st_storm *s)
{
    return s->still_ns > (st_calm(&s->w.config) ? ST_CALM_IDLE_NS + MOST_STEP_NS : MOST_STEP_NS);
}

static void churn(st_storm *s, uint64_t end)
{
    const st_config *c = &s->w.config;
    st_account *a = s->w.account;
    uint64_t now = es_clock_ns(), next_kill = now + 2000000, next_learner = next_kill, next_stop = next_kill;
    while (!st_failed(a) && !*s->interrupted && (is_stuck(s) || (now < end && s->next_life + ST_PROCS < ST_LIVES))) {
        st_collect(s, 0, ST_PROCS);
        respawn(s);
        s->sum.batches += st_consume(a, s->watcher);
        now = es_clock_ns();
        next_kill = kill_due(s, false, c->kill_rate, next_kill, now);
        next_learner = kill_due(s, true, c->learner_kill_rate, next_learner, now);
        if (c->stop_rate > 0 && next_stop <= now) {
            if (atomic_load(&a->stopped) < 2 && s->still_ns <= NO_KILLS_NS)
                stop_one(s);
            next_stop = now + st_pause_ns(&s->random, 1e9 / c->stop_rate);
        }
        end_stops(s, now);
        watch_progress(s, now);
        nap(s);
    }
}

static void add_gaps(st_storm *s)
{
    st_account *a = s->w.account;
    if (es_counter_get(&a->gap_any_ns) > s->sum.gap_any_ns && !st_calm(&s->w.config))
        s->sum.gap_any_ns = es_counter_get(&a->gap_any_ns);
    if (es_counter_get(&a->gap_ns) <= s->sum.gap_ns)
        return;
    s->sum.gap_ns = es_counter_get(&a->gap_ns);
    s->sum.gap_at_s = (double)(es_counter_get(&a->gap_at_ns) - s->start_ns) / 1e9;
    s->sum.gap_round = s->w.round;
}

static void add_figures(st_storm *s)
{
    st_account *a = s->w.account;
    es_snapshot snap;
    es_monitor_observe(s->watcher, &snap);
    s->sum.rounds++;
    s->sum.reopened += snap.reopened_slots;
    s->sum.delivered += a->samples->delivered;
    s->sum.reaped += es_counter_get(&a->reaped);
    s->sum.given_back += es_counter_get(&a->leases_given_back);
    s->sum.undone_takes += es_counter_get(&a->undone_takes);
    s->sum.repairs += es_counter_get(&a->repairs);
    s->sum.partials += es_counter_get(&a->partials);
    s->sum.attached += es_counter_get(&a->attached);
    s->sum.rounds_with[s->w.config.sample_bytes > 64 ? s->w.config.sample_bytes > 10000 ? 2 : 1 : 0]++;
    for (uint32_t i = 0; i < ST_PROCS; i++)
        for (int p = 0; p < ST_PATHS; p++)
            s->sum.paths[p] += a->proc[i].paths[p];
    for (int k = 0; k < ST_FAULTS; k++)
        s->sum.faults_of[k] += es_counter_get(&a->faults_of[k]);
    add_gaps(s);
}

/* The conductor itself may hang in the core. Its own waits have limits that end long before this one. */
static void watch(const st_storm *s, const char *phase, double seconds)
{
    es_watchdog_start(phase, 60 + (unsigned)(seconds + 10 * (double)s->watchdog_ns / 1e9), NULL);
}

bool st_round(st_storm *s, const st_config *config, uint32_t round, double seconds)
{
    st_account *a = s->w.account;
    st_account_reset(a, s->next_life);
    s->w.round = round;
    s->next_life = 1;
    s->over = false;
    s->round_start_ns = es_clock_ns();
    if (!st_segment_open(s, config)) {
        fprintf(stderr, "storm: no segment: %s\n", strerror(errno));
        st_segment_close(s);
        return false;
    }
    s->watched_ns = es_clock_ns();
    s->still_ns = 0;
    atomic_store(&a->calm_ns, s->watched_ns);
    atomic_store(&a->last_take_ns, s->watched_ns);
    atomic_store(&a->active, 1);
    watch(s, "the storm's conductor, in the middle of a round", seconds);
    respawn(s);
    churn(s, s->round_start_ns + (uint64_t)(seconds * 1e9));
    atomic_store(&a->active, 0);
    watch(s, "the storm's conductor, at the end of a round", 0);
    if (!*s->interrupted && !st_failed(a))
        st_end_round(s);
    if (st_failed(a))
        st_dump(s, "the account does not balance, or an invariant does not hold");
    st_kill_all(s);
    add_figures(s);
    st_segment_close(s);
    es_watchdog_stop();
    return !st_failed(a);
}
