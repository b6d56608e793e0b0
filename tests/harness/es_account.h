/* The account of the samples: which were sent, which came, and what is wrong with that.
 *
 * Senders number their samples 0, 1, ... A sender writes into its ledger word how many samples it is about to send
 * (in doubt). When the core has returned, one store moves what was sent to "acked". So whenever a sender is killed,
 * samples 0 .. acked-1 must come, beyond them a prefix of what was in doubt may, and nothing else. (The core commits
 * the samples of one call in their order. On a closed ring a learner may seal some slots of a call and not others:
 * there the prefix becomes a subset, of the size that the core said if it still could.)
 *
 * A receiver enters each sample when it releases it for good. A sample that is entered twice is a fault at once. What is
 * missing, and what nobody sent, are found by es_account_settle().
 *
 * The memory is shared with all processes that are forked later: threads and processes keep the same account.
 *
 * Suites with a few samples keep a table of their own, a state of sending and a count of deliveries for each sample,
 * and ask es_account_verdict() about each. */
#ifndef ES_ACCOUNT_H
#define ES_ACCOUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum es_account_fault {
    ACCOUNT_LOST,
    ACCOUNT_DOUBLED,
    ACCOUNT_TORN,
    ACCOUNT_PHANTOM,  /* came, and was never sent */
    ACCOUNT_DISORDER, /* came before a sample that was sent before it */
    ACCOUNT_FAULTS,
    ACCOUNT_RIGHT = ACCOUNT_FAULTS
};

/* --- one sample -------------------------------------------------------------- */

enum es_sent { SENT_NOT, SENT_OK, SENT_MAYBE };

static inline enum es_account_fault es_account_verdict(enum es_sent sent, uint64_t deliveries)
{
    if (deliveries > 1)
        return ACCOUNT_DOUBLED;
    if (sent == SENT_OK && deliveries == 0)
        return ACCOUNT_LOST;
    return sent == SENT_NOT && deliveries > 0 ? ACCOUNT_PHANTOM : ACCOUNT_RIGHT;
}

/* "lost", "doubled" ...; NULL when all is right. */
const char *es_account_name(enum es_account_fault fault);

/* --- many senders ------------------------------------------------------------- */

/* number: of the sample, or -1. code: a figure that says more. */
typedef void es_account_tell(enum es_account_fault fault, uint32_t sender, int64_t number, int64_t code,
                             const char *text);

typedef struct es_account {
    uint32_t senders, samples; /* samples: of each sender, at most */
    bool ordered;              /* one receiver, and each sender's samples must come in order */
    es_account_tell *tell;     /* NULL: the first few faults are printed */
    uint64_t bytes;
    _Atomic uint64_t delivered;
    _Atomic uint64_t faults[ACCOUNT_FAULTS];
    _Atomic uint64_t *ledger; /* by sender */
    _Atomic uint64_t *came;   /* a bit for each sample, by receivers */
} es_account;

es_account *es_account_new(uint32_t senders, uint32_t samples);
void es_account_free(es_account *a);
/* Begins anew, where only the first so many senders have been used. */
void es_account_reset(es_account *a, uint32_t senders);

/* A sender is about to send its next n samples; has sent so many of them, and the others not. */
void es_account_begin(es_account *a, uint32_t sender, uint32_t n);
void es_account_end(es_account *a, uint32_t sender, uint32_t sent);
/* It has sent so many of the n, not necessarily the first, because the ring was closed. It sends no more. */
void es_account_cut(es_account *a, uint32_t sender, uint32_t n, uint32_t sent);
/* How many the sender has surely sent. */
uint32_t es_account_acked(const es_account *a, uint32_t sender);

/* A sample of that id (es_sample.h) came, and was released. False: that was wrong. */
bool es_account_deliver(es_account *a, uint64_t id);
bool es_account_came(const es_account *a, uint64_t id);
/* A sample came that does not agree with itself, and said it was id. */
void es_account_torn(es_account *a, uint64_t id);

/* Compares what the first so many senders sent with what came: samples sent. closed_under_load: of the samples in
 * doubt any subset may have come. */
uint64_t es_account_settle(es_account *a, uint32_t senders, bool closed_under_load);
uint64_t es_account_faults(const es_account *a);

#endif
