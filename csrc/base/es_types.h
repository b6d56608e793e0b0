/* Plain types shared by the C core and its Python binding. No atomics, and no preprocessor beyond
 * this guard: cffi reads this file as it is. */
#ifndef ES_TYPES_H
#define ES_TYPES_H

#include <stdint.h>

/* What a function returns: 0 or a count, a negative result from here, or a
 * negative errno. Full, empty, timed out and ended are results, not errors. */
enum es_result {
    ES_OK = 0,
    ES_FULL = -10001,    /* no slot can be claimed until a batch is released */
    ES_EMPTY = -10002,   /* no batch is ready */
    ES_TIMEOUT = -10003, /* the wait's slice of time is over */
    ES_ENDED = -10004,   /* the ring is closed and holds nothing more to take */
    ES_UNSURE = -10005,  /* no more dead owners are found, but another process may be reaping one */
    /* -10006 is ES_BUSY in es_ring.h, which never leaves the core */
    ES_LAPPED = -10007,    /* the version was overwritten meanwhile: there is a newer one */
    ES_NOTHING = -10008,   /* no weights were published yet */
    ES_ECLOSED = -10011,   /* the ring is closed to producers */
    ES_EDETACHED = -10012, /* this attachment was closed */
    ES_EFORK = -10013,     /* this attachment was inherited through a fork */
    ES_EEVICTED = -10014,  /* the claim was evicted after the ring closed */
    ES_ESTALE = -10015,    /* the batch is not leased here, or no longer */
    ES_ENOOWNER = -10016,  /* every owner entry of this role is in use */
    ES_EREADONLY = -10017, /* the attachment only observes */
    ES_EMAGIC = -10021,    /* not an echo_shm segment */
    ES_EINIT = -10022,     /* its creator has not finished it */
    ES_EVERSION = -10023,  /* another layout version */
    ES_ESIZE = -10024,     /* its size is not the one that it claims */
    ES_EGEOMETRY = -10025, /* a count in its header is out of range */
    ES_EOFFSET = -10026,   /* an offset in its header is wrong */
    ES_EHASH = -10027,     /* its format hash does not fit its contents */
    ES_ESCRIBBLED = -10028 /* a word in it is one that no correct process can have written */
};

enum es_role { ES_ROLE_LEARNER = 1, ES_ROLE_PRODUCER = 2 };

/* An owner index that no owner has. */
enum es_owner_index { ES_NOBODY = 0x7fffffff };

/* Segment flags, fixed at creation. */
enum es_flag { ES_FLAG_READY_ORDER = 1, ES_FLAG_DETAILED = 2, ES_FLAG_WEIGHTS = 4 };

/* What es_api_take() may hand out beyond the ring's own order: any complete batch, and with
 * ES_TAKE_SHORT the samples of a batch that is still being filled. ES_TAKE_LAST: also the last batch before one that another
 * learner has leased, for whoever knows that no producer needs that one any more: see es_lease.h. */
enum es_take_flag { ES_TAKE_ANY_ORDER = 1, ES_TAKE_SHORT = 2, ES_TAKE_LAST = 4 };

/* What es_api_wait_any() can wait for in a ring. BATCH: es_api_take() may hand one out. ROOM: a slot may be claimed. */
enum es_watch_cause { ES_WATCH_BATCH = 1, ES_WATCH_ROOM = 2 };

/* How many causes one call can wait for: what the kernel allows. */
enum es_watch_limit { ES_WATCH_MOST = 128 };

/* One cause to stop waiting. */
typedef struct es_watch {
    struct es_ring *ring;
    uint32_t what; /* es_watch_cause */
} es_watch;

/* Everything that determines a segment's layout, beside the leaves' sizes. */
typedef struct es_geometry {
    uint64_t batch_size;       /* samples in a batch */
    uint64_t num_batches;      /* batches in the ring */
    uint64_t reap_interval_ns; /* longest sleep before a learner looks for the dead */
    uint32_t max_producers;
    uint32_t max_remotes; /* clients of bridges */
    uint32_t num_leaves;
    uint32_t schema_size; /* bytes */
    uint32_t flags;       /* es_flag */
    uint32_t zero;
} es_geometry;

