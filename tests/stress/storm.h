/* The storm: producers and learners of a ring are killed, stopped and replaced at random, and every sample is accounted
 * for. This header declares the account, which all processes share, and what each file offers.
 *
 *   storm.c           main: rounds until the time is over; the guardian of names
 *   storm_options.c   options, and the configuration of each round
 *   storm_sample.c    sizes and pauses
 *   storm_account.c   the account; its header comment says why it is exact
 *   storm_repair.c    checks that es_repair() never finds anything to repair
 *   storm_producer.c  a producer's life
 *   storm_learner.c   a learner's life, and the sweep
 *   storm_process.c   a round's segment and processes
 *   storm_round.c     the conductor: it starts, kills, stops and replaces processes
 *   storm_end.c       the end of a round: what must hold at rest, and the balance
 *   storm_watch.c     dumps, memory, shared memory, descriptors
 *   storm_report.c    reports for people and for programs
 */
#ifndef STORM_H
#define STORM_H

#include "es_account.h"
#include "es_core.h"
#include "es_random.h"
#include "es_sample.h"

#define ST_LIVES 32768u /* lives in a round; life 0 belongs to no process */
#define ST_SEQS 16384u  /* samples in one life; after that the process leaves */
#define ST_PRODUCERS 24u
#define ST_LEARNERS 8u
#define ST_PROCS (ST_LEARNERS + ST_PRODUCERS) /* learners first */
#define ST_ENTRIES 64u
#define ST_BATCH 256u
#define ST_LEAVES 5u
#define ST_MANY 13u

/* --- randomness ------------------------------------------------------------ */

/* An exponentially distributed time with this mean. */
uint64_t st_pause_ns(es_random *random, double mean_ns);
void st_nap(uint64_t ns);

/* --- configurations -------------------------------------------------------- */

enum st_ending { ST_END_LEAVE, ST_END_KILL, ST_END_CLOSE, ST_END_EVICT, ST_ENDINGS };

typedef struct st_config {
    uint64_t sample_bytes, batch_size, num_batches;
    uint32_t producers, learners, max_producers;
    uint32_t flags; /* es_flag */
    uint32_t reap_ms;
    uint32_t kill_rate; /* producers killed per second; 0: none, not even a stopped one or at the end of a round */
    uint32_t learner_kill_rate; /* the same for learners */
    uint32_t stop_rate;
    uint32_t poison, partial; /* poison: overwrite on release. partial: sometimes take unfinished batches */
    enum st_ending ending;
} st_config;

typedef struct st_options {
    double seconds, round_seconds, watchdog_seconds;
    uint64_t seed;
    const char *json;
    bool quiet;
    int64_t fixed[12]; /* by st_dimension; -1: the values take turns */
} st_options;

/* Returns false after --help or an error message. */
bool st_options_parse(int argc, char **argv, st_options *o);
st_config st_config_of(const st_options *o, uint32_t round);
void st_config_text(const st_config *c, char *text, size_t room);

/* --- samples --------------------------------------------------------------- */

typedef struct st_shape {
    uint32_t num_leaves;
    uint64_t size[ST_LEAVES];
} st_shape;

static inline uint64_t st_id(uint32_t life, uint32_t seq)
{
    return es_sample_id(life, seq);
}

void st_shape_init(st_shape *shape, uint64_t bytes);

/* --- the account ------------------------------------------------------------ */

enum st_fault_kind {
    ST_LOST,
    ST_DOUBLED,
    ST_TORN,
    ST_ORPHANED,
    ST_PHANTOM,
    ST_EVICTED,
    ST_INVALID,
    ST_HUNG,
    ST_SLEPT,
    ST_REPAIRED,
    ST_CODE,
    ST_FAULTS
};
extern const char *const st_fault_name[ST_FAULTS];

typedef struct st_fault {
    enum st_fault_kind kind;
    uint32_t life;
    int64_t seq, position, code;
    char text[64];
} st_fault;

/* What a process is doing. The last value it wrote says where it died. */
enum st_phase {
    ST_STARTING,
    ST_ATTACHING,
    ST_IDLE,
    ST_SENDING,
    ST_WAITING,
    ST_SENDING_MANY,
    ST_RESERVING,
    ST_WRITING,
    ST_COMMITTING,
    ST_ABORTING,
    ST_LEAVING,
    ST_SWEEPING,
    ST_LOOKING,
    ST_PARKING,
    ST_READING,
    ST_HOLDING,
    ST_RELEASING,
    ST_GIVING_BACK,
    ST_PHASES
};
extern const char *const st_phase_name[ST_PHASES];

