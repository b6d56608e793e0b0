/* What the stage and the functions of xp_play.c and xp_bridge.c share. */
#ifndef XP_PLAY_H
#define XP_PLAY_H

#include "es_account.h"
#include "xp.h"

#define XP_MAX_GOT 6
#define XP_MAX_HAD 8
#define XP_VERSIONS 16
#define XP_REAP_INTERVAL UINT64_C(20000000)

extern struct xp_account {
    uint8_t sent[XP_IDS]; /* enum es_sent */
    struct {
        uint8_t by;
        bool released;
    } got[XP_IDS][XP_MAX_GOT];
    int num_got[XP_IDS];
    uint8_t sender[XP_IDS];              /* the thread */
    int last[XP_THREADS][2][XP_THREADS]; /* per learner, ring and sender: the id of the last sample that it got */
    int next;
    bool ended;                /* a learner was told that the stream has ended */
    bool left[XP_THREADS];     /* per thread: its attachment is detached */
    bool in_annex[XP_THREADS]; /* where it plays */
    /* What it waits for in xp_wait_any(). */
    const es_watch *watches[XP_THREADS];
    uint32_t num_watches[XP_THREADS];
    bool hears[XP_THREADS]; /* the bell */
    /* The client of the bridges. Its samples have ids from client_first on. It may forget the first client_told. */
    int client_first, client_samples, client_told;
    bool client_came;
    /* The batches that the learner on another host has had, by their numbers, with the ids of their samples as bits. */
    struct {
        uint64_t number;
        uint32_t ids;
    } had[XP_MAX_HAD];
    int num_had;
    /* Of weights: what each version was, once somebody knows it; and by thread. */
    uint32_t version[XP_VERSIONS];
    uint64_t had_version[XP_THREADS], wants_version[XP_THREADS];
    bool untold; /* a publisher has ended before it woke anybody */
} xp_account;

/* To call at the end: the samples that the ring counts for the client are those that were delivered. */
void xp_check_client(void);

/* A batch that the running thread has leased, and the ids of the samples that it has read of it. */
typedef struct xp_lease {
    es_snapshot snap;
    int64_t batch;
    int ids[XP_IDS], n;
} xp_lease;
/* Takes a batch. Whether there was one. */
bool xp_lease_take(xp_lease *lease, uint32_t flags, uint64_t timeout_ns);
void xp_lease_read(xp_lease *lease);
void xp_lease_release(const xp_lease *lease);
void xp_lease_give_back(const xp_lease *lease);

/* Settles the dead, acting as this attachment. Returns how many, or -1 if another process may be settling one. */
int xp_sweep_by(es_ring *by);

#endif
