/* The storm: producers and learners of a ring are killed, stopped and replaced at random, and every sample is
 * accounted for. This is the account, which all processes share, and what each file offers.
 *
 *   storm.c           main: rounds until the time is over; the guardian of names
 *   storm_options.c   options, and which configuration a round has
 *   storm_sample.c    sizes and pauses
 *   storm_account.c   the account: see there for why it is exact
 *   storm_repair.c    that nothing is ever repaired
 *   storm_producer.c  a producer's life
 *   storm_learner.c   a learner's life, and the sweep
 *   storm_process.c   a round's segment and processes
 *   storm_round.c     the conductor that has them run, killed, stopped and replaced
 *   storm_end.c       the end of a round: what must hold at rest, and the balance
 *   storm_watch.c     dumps, memory, shared memory, descriptors
 *   storm_report.c    what people and programs read
 */
#ifndef STORM_H
#define STORM_H

#include "es_account.h"
#include "es_core.h"
#include "es_random.h"
#include "es_sample.h"

#define ST_LIVES 32768u /* of a round; life 0 is nobody's */
#define ST_SEQS 16384u  /* samples of one life; then it leaves */
#define ST_PRODUCERS 24u
#define ST_LEARNERS 8u
#define ST_PROCS (ST_LEARNERS + ST_PRODUCERS) /* learners first */
#define ST_ENTRIES 64u
#define ST_BATCH 256u
#define ST_LEAVES 5u
#define ST_MANY 13u

/* --- randomness ------------------------------------------------------------ */

/* Exponentially distributed, mean_ns on average. */
uint64_t st_pause_ns(es_random *random, double mean_ns);
void st_nap(uint64_t ns);

/* --- configurations -------------------------------------------------------- */

enum st_ending { ST_END_LEAVE, ST_END_KILL, ST_END_CLOSE, ST_END_EVICT, ST_ENDINGS };

typedef struct st_config {
    uint64_t sample_bytes, batch_size, num_batches;
    uint32_t producers, learners, max_producers;
    uint32_t flags; /* es_flag */
    uint32_t reap_ms;
    uint32_t kill_rate;         /* of producers, a second; 0: not even while stopped, or at the end */
    uint32_t learner_kill_rate; /* the same */
    uint32_t stop_rate;
    uint32_t poison, partial; /* overwrite on release; take unfinished batches now and then */
    enum st_ending ending;
} st_config;

typedef struct st_options {
    double seconds, round_seconds, watchdog_seconds;
    uint64_t seed;
    const char *json;
    bool quiet;
    int64_t fixed[12]; /* by st_dimension; -1: goes round */
} st_options;

/* False after a complaint, or after --help. */
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

/* What a process was at. The last one it wrote is where it died. */
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

/* Ways to bring a sample in, or not to; each counted when it has succeeded. */
enum st_path {
    ST_BY_SEND,
    ST_BY_SEND_WAIT,
    ST_BY_SEND_MANY,
    ST_BY_RESERVE,
    ST_BY_TWO_RESERVES,
    ST_BY_ABORT,
    ST_BY_RETURN,
    ST_PATHS
};
extern const char *const st_path_name[ST_PATHS];

/* FREE -> PENDING -> RELEASED -> FREE by the learner, itself, and the conductor. After the
 * learner's death: PENDING -> RELEASED or UNRELEASED by the reaper, or RELEASED by the conductor. */
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
    uint32_t life;            /* by the conductor, before the fork */
    uint64_t paths[ST_PATHS]; /* by whoever lives in the slot */
} st_proc;

enum st_stage { ST_RUN, ST_PRODUCERS_LEAVE, ST_ALL_LEAVE };

