/* Which words are explored: those through which threads communicate. All other words are plain memory, and an
 * operation on them is not a step. Lock bytes are explored as well. They model the kernel's locks, and the explorer
 * keeps the holder of each.
 */
#include "xp_history.h"

#include <stdio.h>

#define TABLE 1024

struct xp_tracked xp_tracked;

static const xp_scene *scene; /* NULL while it is set up or cleared */
static int16_t table[TABLE];  /* number of the word; -1: not explored */
static const void *keys[TABLE];

static bool inside(const void *p, const void *from, uint64_t size)
{
    return (uintptr_t)p >= (uintptr_t)from && (uintptr_t)p < (uintptr_t)from + size;
}

/* No scene uses more than the first few owner entries of each role. The others are all alike and not explored. */
static bool explored_owner(uint64_t index)
{
    return index % ES_MAX_LEARNERS < 4;
}

static bool is_lock_byte_of(const es_fix *f, const void *p)
{
    return inside(p, (const void *)f->locks->held, f->locks->count + ES_MAX_LEARNERS);
}

static bool of_attachment(const es_fix *f, const void *p)
{
    bool found = false;
    for (int i = 0; i < f->num_rings; i++)
        found = found || inside(p, f->rings[i], sizeof *f->rings[i]);
    return found;
}

/* The ring that the word belongs to: it lies in the segment, in an attachment to it, or is a lock byte. Or NULL. */
static const es_fix *home_of(const void *p)
{
    const es_fix *all[] = {xp_theatre.f, xp_annex.f};
    for (int i = 0; i < 2; i++)
        if (all[i] != NULL &&
            (inside(p, all[i]->base, all[i]->size) || is_lock_byte_of(all[i], p) || of_attachment(all[i], p)))
            return all[i];
    return NULL;
}

static bool is_lock_byte(const void *p)
{
    const es_fix *f = home_of(p);
    return f != NULL && is_lock_byte_of(f, p);
}

/* The owner that this lock byte, first or second, belongs to. */
static uint64_t byte_of(const es_fix *f, const void *p)
{
    uint64_t at = (uint64_t)((const uint8_t *)p - (const uint8_t *)f->locks->held);
    return at < f->locks->count ? at : at - f->locks->count;
}

/* Nobody lowers tail or head, except to repair them. */
static bool only_grows(const void *p)
{
    const es_fix *f = home_of(p);
    const es_header *h = f == NULL ? NULL : f->rings[0]->map.hdr;
    return f != NULL && (p == (const void *)&h->tail || p == (const void *)&h->head);
}

/* Statistics are not explored: no decision and no ordering depends on them. */
static bool matters(const void *p)
{
    const es_fix *f = home_of(p);
    if (f == NULL)
        return p == (const void *)&xp_bell;
    const es_map *m = &f->rings[0]->map;
    const es_header *h = m->hdr;
    if (is_lock_byte_of(f, p))
        return explored_owner(byte_of(f, p));
    if (!inside(p, f->base, f->size))
        return scene->private_words;
    if (inside(p, &h->totals, sizeof h->totals))
        return false;
    if (inside(p, m->owners, m->num_owners * sizeof *m->owners)) {
        uint64_t i = ((uintptr_t)p - (uintptr_t)m->owners) / sizeof *m->owners;
        const es_owner *o = &m->owners[i];
        bool journal = inside(p, &o->is_bridge, (uintptr_t)&o->samples - (uintptr_t)&o->is_bridge);
        /* Of a producer's flag only a bridge's journal makes use; of a learner's, learners that attach. */
        bool flag = p == (const void *)&o->is_bridge && i < ES_MAX_LEARNERS;
        return explored_owner(i) &&
               (p == (const void *)&o->state || p == (const void *)&o->pid || flag || (o->is_bridge != 0 && journal));
    }
    if (inside(p, m->remotes, m->num_remotes * sizeof *m->remotes)) {
        const es_remote *it = &m->remotes[((uintptr_t)p - (uintptr_t)m->remotes) / sizeof *m->remotes];
        return !inside(p, &it->bytes, (uintptr_t)&it->known - (uintptr_t)&it->bytes);
    }
    return true;
}

