/* A learner on another host and the bridges that serve it in turn, as the ring sees them.
 *
 * The bridge takes a batch and sends it. When the learner says that it is done with it, the bridge releases it. If the
 * bridge dies before that, whoever reaps it gives the batch back. Batches are known by their numbers: a bridge that takes
 * one which the learner has had already does not send it again. So a number may never stand for other samples.
 */
#include "xp_play.h"

void xp_learns(int t)
{
    xp_learner(t);
    if (es_bridge_learn(xp_here()->of[t]) != ES_OK)
        xp_die("cannot take batches for other hosts");
}

static void check_number(const xp_lease *lease)
{
    uint64_t number = lease->snap.round * xp_here()->learner->map.num_batches + (uint64_t)lease->batch;
    uint32_t ids = 0;
    for (int i = 0; i < lease->n; i++)
        ids |= UINT32_C(1) << lease->ids[i];
    for (int i = 0; i < xp_account.num_had; i++)
        if (xp_account.had[i].number == number) {
            if (xp_account.had[i].ids != ids)
                xp_violation("a batch came again with other samples than before");
            return;
        }
    if (xp_account.num_had == XP_MAX_HAD)
        xp_die("more batches than the learner keeps in mind");
    xp_account.had[xp_account.num_had].number = number;
    xp_account.had[xp_account.num_had++].ids = ids;
}

static bool get(xp_lease *lease)
{
    if (!xp_lease_take(lease, 0, XP_NOW))
        return false;
    xp_lease_read(lease);
    check_number(lease);
    return true;
}

void xp_learner_gets(int batches)
{
    xp_lease lease;
    while (batches-- > 0 && get(&lease))
        xp_lease_release(&lease);
}

void xp_learner_keeps(void)
{
    xp_lease lease;
    get(&lease);
}

void xp_learner_shares(void)
{
    xp_lease first, second;
    if (!get(&first))
        return;
    if (xp_lease_take(&second, 0, XP_NOW))
        xp_lease_give_back(&second);
    xp_lease_release(&first);
}