/* What a producer can do. Each is counted when it has succeeded. */
enum st_path {
    ST_BY_SEND,
    ST_BY_SEND_WAIT,
    ST_BY_SEND_MANY,
    ST_BY_RESERVE,
    ST_BY_TWO_RESERVES,
    ST_BY_ABORT,
    ST_BY_REATTACH,
    ST_PATHS
};
extern const char *const st_path_name[ST_PATHS];

/* The learner sets PENDING, then RELEASED. The conductor sets FREE. If the learner dies at PENDING, a reaper sets
 * RELEASED or UNRELEASED, or the conductor sets RELEASED. */
enum st_entry_state { ST_ENTRY_FREE, ST_ENTRY_PENDING, ST_ENTRY_RELEASED, ST_ENTRY_UNRELEASED };

/* One lease in a learner's journal. */
typedef struct st_entry {
    alignas(ES_CACHE_LINE) _Atomic uint32_t state;
    uint32_t life, owner, n;
    uint64_t batch, round;
    uint64_t ids[ST_BATCH];
} st_entry;

typedef struct st_proc {
    alignas(ES_CACHE_LINE) _Atomic uint32_t phase, owner;
    uint32_t life;            /* the conductor writes it before the fork */
    uint64_t paths[ST_PATHS]; /* the process in the slot writes it */
} st_proc;

enum st_stage { ST_RUN, ST_PRODUCERS_LEAVE, ST_ALL_LEAVE };

typedef struct st_account {
    _Atomic uint32_t stage;
    /* active: gaps count. stopped: processes that are stopped now. calm_ns: the last time at which a process was
     * stopped, or no producer or no learner was at work. */
    _Atomic uint32_t active, stopped;
    _Atomic uint64_t calm_ns, last_take_ns;
    _Atomic uint64_t gap_ns, gap_at_ns, gap_any_ns;
    _Atomic uint64_t stood_still_ns; /* when the conductor last found that it had not run for a long time */
    _Atomic uint64_t reaped, leases_given_back, undone_takes, repairs, partials, attached;
    _Atomic uint32_t num_faults;
    _Atomic uint64_t faults_of[ST_FAULTS];
    st_fault fault[16];
    st_proc proc[ST_PROCS];
    es_account *samples;              /* each life is a sender */
    _Atomic uint8_t killed[ST_LIVES]; /* set before the signal is sent */
    uint8_t gone[ST_LIVES];           /* the conductor sets it once the process has ended */
    st_entry entry[ST_LEARNERS][ST_ENTRIES];
} st_account;

st_account *st_account_new(void);
void st_account_reset(st_account *a, uint32_t lives);
void st_fault_add(st_account *a, enum st_fault_kind kind, uint64_t id, int64_t position, int64_t code,
                  const char *text);
static inline bool st_failed(st_account *a)
{
    return atomic_load_explicit(&a->num_faults, memory_order_relaxed) != 0;
}
/* Finds out whether each pending lease of a dead learner was released. The caller holds the dead learner's lock byte
 * and has not reaped it yet. */
void st_resolve(st_account *a, es_ring *r, uint32_t life, uint32_t owner);

/* From now on, everything that es_repair() repairs is a fault in this account. */
void st_repair_watch(st_account *a);

/* The conductor's part: enters the samples of all settled leases. Returns how many batches were released. */
uint64_t st_consume(st_account *a, es_ring *r);
/* Enters one delivered sample. */
void st_deliver(st_account *a, uint64_t id, int64_t position);

/* --- processes --------------------------------------------------------------- */

/* In a calm round no process is killed, so no wait may need its timeout, which is long. Producers are busy for a while.
 * Then all are idle for longer than the timeout. So a process that missed a wake-up is not woken by a later one. */
#define ST_CALM_REAP_MS 2000u
#define ST_CALM_BUSY_NS UINT64_C(700000000)
#define ST_CALM_IDLE_NS UINT64_C(2600000000)

static inline bool st_calm(const st_config *c)
{
    return c->kill_rate == 0 && c->learner_kill_rate == 0 && c->reap_ms >= ST_CALM_REAP_MS;
}

/* What each process of a round knows. */
typedef struct st_world {
    st_config config;
    st_shape shape;
    st_account *account;
    uint64_t seed;
    uint32_t round;
    void *base;
    uint64_t size;
    char shm_name[64], lock_path[80]; /* both in /dev/shm */
    uint64_t slice_ns;                /* the longest sleep in the core: one reap interval */
} st_world;

