#define _GNU_SOURCE
#include "es_account.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "es_sample.h"

#define MOST_TOLD 8

/* A ledger word: [acked:24 | in doubt:16 | done:16 | closed:8]. Each change is a single store, so a kill leaves either
 * the old or the new word. */
typedef struct ledger {
    uint32_t acked;  /* samples 0 .. acked-1 were sent: the core said so */
    uint32_t doubt;  /* the current operation is to send this many more */
    uint32_t done;   /* if closed: it sent this many of them, not necessarily the first */
    uint32_t closed; /* 1: the operation has ended on a closed ring */
} ledger;

static uint64_t word_of(ledger l)
{
    return (uint64_t)l.acked << 40 | (uint64_t)l.doubt << 24 | (uint64_t)l.done << 8 | l.closed;
}

static ledger ledger_of(const es_account *a, uint32_t sender)
{
    uint64_t w = atomic_load_explicit(&a->ledger[sender], memory_order_acquire);
    return (ledger){(uint32_t)(w >> 40), (uint32_t)(w >> 24) & 0xffffu, (uint32_t)(w >> 8) & 0xffffu,
                    (uint32_t)w & 0xffu};
}

const char *es_account_name(enum es_account_fault fault)
{
    static const char *const names[] = {"lost", "doubled", "torn", "phantom", "out of order", NULL};
    return names[fault];
}

/* --- storage ------------------------------------------------------------------- */

static uint64_t words_each(const es_account *a)
{
    return (a->samples + 63) / 64;
}

es_account *es_account_new(uint32_t senders, uint32_t samples)
{
    es_account sizes = {.senders = senders, .samples = samples};
    sizes.bytes = sizeof sizes + 8 * senders * (1 + words_each(&sizes));
    void *p = mmap(NULL, sizes.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED) {
        perror("memory for an account");
        abort();
    }
    es_account *a = p;
    *a = sizes;
    a->ledger = (_Atomic uint64_t *)(a + 1);
    a->came = a->ledger + senders;
    return a;
}

void es_account_free(es_account *a)
{
    if (a != NULL)
        munmap(a, a->bytes);
}

void es_account_reset(es_account *a, uint32_t senders)
{
    memset((void *)a->ledger, 0, 8 * (uint64_t)senders);
    memset((void *)a->came, 0, 8 * senders * words_each(a));
    memset((void *)a->faults, 0, sizeof a->faults);
    a->delivered = 0;
}

/* --- faults ---------------------------------------------------------------------- */

static void fault(es_account *a, enum es_account_fault kind, uint32_t sender, int64_t number, int64_t code,
                  const char *text)
{
    uint64_t before = es_account_faults(a);
    atomic_fetch_add_explicit(&a->faults[kind], 1, memory_order_relaxed);
    if (a->tell != NULL)
        a->tell(kind, sender, number, code, text);
    else if (before < MOST_TOLD)
        fprintf(stderr, "  account: sample %lld of sender %u: %s: %s (%lld)\n", (long long)number, sender,
                es_account_name(kind), text, (long long)code);
}

uint64_t es_account_faults(const es_account *a)
{
    uint64_t n = 0;
    for (int k = 0; k < ACCOUNT_FAULTS; k++)
        n += atomic_load_explicit(&a->faults[k], memory_order_relaxed);
    return n;
}

/* --- sending ---------------------------------------------------------------------- */

/* seq_cst: the entry must be visible before the core's commit. */
void es_account_begin(es_account *a, uint32_t sender, uint32_t n)
{
    atomic_store(&a->ledger[sender], word_of((ledger){.acked = es_account_acked(a, sender), .doubt = n}));
}

void es_account_end(es_account *a, uint32_t sender, uint32_t sent)
{
    atomic_store(&a->ledger[sender], word_of((ledger){.acked = es_account_acked(a, sender) + sent}));
}

void es_account_cut(es_account *a, uint32_t sender, uint32_t n, uint32_t sent)
{
    ledger l = {.acked = es_account_acked(a, sender), .doubt = n, .done = sent, .closed = 1};
    atomic_store(&a->ledger[sender], word_of(l));
}

