/* What the stage and those who play on it share. */
#ifndef XP_PLAY_H
#define XP_PLAY_H

#include "xp.h"

#define XP_MAX_GOT 6
#define XP_REAP_INTERVAL UINT64_C(20000000)

enum xp_sent { XP_NOT_SENT, XP_SENT, XP_IN_DOUBT };

extern struct xp_account {
    uint8_t sent[XP_IDS];
    struct {
        uint8_t by;
        bool released;
    } got[XP_IDS][XP_MAX_GOT];
    int num_got[XP_IDS];
    int next;
    bool ended;            /* somebody was told that nothing will come any more */
    bool left[XP_THREADS]; /* the attachment of this thread has been left */
} xp_account;

/* Settles the dead, as this attachment: how many, or -1 when somebody else may be at it. */
int xp_sweep_by(es_ring *by);

#endif
