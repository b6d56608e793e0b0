/* A learner's life. It takes batches, verifies them, keeps them for a while, and releases them or gives them back. It
 * sweeps when a sweep is due, as the Python side does. Attaching and sweeping are here for producers too. */
#include <sched.h>
#include <unistd.h>

#include "storm.h"

#define MAX_HELD 3

typedef struct held {
    uint64_t batch;
    es_snapshot snap;
    st_entry *entry;
} held;

typedef struct learner {
    st_actor *actor;
    held held[MAX_HELD];
    uint32_t num_held, max_held;
    uint32_t next_entry;
} learner;

static void code_fault(st_actor *actor, int64_t rc, const char *what)
{
    st_fault_add(actor->a, ST_CODE, st_id(actor->life, 0), -1, rc, what);
    _exit(3);
}

void st_attach(st_actor *actor, uint32_t role)
{
    st_at(actor, ST_ATTACHING);
    int error;
    es_identity id = {.role = role, .pid = getpid(), .start_time = (double)actor->life};
    actor->r = es_api_open(actor->w->base, actor->w->size, actor->locks, (int)actor->w->config.poison, &error);
    if (actor->r == NULL)
        code_fault(actor, error, "es_api_open");
    int64_t index = es_api_attach(actor->r, &id);
    while (index == ES_ENOOWNER) { /* dead processes have all entries, or one is being freed just now */
        if (st_sweep(actor->a, actor->r, &actor->random) <= 0)
            st_nap(20000);
        st_at(actor, ST_ATTACHING);
        index = es_api_attach(actor->r, &id);
    }
    if (index < 0)
        code_fault(actor, index, "es_api_attach");
    atomic_store_explicit(&actor->proc->owner, (uint32_t)index, memory_order_relaxed);
    atomic_fetch_add_explicit(&actor->a->attached, 1, memory_order_relaxed);
    st_at(actor, ST_IDLE);
}

void st_detach(st_actor *actor)
{
    st_at(actor, ST_LEAVING);
    int rc = es_api_detach(actor->r);
    if (rc != ES_OK)
        code_fault(actor, rc, "es_api_detach");
    es_api_free(actor->r);
    actor->r = NULL;
}

uint32_t st_leases_of(es_ring *r, uint32_t owner)
{
    uint32_t n = 0;
    for (uint64_t j = 0; j < r->map.num_batches; j++) {
        uint64_t w = atomic_load_explicit(&r->map.batches[j].word, memory_order_relaxed);
        n += es_word_state(w) == ES_LEASED && es_word_owner(w) == owner;
    }
    return n;
}

int st_sweep(st_account *a, es_ring *r, es_random *random)
{
    es_identity dead;
    int reaped = 0;
    int64_t i = es_sweep_next_dead(r, 0, &dead);
    for (; i >= 0; i = es_sweep_next_dead(r, (uint32_t)i + 1, &dead)) {
        uint32_t life = (uint32_t)dead.start_time;
        /* The conductor notes a kill before it sends the signal. All other processes end by leaving. */
        if (life == 0 || life >= ST_LIVES || !atomic_load(&a->killed[life])) {
            st_fault_add(a, ST_EVICTED, st_id(life, 0), -1, i, "it was found dead, but nobody had killed it");
            es_sweep_settle(r, &dead, 0);
            return reaped;
        }
        if (random != NULL && es_random_below(random, 64) == 0)
            st_nap(es_random_below(random, 300000));
        uint32_t leases = st_leases_of(r, (uint32_t)i);
        st_resolve(a, r, life, (uint32_t)i);
        int64_t reopened = es_sweep_settle(r, &dead, 1);
        if (reopened < 0)
            st_fault_add(a, ST_CODE, st_id(life, 0), -1, reopened, "es_sweep_settle");
        atomic_fetch_add_explicit(&a->reaped, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&a->leases_given_back, leases, memory_order_relaxed);
        reaped++;
    }
    if (i != ES_EMPTY && i != ES_UNSURE)
        st_fault_add(a, ST_CODE, 0, -1, i, "es_sweep_next_dead");
    return reaped == 0 && i == ES_UNSURE ? -1 : reaped;
}

