/* The account of the samples: which were sent, which came, and what is wrong.
 *
 * Senders number their samples 0, 1, ... A sender writes into its ledger word how many samples it is about to send
 * (in doubt). When the core has returned, one store moves what was sent to "acked". So wherever a sender is killed,
 * samples 0 .. acked-1 must come. A prefix of what was in doubt may come, and nothing else: the core commits the
 * samples of one call in their order. On a closed ring a learner may seal some slots of a call and not others. Then the
 * prefix becomes a subset. Its size is known if the sender lived to write down what the core returned.
 *
 * A receiver enters each sample once its release is certain. A sample that is entered twice is a fault at once.
 * es_account_settle() finds the samples that are missing and those that nobody sent.
 *
 * The memory is shared with all processes that are forked later, so threads and processes can keep one account.
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
/* Clears the account. Only the first so many senders have been used. */
void es_account_reset(es_account *a, uint32_t senders);

/* begin: a sender is about to send its next n samples. end: it has sent so many of them, and not the others. */
void es_account_begin(es_account *a, uint32_t sender, uint32_t n);
void es_account_end(es_account *a, uint32_t sender, uint32_t sent);
/* Instead of end: the ring was closed, and so many of the n were sent, not necessarily the first. It sends no more. */
void es_account_cut(es_account *a, uint32_t sender, uint32_t n, uint32_t sent);
/* How many the sender has surely sent. */
uint32_t es_account_acked(const es_account *a, uint32_t sender);

/* The sample of that id (es_sample.h) came, and was released. False when that is a fault. */
bool es_account_deliver(es_account *a, uint64_t id);
bool es_account_came(const es_account *a, uint64_t id);
/* A sample came that does not agree with itself, and said it was id. */
void es_account_torn(es_account *a, uint64_t id);

/* Compares what the first so many senders sent with what came: samples sent. closed_under_load: of the samples in
 * doubt any subset may have come. */
uint64_t es_account_settle(es_account *a, uint32_t senders, bool closed_under_load);
uint64_t es_account_faults(const es_account *a);

#endif