/* Who attaches. pid 0: nobody has filled in the entry. */
typedef struct es_identity {
    uint32_t role; /* es_role */
    uint32_t index;
    int64_t pid;
    uint64_t pid_namespace; /* inode of the PID namespace, 0 where there is none */
    double start_time;      /* seconds since the system started, or 0 */
} es_identity;

typedef struct es_owner_info {
    es_identity id;
    uint64_t samples;    /* committed */
    uint64_t blocked;    /* times it waited because the ring was full */
    uint64_t blocked_ns; /* time it waited for that */
    uint32_t waiting;    /* 1 while it sleeps, or polls a full ring */
    uint32_t is_bridge;
} es_owner_info;

enum es_remote_state { ES_REMOTE_FREE = 0, ES_REMOTE_TAKEN = 1, ES_REMOTE_HERE = 2, ES_REMOTE_AWAY = 3 };
enum es_peer_size { ES_PEER_SIZE = 64 };

/* A client on another host. */
typedef struct es_remote_info {
    uint32_t index, state; /* es_remote_state */
    uint32_t bridge;       /* owner index */
    uint64_t committed;    /* its samples that are in the ring */
    uint64_t bytes, frames;
    uint64_t since_ns; /* clock of es_clock_ns(): connected, or gone */
    char peer[64];     /* ES_PEER_SIZE; ends with 0 */
} es_remote_info;

/* Nanoseconds. The percentiles are upper edges of buckets, each 1/8 of a power of two wide. */
typedef struct es_histogram_summary {
    uint64_t count, min_ns, max_ns, sum_ns, p50_ns, p90_ns, p99_ns;
} es_histogram_summary;

/* The ring as seen at one moment. Counters are cumulative, gauges are not. */
typedef struct es_snapshot {
    uint64_t batch, round;      /* the batch taken: its physical index, and its round */
    uint64_t length;            /* committed samples in it; 0: no batch was taken */
    uint64_t store_size;        /* gauge: samples claimed and not yet taken */
    uint64_t occupancy;         /* gauge: samples claimed and not yet released */
    uint64_t occupancy_max;     /* largest occupancy that a take has seen */
    uint64_t samples_inserted;  /* slots claimed since the segment was made */
    uint64_t batches_taken;     /* less those given back */
    uint64_t push_blocked;      /* times a producer waited because the ring was full */
    uint64_t producers_waiting; /* gauge: filled by es_monitor_observe() only */
    uint64_t notify_count;      /* times a committer woke the learners */
    uint64_t active_producers;  /* gauge */
    uint64_t active_remotes;    /* gauge: connected to bridges */
    uint64_t refused_remotes;   /* connections that bridges ended because something was wrong with them */
    uint64_t dead_producers;    /* reaped */
    uint64_t stalled_producers; /* gauge: as of the last sweep */
    uint64_t reopened_slots;    /* claims of dead or aborting producers, re-opened */
    uint64_t too_old;           /* samples that learners left out for their age */
    int64_t latest_version;     /* of the weights; 0: none were published */
    int64_t age_max;            /* latest_version less the samples' versions: the batch's, by es_api_take() alone */
    double age_mean;
    uint64_t learner_wait_ns;                               /* time this learner slept for the batch taken */
    uint64_t cas_success, cas_failure, reservation_retries; /* detailed metrics only */
    es_histogram_summary look, copy, dwell;                 /* detailed metrics only */
    uint32_t sweep_due; /* 1: es_sweep_next_dead() was not called for a reap interval */
    uint32_t closed;    /* 1: the ring is closed to producers */
    uint32_t shared;    /* 1: more than one learner has been attached; see es_lease.h */
} es_snapshot;

/* Where words are that an onlooker reads through its own mapping. Bytes from the segment's start; of an owner and of a
 * batch, from the start of its entry, of which the first one and the size are given. */
typedef struct es_places {
    uint64_t tail, owners_high, learner_sleeps, slots;
    uint64_t owners, owner_bytes, state, role, pid, start_time, samples, blocked_ns, waiting;
    uint64_t batches, batch_bytes, word, leased_ns;
} es_places;

#endif