static void sweep(learner *l)
{
    st_at(l->actor, ST_SWEEPING);
    st_sweep(l->actor->a, l->actor->r, &l->actor->random);
}

uint32_t st_read_batch(const st_world *w, es_ring *r, uint64_t batch, const es_snapshot *snap, uint64_t *ids)
{
    uint8_t mask[ST_BATCH];
    uint32_t n = 0;
    int64_t length = es_api_committed_mask(r, batch, snap->round, mask);
    if (length != (int64_t)snap->length)
        st_fault_add(w->account, ST_CODE, 0, (int64_t)batch, length, "a lease's mask and length differ");
    for (uint64_t i = 0; i < r->map.batch_size; i++) {
        if (!mask[i])
            continue;
        if (!es_sample_read(&r->map, batch * r->map.batch_size + i, &ids[n]))
            st_fault_add(w->account, ST_TORN, ids[n],
                         (int64_t)(snap->round * r->map.capacity + batch * r->map.batch_size + i), 0,
                         "its bytes do not belong together");
        n++;
    }
    return n;
}

/* Notes the time since the last take of any process, unless a process was stopped meanwhile. */
static void note_gap(st_account *a)
{
    uint64_t now = es_clock_ns(), before = atomic_exchange(&a->last_take_ns, now);
    if (!atomic_load(&a->active) || before == 0 || before >= now)
        return;
    es_counter_raise(&a->gap_any_ns, now - before);
    uint64_t calm = atomic_load(&a->calm_ns), since = before > calm ? before : calm;
    if (atomic_load(&a->stopped) != 0 || since >= now || now - since <= es_counter_get(&a->gap_ns))
        return;
    es_counter_raise(&a->gap_ns, now - since);
    atomic_store(&a->gap_at_ns, now);
}

/* Waits for a free journal entry. The conductor frees them. */
static st_entry *free_entry(learner *l)
{
    st_account *a = l->actor->a;
    for (;; l->next_entry++) {
        st_entry *e = &a->entry[l->actor->slot][l->next_entry % ST_ENTRIES];
        if (atomic_load_explicit(&e->state, memory_order_acquire) == ST_ENTRY_FREE)
            return e;
        if (l->next_entry % ST_ENTRIES == 0)
            sched_yield();
    }
}

static void keep(learner *l, uint64_t batch, const es_snapshot *snap)
{
    st_actor *actor = l->actor;
    note_gap(actor->a);
    if (snap->length < actor->w->config.batch_size)
        es_counter_add(&actor->a->partials, 1);
    st_at(actor, ST_READING);
    st_entry *e = free_entry(l);
    l->next_entry++;
    e->life = actor->life;
    e->owner = atomic_load_explicit(&actor->proc->owner, memory_order_relaxed);
    e->batch = batch;
    e->round = snap->round;
    e->n = st_read_batch(actor->w, actor->r, batch, snap, e->ids);
    if (es_random_below(&actor->random, 48) == 0) {
        st_at(actor, ST_GIVING_BACK);
        int rc = es_api_give_back(actor->r, batch, snap->round);
        if (rc != ES_OK)
            code_fault(actor, rc, "es_api_give_back");
        es_counter_add(&actor->a->undone_takes, 1);
        return;
    }
    atomic_store_explicit(&e->state, ST_ENTRY_PENDING, memory_order_release);
    l->held[l->num_held++] = (held){batch, *snap, e};
}

/* Reads the batch again and compares. No process may write to a leased batch. */
static void verify_again(learner *l, const held *h)
{
    uint64_t ids[ST_BATCH];
    st_at(l->actor, ST_READING);
    uint32_t n = st_read_batch(l->actor->w, l->actor->r, h->batch, &h->snap, ids);
    for (uint32_t i = 0; i < n && i < h->entry->n; i++)
        if (ids[i] != h->entry->ids[i])
            st_fault_add(l->actor->a, ST_TORN, ids[i], (int64_t)h->batch, (int64_t)h->entry->ids[i],
                         "it changed while it was leased");
}