int xp_track(const void *p, unsigned size)
{
    if (scene == NULL)
        return -1;
    unsigned at = (unsigned)(((uintptr_t)p * UINT64_C(0x9e3779b97f4a7c15)) >> 54) % TABLE;
    while (keys[at] != NULL && keys[at] != p)
        at = (at + 1) % TABLE;
    if (keys[at] == NULL) {
        keys[at] = p;
        table[at] = -1;
        if (matters(p)) {
            if (xp_tracked.count == XP_MAX_WORDS)
                xp_die("more words than the explorer keeps");
            xp_tracked.words[xp_tracked.count] = (xp_word){.address = (void *)(uintptr_t)p,
                                                           .size = size,
                                                           .lock_byte = is_lock_byte(p),
                                                           .only_grows = only_grows(p)};
            xp_history_grow(xp_tracked.count);
            table[at] = (int16_t)xp_tracked.count++;
        }
    }
    return table[at];
}

void xp_track_begin(const xp_scene *s)
{
    if (scene == NULL) {
        memset(keys, 0, sizeof keys);
        xp_tracked.count = 0;
    }
    scene = s;
    for (int i = 0; i < xp_tracked.count; i++)
        xp_tracked.words[i].holder = 0;
}

void xp_track_end(void)
{
    scene = NULL;
}

const char *xp_word_name(const void *p)
{
    static char name[60];
    const es_fix *f = home_of(p);
    if (f == NULL)
        return p == (const void *)&xp_bell ? "bell" : "?";
    const char *where = f == xp_annex.f ? "annex " : "";
    const es_map *m = &f->rings[0]->map;
    const es_header *h = m->hdr;
    const struct {
        const void *p;
        const char *name;
    } single[] = {{&h->tail, "tail"},
                  {&h->head, "head"},
                  {&h->reopen_seq, "reopen_seq"},
                  {&h->given_back_seq, "given_back_seq"},
                  {&h->closed, "closed"},
                  {&h->closed_ns, "closed_ns"},
                  {&h->owners_high, "owners_high"},
                  {&h->ready_seq, "ready_seq"},
                  {&h->space_seq, "space_seq"},
                  {&h->learner_sleeps, "learner_sleeps"},
                  {&h->producers_sleep, "producers_sleep"}};
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (single[i].p == p) {
            snprintf(name, sizeof name, "%s%s", where, single[i].name);
            return name;
        }
    uintptr_t at = (uintptr_t)p;
    if (inside(p, m->slots, m->capacity * sizeof *m->slots))
        snprintf(name, sizeof name, "%sslot[%u]", where, (unsigned)((at - (uintptr_t)m->slots) / sizeof *m->slots));
    else if (inside(p, m->batches, m->num_batches * sizeof *m->batches))
        snprintf(name, sizeof name, "%sbatch[%u]+%u", where,
                 (unsigned)((at - (uintptr_t)m->batches) / sizeof *m->batches),
                 (unsigned)((at - (uintptr_t)m->batches) % sizeof *m->batches));
    else if (inside(p, m->owners, m->num_owners * sizeof *m->owners))
        snprintf(name, sizeof name, "%sowner[%u]+%u", where,
                 (unsigned)((at - (uintptr_t)m->owners) / sizeof *m->owners),
                 (unsigned)((at - (uintptr_t)m->owners) % sizeof *m->owners));
    else if (inside(p, m->remotes, m->num_remotes * sizeof *m->remotes))
        snprintf(name, sizeof name, "%sremote[%u]+%u", where,
                 (unsigned)((at - (uintptr_t)m->remotes) / sizeof *m->remotes),
                 (unsigned)((at - (uintptr_t)m->remotes) % sizeof *m->remotes));
    else if (m->weights != NULL && inside(p, m->weights, sizeof *m->weights))
        snprintf(name, sizeof name, "%s",
                 p == (const void *)&m->weights->latest     ? "latest"
                 : p == (const void *)&m->weights->news_seq ? "news_seq"
                                                            : "reader_sleeps");
    else if (m->weights != NULL && inside(p, m->sequences, m->num_batches * sizeof *m->sequences))
        snprintf(name, sizeof name, "sequence[%u]", (unsigned)((at - (uintptr_t)m->sequences) / sizeof *m->sequences));
    else if (m->weights != NULL && inside(p, m->leases, m->num_leases * sizeof *m->leases))
        snprintf(name, sizeof name, "lease[%u]", (unsigned)((at - (uintptr_t)m->leases) / sizeof *m->leases));
    else if (inside(p, m->leaf_data[0], m->capacity * m->leaf_size[0]))
        snprintf(name, sizeof name, "bytes[%u]", (unsigned)(at - (uintptr_t)m->leaf_data[0]));
    else
        snprintf(name, sizeof name, "%sprivate %p", where, p);
    return name;
}
