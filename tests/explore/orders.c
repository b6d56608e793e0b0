/* Weakens every memory order of the core, one at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "es_hook.h"
#include "xp.h"

#undef atomic_load
#undef atomic_load_explicit

extern hook_site __start_hook_sites[], __stop_hook_sites[];

#define MAX_ORDERS 400

static const char *const order_names[] = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};

/* One operation in the source and one weaker order for it. Several files may contain the compiled operation. */
typedef struct order {
    const hook_site *site;
    int to, number; /* number: counts equal operations in a function */
} order;

static order orders[MAX_ORDERS];
static int num_orders;
static bool (*reaches)[MAX_ORDERS]; /* by scene; shared */

static bool same_place(const hook_site *a, const hook_site *b)
{
    return a->line == b->line && strcmp(a->file, b->file) == 0 && strcmp(a->op, b->op) == 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static void add(const hook_site *site, int to)
{
    for (int i = 0; i < num_orders; i++)
        if (same_place(orders[i].site, site) && orders[i].to == to)
            return;
    if (num_orders == MAX_ORDERS)
        xp_die("the list of orders is too short");
    orders[num_orders++] = (order){site, to, 0};
}

static void add_weaker(const hook_site *site)
{
    bool rmw = strcmp(site->op, "load") != 0 && strcmp(site->op, "store") != 0;
    switch (site->order) {
    case memory_order_seq_cst:
        add(site, strcmp(site->op, "load") == 0    ? memory_order_acquire
                  : strcmp(site->op, "store") == 0 ? memory_order_release
                                                   : memory_order_acq_rel);
        break;
    case memory_order_acq_rel:
        add(site, memory_order_acquire);
        add(site, memory_order_release);
        break;
    case memory_order_acquire:
    case memory_order_release:
        add(site, memory_order_relaxed);
        break;
    default:
        break;
    }
    if (rmw && strcmp(site->op, "fence") == 0)
        add(site, memory_order_relaxed);
}

static int by_place(const void *a, const void *b)
{
    const order *x = a, *y = b;
    int files = strcmp(base_name(x->site->file), base_name(y->site->file));
    return files != 0 ? files : x->site->line != y->site->line ? x->site->line - y->site->line : x->to - y->to;
}

static void weaken(const order *o, bool on)
{
    for (hook_site *s = __start_hook_sites; s < __stop_hook_sites; s++)
        if (same_place(s, o->site))
            s->now = on ? o->to : s->order;
}

static void forget_reached(void)
{
    for (hook_site *s = __start_hook_sites; s < __stop_hook_sites; s++)
        s->reached = false;
}

static bool was_reached(const order *o)
{
    for (hook_site *s = __start_hook_sites; s < __stop_hook_sites; s++)
        if (same_place(s, o->site) && s->reached)
            return true;
    return false;
}

/* How each scene is tried: first all executions near the usual one, then random ones far from it. */
static const xp_budget tries[] = {
    {.memory = XP_C11, .preemptions = 1, .stale = 1, .kills = 0, .executions = 3000},
    {.memory = XP_C11, .preemptions = 30, .stale = 6, .kills = 0, .executions = 4000, .seed = 1},
    {.memory = XP_C11, .preemptions = 30, .stale = 6, .kills = 1, .executions = 4000, .seed = 100001},
};
#define NUM_TRIES ((int)(sizeof tries / sizeof *tries))

static void find_reached_by(int scene, void *arg)
{
    (void)arg;
    forget_reached();
    for (int i = 0; i < NUM_TRIES; i++) {
        xp_budget b = tries[i];
        b.executions /= 4;
        xp_explore(xp_scene_at(scene), &b);
    }
    for (int o = 0; o < num_orders; o++)
        reaches[scene][o] = was_reached(&orders[o]);
}

/* The key of an order: "function op order->weaker", and a number that counts equal ones in the function. */
static void name_of(int o, char *name, size_t size)
{
    const order *it = &orders[o];
    snprintf(name, size, "%s %s %s->%s %d", it->site->function, it->site->op, order_names[it->site->order],
             order_names[it->to], it->number);
}

static int named(const char *wanted)
{
    char name[160];
    for (int o = 0; o < num_orders; o++) {
        name_of(o, name, sizeof name);
        if (strcmp(name, wanted) == 0)
            return o;
    }
    fprintf(stderr, "explore: known.c lists %s, which the core does not have\n", wanted);
    exit(2);
}

/* Whether a scene is tried for order o. */
static bool concerns(int s, int o)
{
    char name[80];
    if (!reaches[s][o] || xp_scene_at(s)->orders_of == NULL)
        return reaches[s][o];
    snprintf(name, sizeof name, " %s ", orders[o].site->function);
    return strstr(xp_scene_at(s)->orders_of, name) != NULL;
}

/* The violation that the scenes which reach one of these orders find, or NULL. */
static const char *explore_all(const bool *weakened, bool all, const char **scene)
{
    for (int i = 0; i < NUM_TRIES; i++)
        for (int s = 0; xp_scene_at(s) != NULL; s++) {
            bool comes = false;
            if (all && xp_scene_at(s)->orders_of != NULL)
                continue; /* minutes each, with so many orders weakened */
            for (int o = 0; o < num_orders; o++)
                comes = comes || (weakened[o] && concerns(s, o));
            const char *caught = comes ? xp_explore(xp_scene_at(s), &tries[i]).violation : NULL;
            if (caught != NULL) {
                *scene = xp_scene_at(s)->name;
                return caught;
            }
        }
    return NULL;
}

/* What catches order o, alone or together with all spare ones. o < 0: what catches all spare ones. */
static const char *catch (int o, bool with_spare, const char **scene)
{
    bool weakened[MAX_ORDERS] = {false}, wanted[MAX_ORDERS] = {false};
    if (o >= 0)
        weakened[o] = wanted[o] = true;
    for (const xp_known *k = xp_known_orders; k->name != NULL && with_spare; k++)
        weakened[named(k->name)] = weakened[named(k->name)] || !k->doubled;
    for (int i = 0; i < num_orders; i++)
        if (weakened[i])
            weaken(&orders[i], true);
    const char *caught = explore_all(o >= 0 ? wanted : weakened, o < 0, scene);
    for (int i = 0; i < num_orders; i++)
        if (weakened[i])
            weaken(&orders[i], false);
    return caught;
}

static bool reached_anywhere(int o)
{
    for (int s = 0; xp_scene_at(s) != NULL; s++)
        if (reaches[s][o])
            return true;
    return false;
}

/* Lists all orders that are not relaxed, once for each weaker order. */
static void list_orders(void)
{
    for (const hook_site *s = __start_hook_sites; s < __stop_hook_sites; s++)
        add_weaker(s);
    qsort(orders, (size_t)num_orders, sizeof *orders, by_place);
    for (int i = 0; i < num_orders; i++) {
        orders[i].number = 1;
        for (int j = 0; j < i; j++)
            orders[i].number += strcmp(orders[i].site->function, orders[j].site->function) == 0 &&
                                strcmp(orders[i].site->op, orders[j].site->op) == 0 &&
                                orders[i].site->order == orders[j].site->order && orders[i].to == orders[j].to;
    }
}

enum verdict { CAUGHT, KNOWN, WRONG };

static const xp_known *known_order(const char *name)
{
    for (const xp_known *k = xp_known_orders; k->name != NULL; k++)
        if (strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

static enum verdict try_order(int o)
{
    char name[160];
    const char *scene = "", *what = reached_anywhere(o) ? catch (o, false, &scene) : NULL;
    name_of(o, name, sizeof name);
    const xp_known *known = known_order(name);
    bool lone = known != NULL && known->doubled && what == NULL && catch (o, true, &(const char *){""}) == NULL;
    printf("%-58s ", name);
    if (what != NULL)
        printf("caught%s: %s (%s)\n", known == NULL ? "" : ", although known.c lists it", what, scene);
    else if (known == NULL)
        printf("SURVIVES%s\n", reached_anywhere(o) ? "" : ": no scene reaches it");
    else
        printf("%s: %s\n",
               lone             ? "SURVIVES together with the spare ones"
               : known->doubled ? "doubled"
                                : "spare",
               known->why);
    fflush(stdout);
    if (what != NULL)
        return known == NULL ? CAUGHT : WRONG;
    return known == NULL || lone ? WRONG : KNOWN;
}

static bool spare_ones_together(void)
{
    const char *scene = "", *what = catch (-1, true, &scene);
    printf("all spare ones together: %s%s%s\n", what == NULL ? "nothing breaks" : what, what == NULL ? "" : " in ",
           what == NULL ? "" : scene);
    return what == NULL;
}

/* Shared by the processes that divide the orders between them. */
typedef struct share {
    const char *part;
    _Atomic int verdicts[3];
    _Atomic bool broken; /* the spare orders together break something */
} share;

/* Number 0 stands for all spare orders together, which takes the longest. */
static void try_piece(int piece, void *arg)
{
    share *all = arg;
    char name[160] = "";
    if (piece == 0) {
        if (all->part[0] == '\0' || strcmp(all->part, "together") == 0)
            all->broken = !spare_ones_together();
        return;
    }
    name_of(piece - 1, name, sizeof name);
    if (strstr(name, all->part) != NULL)
        all->verdicts[try_order(piece - 1)]++;
}

bool xp_try_orders(const char *part)
{
    share *all = xp_shared_memory(sizeof *all);
    all->part = part;
    list_orders();
    for (const xp_known *k = xp_known_orders; k->name != NULL; k++)
        named(k->name);
    int scenes = xp_count_scenes();
    reaches = xp_shared_memory((size_t)scenes * sizeof *reaches);
    bool done = xp_share_out(scenes, find_reached_by, NULL) && xp_share_out(num_orders + 1, try_piece, all);
    const int caught = all->verdicts[CAUGHT], known = all->verdicts[KNOWN], wrong = all->verdicts[WRONG];
    printf("%d weaker orders: %d caught, %d known, with the reason, not to be caught here, %d wrong\n",
           caught + known + wrong, caught, known, wrong);
    return done && !all->broken && wrong == 0;
}
