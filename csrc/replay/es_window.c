#include "replay/es_window.h"

/* --- what a step means to its stream --------------------------------------------- */

static uint32_t event_of(uint32_t flags)
{
    if (flags & ES_STEP_FINAL)
        return flags & ES_STEP_TERMINATED ? ES_EVENT_FINAL_TERMINATED : ES_EVENT_FINAL;
    if (flags & ES_STEP_TERMINATED)
        return ES_EVENT_TERMINATED;
    return flags & (ES_STEP_TRUNCATED | ES_STEP_LOST) ? ES_EVENT_CUT : ES_EVENT_GOES_ON;
}

static bool is_final(uint32_t event)
{
    return event == ES_EVENT_FINAL || event == ES_EVENT_FINAL_TERMINATED;
}

es_arrival es_window_arrival(const es_steps *s, const es_step_head *head, uint32_t step)
{
    es_arrival a = {.left = {.last = ES_STEPS_NONE, .before_last = ES_STEPS_NONE},
                    .own = {.last = step, .before_last = ES_STEPS_NONE}};
    bool is_late = step != ES_STEPS_NONE && s->links[step].newer != 0;
    uint32_t before =
        step == ES_STEPS_NONE ? es_steps_last(s, head->stream, head->environment) : es_steps_older(s, step);
    a.own.event = event_of(head->flags);
    a.own.index = head->index;
    a.own.run = 1;
    if (before == ES_STEPS_NONE || is_late || head->number == 0 || s->links[before].number != head->number - 1)
        return a;
    const es_step_record *record = &s->store->steps[before];
    uint32_t run = es_steps_run(s, before), keep = s->store->keep;
    if (s->streams.episodes[s->episode_of[before]].number == head->episode) {
        a.own.run = run + 1 < keep ? run + 1 : keep;
        a.own.before_last = before;
    } else if (event_of(es_record_flags(record->word)) == ES_EVENT_GOES_ON) {
        a.left = (es_ending){before, ES_EVENT_LEFT, record->index, run, ES_STEPS_NONE};
    }
    return a;
}

/* --- what it completes ----------------------------------------------------------- */

/* Items with lengths from most down to least. */
typedef struct lengths {
    uint32_t most, least;
} lengths;

static uint32_t count(lengths l)
{
    return l.most >= l.least ? l.most - l.least + 1 : 0;
}

/* Of transitions over several steps. Those that bootstrap have one step more: the one that follows. */
static void transitions(const es_item_config *item, const es_ending *e, lengths *follow, lengths *end)
{
    uint32_t n = item->length, most = e->run;
    if (e->run <= e->index) /* the episode's first steps are gone: a stack must not take others in their place */
        most = e->run > item->before ? e->run - item->before : 0;
    *follow = *end = (lengths){0, 1};
    switch (e->event) {
    case ES_EVENT_GOES_ON:
    case ES_EVENT_TERMINATED:
        *follow = (lengths){n + 1, n + 1};
        break;
    case ES_EVENT_CUT:
    case ES_EVENT_FINAL:
    case ES_EVENT_FINAL_TERMINATED:
        *follow = (lengths){n + 1, 2};
        break;
    case ES_EVENT_LEFT:
        *follow = (lengths){n, 2};
        break;
    }
    if (e->event == ES_EVENT_TERMINATED)
        *end = (lengths){n, 1};
    follow->most = follow->most < most ? follow->most : most;
    end->most = end->most < most ? end->most : most;
}

static es_window transition(const es_item_config *item, const es_ending *e, uint32_t i)
{
    lengths follow, end;
    transitions(item, e, &follow, &end);
    uint32_t bootstrapping = count(follow);
    es_window w = {.last = e->last};
    if (i < bootstrapping) {
        w.length = follow.most - i;
        w.flags = ES_WINDOW_NEXT | (e->event == ES_EVENT_FINAL_TERMINATED ? ES_WINDOW_TERMINATED : 0);
    } else {
        w.length = end.most - (i - bootstrapping);
        w.flags = ES_WINDOW_TERMINATED;
    }
    w.before = e->run - w.length < item->before ? e->run - w.length : item->before;
    return w;
}

/* Of sequences: one that ends in the rhythm of its table, and one with what is left of the episode. 0: there is none. */
static void sequences(const es_item_config *item, const es_ending *e, uint32_t *whole, uint32_t *rest)
{
    uint32_t length = item->length, run = e->run;
    uint64_t so_far = (uint64_t)e->index + 1, end = 0, start = 0;
    *whole = *rest = 0;
    if (is_final(e->event)) /* what the episode ends with is no part of them */
        so_far--, run--;
    if (e->event == ES_EVENT_NONE || run == 0)
        return;
    if (so_far >= length) {
        end = length + (so_far - length) / item->period * item->period;
        start = end - length + item->period;
    }
    if (end == so_far && end > 0 && run >= length && !is_final(e->event) && e->event != ES_EVENT_LEFT)
        *whole = length;
    if (item->padded && e->event != ES_EVENT_GOES_ON && so_far > end && run >= so_far - start)
        *rest = (uint32_t)(so_far - start);
}

static uint32_t count_at(const es_item_config *item, const es_ending *e)
{
    lengths follow, end;
    uint32_t whole, rest;
    switch (item->kind) {
    case ES_ITEM_N_STEP:
        transitions(item, e, &follow, &end);
        return count(follow) + count(end);
    case ES_ITEM_SEQUENCE:
        sequences(item, e, &whole, &rest);
        return (uint32_t)(whole > 0) + (uint32_t)(rest > 0);
    default:
        return 0;
    }
}

static es_window nth_at(const es_item_config *item, const es_ending *e, uint32_t i)
{
    uint32_t whole, rest;
    if (item->kind == ES_ITEM_N_STEP)
        return transition(item, e, i);
    sequences(item, e, &whole, &rest);
    return (es_window){.last = is_final(e->event) ? e->before_last : e->last,
                       .length = i == 0 && whole > 0 ? whole : rest};
}

uint32_t es_window_count(const es_item_config *item, const es_arrival *arrival)
{
    return count_at(item, &arrival->left) + count_at(item, &arrival->own);
}

es_window es_window_nth(const es_item_config *item, const es_arrival *arrival, uint32_t i)
{
    uint32_t left = count_at(item, &arrival->left);
    return i < left ? nth_at(item, &arrival->left, i) : nth_at(item, &arrival->own, i - left);
}

bool es_window_is_possible(const es_item_config *item, const es_steps *s, const es_window *w)
{
    uint32_t most = item->kind == ES_ITEM_N_STEP ? item->length + 1 : item->length;
    bool n_step = item->kind == ES_ITEM_N_STEP, next = w->flags & ES_WINDOW_NEXT;
    return w->length >= 1 && w->length <= most && w->before <= item->before &&
           w->flags <= (n_step ? (ES_WINDOW_NEXT | ES_WINDOW_TERMINATED) : 0) && (!next || w->length >= 2) &&
           (!n_step || next || w->length <= item->length) &&
           (item->kind == ES_ITEM_STEP ||
            es_steps_are_there(s, w->last, (uint64_t)w->length + w->before, item->kind != ES_ITEM_EXPLICIT));
}