typedef struct st_actor {
    st_world *w;
    st_account *a;
    st_proc *proc;
    es_locks *locks;
    es_ring *r;
    es_random random;
    uint32_t life;
    uint32_t slot;
} st_actor;

static inline void st_at(st_actor *actor, enum st_phase phase)
{
    atomic_store_explicit(&actor->proc->phase, phase, memory_order_relaxed);
}

/* Opens the ring and registers. Sweeps while the owner table is full. */
void st_attach(st_actor *actor, uint32_t role);
void st_detach(st_actor *actor);
/* Finds the dead, settles their journal entries and reaps them. Returns how many, or -1 when another process may be
 * reaping. random: not NULL to pause sometimes in between. */
int st_sweep(st_account *a, es_ring *r, es_random *random);
/* For calm rounds. Whether a process that waited for a whole slice has really missed a wake-up. False when the machine
 * itself had stood still. */
bool st_slept_through(st_actor *actor);
/* How many batches an owner index has leased. */
uint32_t st_leases_of(es_ring *r, uint32_t owner);
void st_produce(st_actor *actor);
void st_learn(st_actor *actor);
/* Verifies the samples of a lease and writes their ids down. Returns how many there are. */
uint32_t st_read_batch(const st_world *w, es_ring *r, uint64_t batch, const es_snapshot *snap, uint64_t *ids);

/* --- the conductor ------------------------------------------------------------- */

enum st_slot_state { ST_EMPTY, ST_RUNNING, ST_STOPPED, ST_DYING };

typedef struct st_slot {
    enum st_slot_state state;
    int pid;
    uint64_t until_ns; /* when stopped: until then */
} st_slot;

/* Sums over all rounds. */
typedef struct st_figures {
    uint32_t rounds;
    uint64_t kills_producers, kills_learners, stops, killed_stopped, left;
    uint64_t sent, delivered, batches, reaped, reopened, given_back, undone_takes, partials, attached, repairs;
    uint64_t gap_ns, gap_any_ns, late_ns;
    double gap_at_s;
    uint32_t gap_round;
    uint64_t killed_in[2][ST_PHASES]; /* learners, producers */
    uint64_t killed_parked;
    uint64_t paths[ST_PATHS];
    uint64_t faults_of[ST_FAULTS];
    uint64_t rounds_with[3]; /* by sample size: small, middle, big */
} st_figures;

typedef struct st_storm {
    st_world w;
    st_figures sum;
    es_random random;
    es_locks *locks;
    es_ring *watcher; /* registered only while it drains the ring */
    st_slot slot[ST_PROCS];
    uint32_t next_life;
    uint64_t start_ns, round_start_ns, watchdog_ns;
    uint64_t watched_ns, still_ns, seen_take_ns; /* for the watchdog */
    int conductor_pid, guardian_pid, guardian_fd;
    bool over; /* the round is over: processes are killed even if the configuration spares them */
    volatile int *interrupted;
} st_storm;

bool st_round(st_storm *s, const st_config *config, uint32_t round, double seconds);
bool st_segment_open(st_storm *s, const st_config *config);
void st_segment_close(st_storm *s);
void st_spawn(st_storm *s, uint32_t slot);
void st_kill(st_storm *s, uint32_t slot);
void st_stop(st_storm *s, uint32_t slot, uint64_t for_ns);
void st_continue(st_storm *s, uint32_t slot);
/* Collects processes that have ended. Returns how many of the slots from .. to-1 still run. */
uint32_t st_collect(st_storm *s, uint32_t from, uint32_t to);
void st_kill_all(st_storm *s);
void st_end_round(st_storm *s);

/* --- watching and reporting -------------------------------------------------------- */

typedef struct st_vitals {
    uint64_t rss_kib;
    uint32_t fds, shm_entries, shm_own, mapped;
    uint64_t shm_bytes;
} st_vitals;

st_vitals st_vitals_now(void);
void st_dump(st_storm *s, const char *why);
void st_report_line(const st_storm *s, const st_config *config, double seconds);
void st_report_faults(const st_storm *s);
void st_report(const st_storm *s, double seconds, const st_vitals *start, const st_vitals *warm, const st_vitals *end);
bool st_report_json(const st_storm *s, const st_options *o, double seconds, const st_vitals *start,
                    const st_vitals *warm, const st_vitals *end, bool passed);

#endif