static void release_one(learner *l, uint32_t which)
{
    held h = l->held[which];
    l->held[which] = l->held[--l->num_held];
    if (es_random_below(&l->actor->random, l->actor->w->config.sample_bytes > 10000 ? 8 : 2) == 0)
        verify_again(l, &h);
    st_at(l->actor, ST_RELEASING);
    int rc = es_api_release(l->actor->r, h.batch, h.snap.round);
    if (rc != ES_OK)
        code_fault(l->actor, rc, "es_api_release");
    atomic_store_explicit(&h.entry->state, ST_ENTRY_RELEASED, memory_order_release);
}

static void release_all(learner *l)
{
    while (l->num_held > 0)
        release_one(l, es_random_below(&l->actor->random, l->num_held));
}

static void dwell(learner *l)
{
    if (es_random_below(&l->actor->random, 16) != 0)
        return;
    st_at(l->actor, ST_HOLDING);
    st_nap(es_random_below(&l->actor->random, 1000000));
}

/* Leaves. es_api_detach() releases what is still held. */
static void leave(learner *l)
{
    if (es_random_below(&l->actor->random, 2) == 0)
        release_all(l);
    st_detach(l->actor);
    for (uint32_t i = 0; i < l->num_held; i++)
        atomic_store_explicit(&l->held[i].entry->state, ST_ENTRY_RELEASED, memory_order_release);
}

bool st_slept_through(st_actor *actor)
{
    st_nap(500000000); /* so that the conductor has time to note that it had not run */
    uint64_t still = atomic_load(&actor->a->stood_still_ns);
    return still == 0 || es_clock_ns() - still > actor->w->slice_ns + UINT64_C(1000000000);
}

/* Takes at once if there is a batch. If not, it releases all its leases before it waits, because others may wait for
 * their space. */
static int64_t take(learner *l, es_snapshot *snap)
{
    st_actor *actor = l->actor;
    st_at(actor, ST_LOOKING);
    int64_t batch = es_api_take(actor->r, 0, 0, snap);
    if (snap->sweep_due)
        sweep(l);
    if (batch >= 0 || batch == ES_ENDED)
        return batch;
    release_all(l);
    bool partial = actor->w->config.partial && es_random_below(&actor->random, 16) == 0;
    st_at(actor, ST_PARKING);
    uint64_t start = es_clock_ns();
    batch = es_api_take(actor->r, partial ? ES_TAKE_ANY_ORDER | ES_TAKE_SHORT : 0, actor->w->slice_ns, snap);
    /* In a calm round no learner sleeps through the commit that completes a batch. A commit that completes none wakes
     * nobody. */
    if (batch >= 0 && snap->length == actor->w->config.batch_size && st_calm(&actor->w->config) &&
        es_clock_ns() - start >= actor->w->slice_ns && st_slept_through(actor))
        st_fault_add(actor->a, ST_SLEPT, st_id(actor->life, 0), batch, (int64_t)snap->round,
                     "a learner was not woken when a batch was complete");
    if (batch < 0 && snap->sweep_due)
        sweep(l);
    return batch;
}

void st_learn(st_actor *actor)
{
    uint64_t batches = actor->w->config.num_batches;
    learner l = {.actor = actor, .max_held = batches < MAX_HELD ? (uint32_t)batches : MAX_HELD};
    l.max_held = 1 + es_random_below(&actor->random, l.max_held);
    bool settled = false; /* the stream has ended, and a sweep after that found nobody dead */
    st_attach(actor, ES_ROLE_LEARNER);
    sweep(&l);
    while (atomic_load_explicit(&actor->a->stage, memory_order_relaxed) != ST_ALL_LEAVE) {
        es_snapshot snap;
        int64_t batch = take(&l, &snap);
        if (batch >= 0) {
            keep(&l, (uint64_t)batch, &snap);
            dwell(&l);
        } else if (batch == ES_ENDED) {
            release_all(&l);
            if (settled)
                break;
        } else if (batch != ES_EMPTY && batch != ES_TIMEOUT && batch != -EINTR) {
            code_fault(actor, batch, "es_api_take");
        }
        /* Batches that the dead had leased can be taken again after this. */
        settled = batch == ES_ENDED && st_sweep(actor->a, actor->r, &actor->random) == 0;
        while (l.num_held >= l.max_held)
            release_one(&l, es_random_below(&actor->random, l.num_held));
        if (es_random_below(&actor->random, 4096) == 0)
            break; /* leaves by itself; the conductor starts another */
    }
    leave(&l);
}
