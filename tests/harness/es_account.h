/* The account of the samples: which were sent, which came (were delivered), and what is wrong.
 *
 * Senders number their samples 0, 1, ... Before a call, a sender writes into its ledger word how many samples it is
 * about to send: they are "in doubt". After the call, one store moves the samples that were sent to "acked". So
 * wherever a sender is killed, samples 0 .. acked-1 must come. Of the samples in doubt, only a prefix may come, because
 * the core commits the samples of one call in order. On a closed ring a learner may seal some slots of a call and not
 * others. Then any subset of the samples in doubt may come. Its size is known if the sender lived long enough to write
 * down the core's result.
 *
 * A receiver enters each sample when its release is certain. A second entry is reported as a fault at once.
 * es_account_settle() finds samples that are missing and samples that were never sent.
 *
 * The memory is shared with all processes that are forked later, so threads and processes can share one account.
 *
 * Suites with few samples keep their own table, with an es_sent and a count of deliveries per sample. They call
 * es_account_verdict() for each sample. */
#ifndef ES_ACCOUNT_H
#define ES_ACCOUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum es_account_fault {
    ACCOUNT_LOST,
    ACCOUNT_DOUBLED,
    ACCOUNT_TORN,
    ACCOUNT_PHANTOM,  /* came, but was never sent */
    ACCOUNT_DISORDER, /* came before a sample that was sent earlier */
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

/* "lost", "doubled" and so on. NULL for ACCOUNT_RIGHT. */
const char *es_account_name(enum es_account_fault fault);

/* --- many senders ------------------------------------------------------------- */

/* number: the sample's, or -1. code: a number that adds detail. */
typedef void es_account_tell(enum es_account_fault fault, uint32_t sender, int64_t number, int64_t code,
                             const char *text);

typedef struct es_account {
    uint32_t senders, samples; /* samples: the most that a sender may send */
    bool ordered;              /* there is one receiver, and each sender's samples must come in order */
    es_account_tell *tell;     /* NULL: the first few faults are printed */
    uint64_t bytes;
    _Atomic uint64_t delivered;
    _Atomic uint64_t faults[ACCOUNT_FAULTS];
    _Atomic uint64_t *ledger; /* by sender */
    _Atomic uint64_t *came;   /* one bit per sample, set by receivers */
} es_account;

es_account *es_account_new(uint32_t senders, uint32_t samples);
void es_account_free(es_account *a);
/* Clears the account of the first `senders` senders. The others must be unused. */
void es_account_reset(es_account *a, uint32_t senders);

/* begin: a sender is about to send its next n samples. end: it has sent the first `sent` of them and no others. */
void es_account_begin(es_account *a, uint32_t sender, uint32_t n);
void es_account_end(es_account *a, uint32_t sender, uint32_t sent);
/* Instead of end, on a closed ring: `sent` of the n samples were sent, not necessarily the first. The sender sends no
 * more. */
void es_account_cut(es_account *a, uint32_t sender, uint32_t n, uint32_t sent);
/* How many samples the sender has certainly sent. */
uint32_t es_account_acked(const es_account *a, uint32_t sender);

/* The sample with this id (es_sample.h) came and was released. Returns false if that is a fault. */
bool es_account_deliver(es_account *a, uint64_t id);
bool es_account_came(const es_account *a, uint64_t id);
/* A torn sample came. Its leaf 0 holds this id. */
void es_account_torn(es_account *a, uint64_t id);

/* Compares what the first `senders` senders sent with what came. Returns the number of samples sent.
 * closed_under_load: any subset of the samples in doubt may have come. */
uint64_t es_account_settle(es_account *a, uint32_t senders, bool closed_under_load);
uint64_t es_account_faults(const es_account *a);

#endif
