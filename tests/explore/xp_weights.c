/* What the threads of a scene do with versions of weights, and what must hold of each version that one gets.
 *
 * A version has 8 bytes, in two words: see xp_leaves.c. Both have the version's number, and who published it. A publisher
 * that was killed may have written a part of a version, and its successor publishes another one of the same number. */
#include "xp_play.h"

#include <string.h>

#include "es_core.h"
#include "es_hook.h"

#define MOST_COPIES 3 /* of versions that are overwritten meanwhile */

/* What is read here is no step of the core's, and has no memory order. */
static uint64_t latest(void)
{
    const es_weights *w = xp_theatre.learner->map.weights;
    return es_version_number(xp_memory_latest((const void *)&w->latest, sizeof w->latest));
}

static bool is_closed(const es_map *map)
{
    return xp_memory_latest((const void *)&map->hdr->closed, sizeof map->hdr->closed) != 0;
}

static bool is_live(const es_owner *owner)
{
    return xp_memory_latest((const void *)&owner->state, sizeof owner->state) == ES_OWNER_LIVE;
}

int64_t xp_publish(void)
{
    es_ring *r = xp_me() == 0 ? xp_theatre.learner : xp_theatre.of[xp_me()];
    uint32_t half = (uint32_t)(latest() + 1) << 8 | (uint32_t)xp_me();
    uint64_t value = (uint64_t)half << 32 | half;
    int64_t number = es_weights_publish(r, (void *[]){&value});
    if (number >= 0 && (number != half >> 8 || number >= XP_VERSIONS))
        xp_violation("a version does not have the number after the last one");
    if (number >= 0 && xp_account.version[number] != 0 && xp_account.version[number] != half)
        xp_violation("a reader had a version that was never published");
    if (number < 0 && number != ES_ECLOSED && number != ES_EDETACHED)
        xp_violation("a version is not published");
    if (number >= 0)
        xp_account.version[number] = half;
    return number;
}

/* Steps that --orders leaves as they are. */
static hook_site fences = {__FILE__, "xp_publish_untold", "fence", 0, memory_order_seq_cst, memory_order_seq_cst, true};
static hook_site stores = {__FILE__, "xp_publish_untold", "store", 0, memory_order_release, memory_order_release, true};

static void store(_Atomic uint64_t *word, uint64_t value)
{
    hook_store(&stores, (void *)word, sizeof *word, value);
}

void xp_publish_untold(void)
{
    es_map *map = &xp_theatre.of[xp_me()]->map;
    uint64_t number = latest() + 1, slot = 0;
    while (xp_memory_latest((const void *)&map->sequences[slot], 8) != 2 * (number - 3))
        slot++;
    uint32_t half = (uint32_t)number << 8 | (uint32_t)xp_me();
    uint64_t value = (uint64_t)half << 32 | half;
    xp_account.version[number] = half;
    store(&map->sequences[slot], 2 * number + 1);
    hook_fence(&fences);
    es_leaves_write(map, slot, (void *[]){&value});
    store(&map->sequences[slot], 2 * number);
    store(&map->weights->latest, number << ES_VERSION_SLOT_BITS | slot);
    xp_memory_release(xp_me(), &xp_account.untold);
    xp_account.untold = true;
}

bool xp_takes_over(void)
{
    for (int i = 0; i < 20 && !xp_account.untold; i++)
        xp_yield();
    xp_memory_acquire(xp_me(), &xp_account.untold);
    return xp_account.untold;
}

/* The running thread has got this version. */
static void receive(uint64_t number, uint64_t value)
{
    uint32_t half = (uint32_t)value;
    if ((uint32_t)(value >> 32) != half)
        xp_violation("a version is torn");
    else if (number == 0 || number >= XP_VERSIONS || half >> 8 != number)
        xp_violation("a version is not the one that it should be");
    else if (xp_account.version[number] != 0 && xp_account.version[number] != half)
        xp_violation("two readers have different versions of one number");
    else if (number < xp_account.had_version[xp_me()])
        xp_violation("a reader gets an older version than before");
    else {
        xp_account.version[number] = half;
        xp_account.had_version[xp_me()] = number;
    }
}

static es_ring *mine(void)
{
    return xp_me() == 0 ? xp_theatre.producer : xp_theatre.of[xp_me()];
}

int64_t xp_copy(void)
{
    uint64_t value = 0;
    int64_t rc = ES_LAPPED;
    for (int i = 0; i < MOST_COPIES && rc == ES_LAPPED; i++)
        rc = es_weights_copy(mine(), (void *[]){&value});
    if (rc > 0)
        receive((uint64_t)rc, value);
    else if (rc == ES_NOTHING ? xp_account.had_version[xp_me()] != 0 : rc != ES_LAPPED && rc != ES_EDETACHED)
        xp_violation("weights cannot be copied");
    return rc;
}

static uint64_t read_leased(uint64_t slot)
{
    uint64_t value;
    const es_map *map = &mine()->map;
    xp_data_read(map, slot);
    es_leaves_read(map, slot, (void *[]){&value});
    return value;
}

int64_t xp_lease_version(enum xp_end end)
{
    uint64_t number, slot;
    int64_t lease = es_weights_lease(mine(), &number, &slot);
    if (lease < 0) {
        if (lease != ES_FULL && lease != ES_EDETACHED && (lease != ES_NOTHING || xp_account.had_version[xp_me()] != 0))
            xp_violation("weights cannot be leased");
        return lease;
    }
    uint64_t value = read_leased(slot);
    receive(number, value);
    if (read_leased(slot) != value)
        xp_violation("a version changes while it is leased");
    if (es_weights_holder(mine(), (uint32_t)lease) != mine()->me)
        xp_violation("a lease is not its owner's");
    if (end == XP_RELEASES && es_weights_release(mine(), lease) != ES_OK)
        xp_violation("a lease cannot be ended");
    return lease;
}

int xp_wait_version(uint64_t number)
{
    int rc = ES_TIMEOUT;
    xp_account.wants_version[xp_me()] = number;
    for (int n = 4; n > 0 && (rc == ES_TIMEOUT || rc == ES_OK); n--) {
        rc = es_weights_wait(mine(), number, XP_REAP_INTERVAL);
        if (rc == ES_ECLOSED && latest() >= number)
            xp_violation("a version that came before the close is said never to come");
        if (es_weights_latest(mine()) >= (int64_t)number)
            break;
    }
    xp_account.wants_version[xp_me()] = 0;
    return rc;
}

bool xp_oversleeps_version(int t)
{
    const es_map *map = &xp_theatre.learner->map;
    uint64_t wanted = xp_account.wants_version[t];
    return map->weights != NULL && xp_parked_on(t, (const void *)&map->weights->news_seq) &&
           (latest() >= wanted || is_closed(map) || xp_theatre.of[t]->detached != 0);
}

void xp_settle_versions(void)
{
    const es_map *map = &xp_theatre.learner->map;
    uint64_t before = latest();
    for (uint32_t i = 0; i < map->num_leases; i++) {
        int64_t holder = es_version_holder(map, i);
        if (holder != ES_EMPTY && !is_live(&map->owners[holder]))
            xp_violation("a lease is nobody's");
    }
    for (int n = 0; n < XP_VERSIONS && n <= (int)map->num_batches && !is_closed(map); n++) {
        if (before + (uint64_t)n > 0 && xp_copy() != (int64_t)before + n)
            xp_violation("the latest version cannot be copied");
        xp_publish();
    }
    for (uint64_t n = 1; n < XP_VERSIONS; n++)
        if (xp_account.version[n] != 0 && n > latest())
            xp_violation("a reader had a version that was never published");
}
