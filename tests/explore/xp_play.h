/* What the stage and those who play on it share. */
#ifndef XP_PLAY_H
#define XP_PLAY_H

#include "es_account.h"
#include "xp.h"

#define XP_MAX_GOT 6
#define XP_REAP_INTERVAL UINT64_C(20000000)

extern struct xp_account {
    uint8_t sent[XP_IDS]; /* enum es_sent */
    struct {
        uint8_t by;
        bool released;
    } got[XP_IDS][XP_MAX_GOT];
    int num_got[XP_IDS];
    int next;
    bool ended;            /* somebody was told that nothing will come any more */
    bool left[XP_THREADS]; /* the attachment of this thread has been left */
    /* A client of bridges: its samples are numbered from client_first on; those below client_told it may forget. */
    int client_first, client_samples, client_told;
    bool client_came;
} xp_account;

/* In the end: what the ring counts of the client's samples is what came. */
void xp_check_client(void);

/* Settles the dead, as this attachment: how many, or -1 when somebody else may be at it. */
int xp_sweep_by(es_ring *by);

#endif
