#define _GNU_SOURCE
#include "es_parts.h"

#include <signal.h>

void full_ring(es_world *w)
{
    world_send_n(w, w->geo.batch_size * w->geo.num_batches);
}

void close_the_ring(es_world *w)
{
    CHECK_EQ(es_api_close(w->l), ES_OK);
    /* As if it is closed in an hour: no process may give up waiting because this machine is slow. */
    atomic_store(&w->l->map.hdr->closed_ns, es_clock_ns() + UINT64_C(3600000000000));
}

void park_a_producer(es_world *w)
{
    world_sleeper(w, ES_ROLE_PRODUCER);
}

void fill_and_park_a_producer(es_world *w)
{
    while (world_send(w) == ES_OK)
        ;
    world_sleeper(w, ES_ROLE_PRODUCER);
}

void close_and_park_a_learner(es_world *w)
{
    close_the_ring(w);
    world_sleeper(w, ES_ROLE_LEARNER);
}

void interrupt(es_world *w)
{
    kill(w->tracee, SIGUSR1);
}

void take_before(es_world *w)
{
    CHECK(world_tracee_take(w, 0, 0) > 0);
}

int64_t give_it_back(es_world *w)
{
    return es_api_give_back(w->mine, w->side->takes[0].batch, w->side->takes[0].round);
}

static void on_signal(int number)
{
    (void)number;
}

void expect_a_signal(es_world *w)
{
    (void)w;
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal}, NULL);
}
