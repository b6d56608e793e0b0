#include "replay/es_own.h"

#include <stdlib.h>
#include <string.h>

#include "replay/es_insert.h"

#define FIRST_ROOM 16u

/* --- environments ------------------------------------------------------------------ */

/* Makes room for so many: ES_OK, -ENOMEM, or ES_EENVIRONMENT. */
static int reserve(es_own *own, uint64_t n)
{
    if (n <= own->num_environments)
        return ES_OK;
    if (n > ES_MAX_ENVIRONMENTS)
        return ES_EENVIRONMENT;
    uint64_t room = own->num_environments == 0 ? FIRST_ROOM : own->num_environments;
    while (room < n)
        room *= 2;
    es_environment *grown = realloc(own->environments, room * sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    memset(grown + own->num_environments, 0, (room - own->num_environments) * sizeof *grown);
    own->environments = grown;
    own->num_environments = (uint32_t)room;
    return ES_OK;
}

int es_own_init(es_own *own, const es_tables *m, uint64_t stream)
{
    uint64_t largest = 1;
    for (uint32_t l = 0; l < m->store.num_leaves; l++)
        if (m->store.leaves[l].size > largest)
            largest = m->store.leaves[l].size;
    own->stream = stream;
    own->zeros = calloc(1, largest);
    return own->zeros == NULL ? -ENOMEM : reserve(own, 1);
}

void es_own_free(es_own *own)
{
    free(own->zeros);
    free(own->environments);
}

static void end_episode(es_environment *e)
{
    e->episode += e->index > 0;
    e->index = 0;
    e->resets = 0;
}

void es_own_end_all(es_own *own)
{
    for (uint32_t i = 0; i < own->num_environments; i++)
        end_episode(&own->environments[i]);
}

void es_own_end_some(es_own *own, const int64_t *environments, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (environments[i] >= 0 && environments[i] < own->num_environments)
            end_episode(&own->environments[environments[i]]);
}

int es_own_go_on(es_own *own, uint64_t stream, const es_environment *environments, uint64_t n)
{
    int code = reserve(own, n);
    if (code != ES_OK)
        return code;
    own->stream = stream;
    for (uint64_t i = 0; i < n; i++) {
        own->environments[i] = environments[i];
        own->environments[i].named = 0;
    }
    return ES_OK;
}

/* --- one step ------------------------------------------------------------------------ */

static es_step_head head_of(const es_own *own, uint32_t environment, uint32_t flags)
{
    const es_environment *e = &own->environments[environment];
    return (es_step_head){.stream = own->stream,
                          .number = e->number,
                          .version = own->version,
                          .index = e->index,
                          .environment = environment,
                          .episode = e->episode,
                          .flags = flags};
}

static int add(es_own *own, es_tables *m, uint32_t environment, const void *const *leaves, uint64_t i, uint32_t flags,
               const double *priorities, es_trouble *why)
{
    es_environment *e = &own->environments[environment];
    es_step_head head = head_of(own, environment, flags);
    int code = es_insert_step(m, &head, leaves, i, priorities, NULL, why);
    if (code != ES_OK)
        return code;
    e->number++;
    e->index++;
    e->resets = 0;
    if (flags & (ES_STEP_TERMINATED | ES_STEP_TRUNCATED | ES_STEP_LOST))
        end_episode(e);
    return ES_OK;
}

static int add_last(es_own *own, es_tables *m, uint32_t environment, const void *const *leaves, uint64_t i,
                    const void *const *final, uint32_t flags, const double *priorities, es_trouble *why)
{
    es_step_head head = head_of(own, environment, 0);
    int code = es_insert_can_end(m, &head, priorities, why);
    if (code == ES_OK)
        code = add(own, m, environment, leaves, i, 0, priorities, why);
    return code == ES_OK ? add(own, m, environment, final, 0, flags | ES_STEP_FINAL, priorities, why) : code;
}

int es_own_add(es_own *own, es_tables *m, const void *const *leaves, uint32_t flags, const double *priorities,
               es_trouble *why)
{
    why->index = 0;
    return add(own, m, 0, leaves, 0, flags, priorities, why);
}

int es_own_add_last(es_own *own, es_tables *m, const void *const *leaves, const void *const *final, uint32_t flags,
                    const double *priorities, es_trouble *why)
{
    why->index = 0;
    return add_last(own, m, 0, leaves, 0, final, flags, priorities, why);
}

/* --- several -------------------------------------------------------------------------- */

/* The priorities of a step that has none: each table's highest. */
static void highest(double *priorities)
{
    for (uint32_t t = 0; t < ES_MAX_TABLES; t++)
        priorities[t] = -1;
}

int64_t es_own_extend(es_own *own, es_tables *m, const void *const *leaves, uint64_t n, const uint8_t *flags,
                      const double *priorities, int *error, es_trouble *why)
{
    double none[ES_MAX_TABLES];
    highest(none);
    for (uint64_t i = 0; i < n; i++) {
        const double *mine = priorities == NULL ? none : priorities + i * m->num_tables;
        why->index = i;
        *error = add(own, m, 0, leaves, i, flags == NULL ? 0 : flags[i], mine, why);
        if (*error != ES_OK)
            return (int64_t)i;
    }
    *error = ES_OK;
    return (int64_t)n;
}

static uint32_t ends_of(const es_vector *v, uint64_t i)
{
    return (v->terminated != NULL && v->terminated[i] ? ES_STEP_TERMINATED : 0) |
           (v->truncated != NULL && v->truncated[i] ? ES_STEP_TRUNCATED : 0);
}

static uint32_t environment_of(const es_vector *v, uint64_t i)
{
    return (uint32_t)(v->environments == NULL ? (int64_t)i : v->environments[i]);
}

/* Whether no environment comes twice; otherwise *at is where. */
static bool are_different(es_own *own, const es_vector *v, uint64_t *at)
{
    uint64_t n = 0;
    for (; n < v->n && !own->environments[v->environments[n]].named; n++)
        own->environments[v->environments[n]].named = 1;
    for (uint64_t i = 0; i < n; i++)
        own->environments[v->environments[i]].named = 0;
    *at = n;
    return n == v->n;
}

static int check(es_own *own, const es_vector *v, uint64_t first, es_trouble *why)
{
    uint64_t count = v->environments == NULL ? v->n : 0;
    for (why->index = 0; v->environments != NULL && why->index < v->n; why->index++) {
        int64_t environment = v->environments[why->index];
        if (environment < 0 || environment >= ES_MAX_ENVIRONMENTS)
            return ES_EENVIRONMENT;
        if ((uint64_t)environment >= count)
            count = (uint64_t)environment + 1;
    }
    int code = reserve(own, count);
    if (code != ES_OK)
        return code;
    if (v->environments != NULL && !are_different(own, v, &why->index))
        return ES_EENVIRONMENT;
    for (why->index = first; v->skips_resets && why->index < v->n; why->index++)
        if (own->environments[environment_of(v, why->index)].resets && ends_of(v, why->index))
            return ES_ERESET;
    return ES_OK;
}

static int add_row(es_own *own, es_tables *m, const es_vector *v, uint64_t i, const double *priorities, es_trouble *why)
{
    const void *few[16], ** final = few;
    const uint32_t num_leaves = m->store.num_leaves, environment = environment_of(v, i), ends = ends_of(v, i);
    if (v->finals == NULL || !ends)
        return add(own, m, environment, v->leaves, i, ends, priorities, why);
    if (num_leaves > sizeof few / sizeof *few && (final = malloc(num_leaves * sizeof *final)) == NULL)
        return -ENOMEM;
    for (uint32_t l = 0; l < num_leaves; l++) {
        const void *given = v->finals[i * num_leaves + l];
        final[l] = given == NULL ? own->zeros : given;
    }
    int code = add_last(own, m, environment, v->leaves, i, final, ends, priorities, why);
    if (final != few)
        free(final);
    return code;
}

int64_t es_own_add_vector(es_own *own, es_tables *m, const es_vector *v, uint64_t first, int *error, es_trouble *why)
{
    double none[ES_MAX_TABLES];
    highest(none);
    *error = check(own, v, first, why);
    if (*error != ES_OK)
        return (int64_t)first;
    for (uint64_t i = first; i < v->n; i++) {
        es_environment *e = &own->environments[environment_of(v, i)];
        if (v->skips_resets && e->resets) {
            e->resets = 0;
            continue;
        }
        why->index = i;
        *error = add_row(own, m, v, i, v->priorities == NULL ? none : v->priorities + i * m->num_tables, why);
        if (*error != ES_OK)
            return (int64_t)i;
        e->resets = v->skips_resets && ends_of(v, i);
    }
    return (int64_t)v->n;
}