typedef struct st_account {
    _Atomic uint32_t stage;
    /* Gaps count while active. stopped: processes stopped now. calm_ns: since then none was, and both a producer and a
     * learner have been at work. */
    _Atomic uint32_t active, stopped;
    _Atomic uint64_t calm_ns, last_take_ns;
    _Atomic uint64_t gap_ns, gap_at_ns, gap_any_ns;
    _Atomic uint64_t stood_still_ns; /* when the conductor last found that it had not run for long */
    _Atomic uint64_t reaped, leases_given_back, returned, repairs, partials, attached;
    _Atomic uint32_t num_faults;
    _Atomic uint64_t faults_of[ST_FAULTS];
    st_fault fault[16];
    st_proc proc[ST_PROCS];
    es_account *samples;              /* a sender is a life */
    _Atomic uint8_t killed[ST_LIVES]; /* 1 from before the signal is sent */
    uint8_t gone[ST_LIVES];           /* by the conductor: collected, so it writes no more */
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
/* For the holder of dead learner's lock byte, before it reaps: was each of its pending leases released? */
void st_resolve(st_account *a, es_ring *r, uint32_t life, uint32_t owner);

/* From now on, whatever es_repair() repairs is a fault in this account. */
void st_repair_watch(st_account *a);

/* The conductor's half. */
uint64_t st_consume(st_account *a, es_ring *r);
/* One delivered sample. */
void st_deliver(st_account *a, uint64_t id, int64_t position);

/* --- processes --------------------------------------------------------------- */

/* In a calm round nobody is killed, so that no wait may need its timeout, which is long. Producers are busy for a
 * while, and then for more than a timeout all do nothing: whoever missed a wake-up is not saved by a later one. */
#define ST_CALM_REAP_MS 2000u
#define ST_CALM_BUSY_NS UINT64_C(700000000)
#define ST_CALM_IDLE_NS UINT64_C(2600000000)

static inline bool st_calm(const st_config *c)
{
    return c->kill_rate == 0 && c->learner_kill_rate == 0 && c->reap_ms >= ST_CALM_REAP_MS;
}

/* What a process of the round knows. */
typedef struct st_world {
    st_config config;
    st_shape shape;
    st_account *account;
    uint64_t seed;
    uint32_t round;
    void *base;
    uint64_t size;
    char shm_name[64], lock_path[80]; /* in /dev/shm */
    uint64_t slice_ns;                /* longest sleep in the core: a reap interval */
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

/* Opens the ring and registers, sweeping while the table is full. */
void st_attach(st_actor *actor, uint32_t role);
void st_detach(st_actor *actor);
/* Finds the dead, sees to their journals, reaps them: how many, or -1 when others may be at it. random: may dwell on
 * the way. */
int st_sweep(st_account *a, es_ring *r, es_random *random);
/* Whether a wait of a whole slice that missed something is to be taken seriously: not if the machine itself had stood
 * still. For calm rounds. */
bool st_slept_through(st_actor *actor);
/* Batches leased by an owner index. */
uint32_t st_leases_of(es_ring *r, uint32_t owner);
void st_produce(st_actor *actor);
void st_learn(st_actor *actor);
/* Verifies the samples of a lease and writes down which they are: how many. */
uint32_t st_read_batch(const st_world *w, es_ring *r, uint64_t batch, const es_snapshot *snap, uint64_t *ids);

/* --- the conductor ------------------------------------------------------------- */

enum st_slot_state { ST_EMPTY, ST_RUNNING, ST_STOPPED, ST_DYING };

typedef struct st_slot {
    enum st_slot_state state;
    int pid;
    uint64_t until_ns; /* stopped: until then */
} st_slot;

/* Sums over all rounds. */
typedef struct st_figures {
    uint32_t rounds;
    uint64_t kills_producers, kills_learners, stops, killed_stopped, left;
    uint64_t sent, delivered, batches, reaped, reopened, given_back, returned, partials, attached, repairs;
    uint64_t gap_ns, gap_any_ns, late_ns;
    double gap_at_s;
    uint32_t gap_round;
    uint64_t killed_in[2][ST_PHASES]; /* learners, producers */
    uint64_t killed_parked;
    uint64_t paths[ST_PATHS];
    uint64_t faults_of[ST_FAULTS];
    uint64_t rounds_with[3]; /* by size: small, middle, big */
} st_figures;

typedef struct st_storm {
    st_world w;
    st_figures sum;
    es_random random;
    es_locks *locks;
    es_ring *watcher; /* registered only to drain */
    st_slot slot[ST_PROCS];
    uint32_t next_life;
    uint64_t start_ns, round_start_ns, watchdog_ns;
    uint64_t watched_ns, still_ns, seen_take_ns; /* the watchdog's */
    int conductor_pid, guardian_pid, guardian_fd;
    bool over; /* the round: learners are killed even where they are spared */
    volatile int *interrupted;
} st_storm;

bool st_round(st_storm *s, const st_config *config, uint32_t round, double seconds);
bool st_segment_open(st_storm *s, const st_config *config);
void st_segment_close(st_storm *s);
void st_spawn(st_storm *s, uint32_t slot);
void st_kill(st_storm *s, uint32_t slot);
void st_stop(st_storm *s, uint32_t slot, uint64_t for_ns);
void st_continue(st_storm *s, uint32_t slot);
/* Waits for who ended: how many of slots from .. to-1 still run. */
uint32_t st_collect(st_storm *s, uint32_t from, uint32_t to);
void st_kill_all(st_storm *s);
void st_end_round(st_storm *s);

/* --- watching and telling -------------------------------------------------------- */

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
