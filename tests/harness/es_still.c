#include "es_still.h"

#include <errno.h>

#include "base/es_clock.h"
#include "base/es_wait.h"

#define MAX_PARKED 16

uint64_t es_still_look_ns = 1;
bool es_still_signals;

static uint64_t now_ns;
static struct parked {
    _Atomic uint32_t *word;
    bool woken;
} parked[MAX_PARKED];
static int num_parked;

void es_step(void);

void es_still_begin(void)
{
    num_parked = 0;
    now_ns = 0;
    es_still_signals = false;
}

bool es_still_parked(const void *word)
{
    for (int i = 0; i < num_parked; i++)
        if ((const void *)parked[i].word == word && !parked[i].woken)
            return true;
    return false;
}

void es_still_advance(uint64_t ns)
{
    now_ns += ns;
}

uint64_t es_clock_ns(void)
{
    return now_ns += es_still_look_ns;
}

/* The kernel's comparison of each word is also a step. A sleeper that a word has woken goes on. Here it stays parked on
 * the others, as it does in the kernel until it runs. */
int es_wait_several(const es_wait_word *words, uint32_t n, uint64_t timeout_ns)
{
    int first = num_parked;
    for (uint32_t i = 0; i < n; i++) {
        es_step();
        if (atomic_load(words[i].word) != words[i].seen) {
            bool woken = false;
            for (int p = first; p < num_parked; p++)
                woken = woken || parked[p].woken;
            num_parked = first;
            return woken ? ES_OK : -EAGAIN;
        }
        if (num_parked < MAX_PARKED)
            parked[num_parked++] = (struct parked){words[i].word, false};
    }
    if (es_still_signals)
        return -EINTR;
    now_ns += timeout_ns;
    return ES_TIMEOUT;
}

int es_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, es_wait_turn turn)
{
    (void)turn;
    return es_wait_several(&(es_wait_word){word, seen}, 1, timeout_ns);
}

static bool wake(_Atomic uint32_t *word, int most)
{
    int woken = 0;
    for (int i = 0; i < num_parked && woken < most; i++)
        if (parked[i].word == word && !parked[i].woken) {
            parked[i].woken = true;
            woken++;
        }
    return woken > 0;
}

void es_wait_wake(_Atomic uint32_t *word)
{
    wake(word, MAX_PARKED);
}

bool es_wait_wake_one(_Atomic uint32_t *word, es_wait_turn turn)
{
    (void)turn;
    return wake(word, 1);
}

void es_wait_yield(void)
{
}

const char *es_wait_kind(void)
{
    return "stepped";
}
