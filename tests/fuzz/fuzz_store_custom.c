#include "fuzz_store_custom.h"

#define ROOM (sizeof((fuzz_chooser *)NULL)->keys / sizeof(uint64_t))

static int answer(const fuzz_chooser *c)
{
    return c->in != NULL && !fuzz_done(c->in) && fuzz_below(c->in, 32) == 31;
}

static uint32_t place_of(const fuzz_chooser *c, uint64_t key)
{
    uint32_t i = 0;
    while (i < c->count && c->keys[i] != key)
        i++;
    FUZZ_CHECK(i < c->count || c->lost > 0); /* nobody but a member goes or changes */
    return i;
}

static int insert(void *self, uint64_t key, double priority)
{
    fuzz_chooser *c = self;
    FUZZ_CHECK(priority >= 0);
    if (c->count < ROOM)
        c->keys[c->count++] = key;
    else
        c->lost++;
    return answer(c);
}

static int update(void *self, uint64_t key, double priority)
{
    FUZZ_CHECK(priority >= 0);
    place_of(self, key);
    return answer(self);
}

static int remove_key(void *self, uint64_t key)
{
    fuzz_chooser *c = self;
    uint32_t i = place_of(c, key);
    if (i < c->count)
        c->keys[i] = c->keys[--c->count];
    return answer(c);
}

static int draw(void *self, const double *numbers, uint64_t n, uint64_t *keys, double *probabilities)
{
    fuzz_chooser *c = self;
    for (uint64_t i = 0; i < n; i++) {
        FUZZ_CHECK(numbers[i] >= 0 && numbers[i] < 1);
        probabilities[i] = 0.5;
        keys[i] = c->count > 0 ? c->keys[(uint32_t)(numbers[i] * c->count)] : 0;
    }
    if (c->in != NULL && !fuzz_done(c->in) && fuzz_below(c->in, 16) == 15)
        keys[n - 1] = fuzz_value(c->in, keys[n - 1]);
    return answer(c);
}

static int probability(void *self, uint64_t key, double *to)
{
    place_of(self, key);
    *to = 0.5;
    return answer(self);
}

static void refuse(void *self, uint64_t key)
{
    const fuzz_chooser *c = self;
    for (uint32_t i = 0; i < c->count; i++)
        FUZZ_CHECK(c->keys[i] != key || key == 0);
}

void fuzz_make_choosers(fuzz_chooser *choosers, es_custom_selector *calls, fuzz_in *in)
{
    for (uint32_t i = 0; i < FUZZ_CHOOSERS; i++) {
        choosers[i] = (fuzz_chooser){.in = in};
        calls[i] = (es_custom_selector){&choosers[i], insert, update, remove_key, draw, probability, refuse};
    }
}
