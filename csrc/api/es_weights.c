/* Versions of weights: checks on entry, then es_version.c. */
#include "api/es_api.h"
#include "api/es_call.h"
#include "ring/es_version.h"

/* As es_call_enter(), of a segment that has weights. */
static int enter(es_ring *r)
{
    return r->map.weights == NULL ? -EINVAL : es_call_enter(r);
}

static bool closed(const es_ring *r)
{
    /* SYNC closed: acquire. */
    return atomic_load_explicit(&r->map.hdr->closed, memory_order_acquire) != 0;
}

int64_t es_weights_publish_as(es_ring *r, uint64_t number, void **leaves)
{
    int64_t rc = enter(r);
    if (rc != ES_OK)
        return rc;
    rc = closed(r) ? ES_ECLOSED : es_version_publish(&r->map, number, leaves);
    es_call_leave(r);
    return rc;
}

int64_t es_weights_publish(es_ring *r, void **leaves)
{
    return es_weights_publish_as(r, 0, leaves);
}

int64_t es_weights_latest(const es_ring *r)
{
    return r->map.weights == NULL ? -EINVAL : (int64_t)es_version_number(es_version_latest(&r->map));
}

int64_t es_weights_copy(es_ring *r, void **leaves)
{
    int64_t rc = enter(r);
    if (rc != ES_OK)
        return rc;
    uint64_t latest = es_version_latest(&r->map);
    rc = latest == 0 ? ES_NOTHING : es_version_copy(&r->map, latest, leaves);
    es_call_leave(r);
    return rc == ES_OK ? (int64_t)es_version_number(latest) : rc;
}

int64_t es_weights_lease(es_ring *r, uint64_t *number, uint64_t *slot)
{
    int64_t rc = enter(r);
    if (rc != ES_OK)
        return rc;
    uint64_t latest = 0;
    rc = es_version_lease(&r->map, r->me, &latest);
    *number = es_version_number(latest);
    *slot = es_version_slot(latest);
    es_call_leave(r);
    return rc;
}

int es_weights_release(es_ring *r, int64_t lease)
{
    if (r->map.weights == NULL)
        return -EINVAL;
    int rc = es_call_enter_to_end(r);
    if (rc != ES_OK)
        return rc;
    rc = es_version_release(&r->map, r->me, lease);
    es_call_leave(r);
    return rc;
}

int es_weights_wait(es_ring *r, uint64_t number, uint64_t timeout_ns)
{
    int rc = enter(r);
    if (rc != ES_OK)
        return rc;
    rc = es_version_wait(r, number, timeout_ns);
    /* The flag first: a version that came just before the close counts. */
    if (closed(r) && es_version_number(es_version_latest(&r->map)) < number)
        rc = ES_ECLOSED;
    es_call_leave(r);
    return rc;
}

int64_t es_weights_holder(const es_ring *r, uint32_t lease)
{
    return lease < r->map.num_leases ? es_version_holder(&r->map, lease) : -EINVAL;
}

uint64_t es_weights_word(const es_ring *r)
{
    return r->map.weights == NULL ? 0 : (uint64_t)((uint8_t *)&r->map.weights->latest - r->map.base);
}
