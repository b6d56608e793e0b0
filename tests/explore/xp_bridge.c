/* A client on another host and the bridges that serve it in turn, as the ring sees them.
 *
 * The client has samples with numbers 0, 1, ... Each time it connects to a bridge, it asks which samples the ring has
 * and sends the rest. No number may be delivered twice, and no acknowledged number may be missing, whichever process
 * dies.
 */
#include "xp_play.h"

#include <string.h>

#define ASKS 3 /* attempts at one bridge while another bridge still has the client's entry */

static const uint8_t CLIENT[16] = "the only client";

void xp_bridge(int t)
{
    xp_producer(t);
    if (es_bridge_begin(xp_theatre.of[t]) != ES_OK)
        xp_die("cannot be a bridge");
}

void xp_client(int samples)
{
    xp_account.client_first = xp_account.next;
    xp_account.client_samples = samples;
    for (int i = 0; i < samples; i++)
        xp_account.sent[xp_account.next++] = SENT_MAYBE;
}

void xp_other_client(int t)
{
    if (es_bridge_open(xp_theatre.of[t], (const uint8_t *)"another client..", 0, "other") != 0)
        xp_die("the first entry is not free");
}

void xp_let_go(void)
{
    if (es_bridge_leave(xp_theatre.of[xp_me()], 0, 0) != ES_OK)
        xp_violation("a bridge lost its client");
}

static int64_t come(es_ring *r)
{
    int64_t remote = ES_UNSURE;
    for (int n = 0; n < ASKS && remote == ES_UNSURE; n++) {
        remote = es_bridge_open(r, CLIENT, (uint64_t)xp_account.client_told, "client");
        if (remote == ES_UNSURE)
            xp_sweep();
    }
    return remote;
}

/* Tells the client which samples the ring has, as the bridge counts them. */
static int64_t acknowledge(es_ring *r, uint32_t remote)
{
    int64_t committed = es_bridge_committed(r, remote);
    if (committed < xp_account.client_told)
        xp_violation("a bridge counts fewer samples than the client was told");
    for (; xp_account.client_told < committed && xp_account.client_told < xp_account.client_samples;
         xp_account.client_told++)
        xp_account.sent[xp_account.client_first + xp_account.client_told] = SENT_OK;
    return committed;
}

void xp_serve(int most, uint64_t timeout_ns, enum xp_parting parting)
{
    es_ring *r = xp_theatre.of[xp_me()];
    int64_t remote = come(r);
    if (remote < 0)
        return;
    if (xp_account.client_came && !es_bridge_known(r, (uint32_t)remote))
        xp_violation("a client was forgotten");
    xp_account.client_came = true;
    int64_t number = acknowledge(r, (uint32_t)remote), rc = 1;
    uint64_t values[XP_IDS];
    for (int i = 0; i < xp_account.client_samples; i++)
        values[i] = (uint64_t)(xp_account.client_first + i);
    while (rc > 0 && number < xp_account.client_samples) {
        int64_t n = xp_account.client_samples - number;
        rc = es_bridge_send(r, (uint32_t)remote, values + number, 0, (uint64_t)(n < most ? n : most), 0,
                            es_sample_version(values[number], (uint64_t)n), timeout_ns);
        int64_t now = acknowledge(r, (uint32_t)remote);
        if (now != number + (rc > 0 ? rc : 0))
            xp_violation("a bridge sent a different number of samples than it counts");
        number = now;
    }
    if (parting == XP_LEAVES_CLIENT && es_bridge_leave(r, (uint32_t)remote, 1) != ES_OK)
        xp_violation("a bridge lost its client");
    if (parting == XP_LEAVES_RING)
        xp_leave();
}

void xp_check_client(void)
{
    es_remote_info info = {.committed = 0};
    uint32_t i = 0;
    while (es_monitor_next_remote(xp_theatre.producer, i, &info) >= 0 && strcmp(info.peer, "client") != 0)
        i = info.index + 1;
    if (xp_account.client_samples == 0 || strcmp(info.peer, "client") != 0)
        return;
    if (info.state == ES_REMOTE_HERE && xp_theatre.producer->map.owners[info.bridge].state != ES_OWNER_LIVE)
        xp_violation("a dead bridge still has its client");
    for (int n = 0; n < xp_account.client_samples; n++) {
        bool came = xp_account.num_got[xp_account.client_first + n] > 0;
        if (came != ((uint64_t)n < info.committed))
            xp_violation(came ? "a sample was delivered that the client would send again"
                              : "a sample is missing that the client would not send again");
    }
}