uint32_t es_account_acked(const es_account *a, uint32_t sender)
{
    return ledger_of(a, sender).acked;
}

/* --- receiving -------------------------------------------------------------------- */

static bool exists(const es_account *a, uint64_t id)
{
    return id >> 32 < a->senders && (uint32_t)id < a->samples;
}

static _Atomic uint64_t *word_for(const es_account *a, uint64_t id)
{
    return &a->came[(id >> 32) * words_each(a) + (uint32_t)id / 64];
}

bool es_account_came(const es_account *a, uint64_t id)
{
    return exists(a, id) && atomic_load_explicit(word_for(a, id), memory_order_relaxed) >> id % 64 & 1;
}

void es_account_torn(es_account *a, uint64_t id)
{
    fault(a, ACCOUNT_TORN, (uint32_t)(id >> 32), (uint32_t)id, 0, "its bytes do not belong together");
}

bool es_account_deliver(es_account *a, uint64_t id)
{
    uint32_t sender = (uint32_t)(id >> 32), number = (uint32_t)id;
    if (!exists(a, id)) {
        fault(a, ACCOUNT_PHANTOM, sender, number, 0, "no sender has such a sample");
        return false;
    }
    atomic_fetch_add_explicit(&a->delivered, 1, memory_order_relaxed);
    bool in_order = !a->ordered || number == 0 || es_account_came(a, id - 1);
    if (!in_order)
        fault(a, ACCOUNT_DISORDER, sender, number, 0, "the sample before it has not come");
    uint64_t bit = UINT64_C(1) << id % 64;
    if ((atomic_fetch_or_explicit(word_for(a, id), bit, memory_order_relaxed) & bit) == 0)
        return in_order;
    fault(a, ACCOUNT_DOUBLED, sender, number, 0, "already released before");
    return false;
}

/* --- the balance ------------------------------------------------------------------- */

static bool has_come(const es_account *a, uint32_t sender, uint32_t number)
{
    return es_account_came(a, es_sample_id(sender, number));
}

static uint32_t total_came(const es_account *a, uint32_t sender)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < words_each(a); i++)
        n += (uint32_t)__builtin_popcountll(a->came[sender * words_each(a) + i]);
    return n;
}

/* Checks the samples in doubt. Returns how many of them came. */
static uint32_t settle_doubt(es_account *a, uint32_t sender, ledger l, bool any_subset)
{
    uint32_t came = 0, last = 0;
    for (uint32_t i = 0; i < l.doubt; i++)
        if (has_come(a, sender, l.acked + i)) {
            came++;
            last = i + 1;
        }
    if (last != came && !any_subset && !l.closed)
        fault(a, ACCOUNT_LOST, sender, l.acked + came, last, "did not come, but a later sample of its call did");
    if (l.closed && came != l.done)
        fault(a, came < l.done ? ACCOUNT_LOST : ACCOUNT_PHANTOM, sender, l.acked, l.done,
              "not the number that the core reported for a call that the close cut short");
    return came;
}

/* Compares one sender's ledger with what came. Returns how many samples it sent. */
static uint32_t settle_sender(es_account *a, uint32_t sender, bool any_subset)
{
    ledger l = ledger_of(a, sender);
    uint32_t found = 0;
    for (uint32_t number = 0; number < l.acked; number++) {
        found += has_come(a, sender, number);
        if (!has_come(a, sender, number))
            fault(a, ACCOUNT_LOST, sender, number, l.acked, "acked, but it never came");
    }
    uint32_t in_doubt = settle_doubt(a, sender, l, any_subset);
    if (total_came(a, sender) != found + in_doubt)
        for (uint32_t number = l.acked + l.doubt; number < a->samples; number++)
            if (has_come(a, sender, number))
                fault(a, ACCOUNT_PHANTOM, sender, number, l.acked, "came, but was never sent");
    return l.acked + in_doubt;
}

uint64_t es_account_settle(es_account *a, uint32_t senders, bool closed_under_load)
{
    uint64_t sent = 0;
    for (uint32_t sender = 0; sender < senders; sender++)
        sent += settle_sender(a, sender, closed_under_load);
    return sent;
}
