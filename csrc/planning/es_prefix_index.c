/* A node is a run of blocks without a fork. Each but the root is in the hash table under its parent and its first
 * block, so a child is found without looking at its siblings, and in a list from the node used last to the one used
 * first. A use moves a path to the front of the list, its deepest node first. So a node is always in front of all nodes
 * below it, and a walk from the back comes to each node after everything below it.
 *
 * A match that ends inside a run cuts it in two, so that a lease or a branch begins at the end of a node, and the part
 * that was not used keeps its age. The lower part keeps the node's number: what refers to the end of the run still does.
 * A lease is counted in the node where it ends. The nodes above it have children, so they cannot go either. */
#include "planning/es_prefix_index.h"

#include <stdlib.h>
#include <string.h>

#include "base/es_base.h"

#define ROOT 0
#define NONE UINT32_MAX

typedef struct node {
    int64_t *tokens, *numbers; /* of the run's blocks */
    uint64_t blocks, hash;
    uint64_t leases;
    uint32_t parent, children;
    uint32_t next;         /* in the same bucket; of a free node: the next free one */
    uint32_t newer, older; /* in the list */
} node;

struct es_prefix_index {
    uint64_t block_size, capacity, blocks;
    node *nodes;
    uint32_t used, room, free; /* nodes that were ever used; that there is room for; the first free one */
    uint32_t *buckets;
    uint32_t mask; /* the number of buckets - 1 */
    uint32_t count;
    uint32_t newest, oldest;
};

/* --- the list -------------------------------------------------------------------- */

static void unlink_node(es_prefix_index *x, uint32_t i)
{
    node *n = &x->nodes[i];
    *(n->newer == NONE ? &x->newest : &x->nodes[n->newer].older) = n->older;
    *(n->older == NONE ? &x->oldest : &x->nodes[n->older].newer) = n->newer;
}

/* Links i in right in front of another, or of none at the back. */
static void link_node(es_prefix_index *x, uint32_t i, uint32_t older)
{
    node *n = &x->nodes[i];
    n->older = older;
    n->newer = older == NONE ? x->oldest : x->nodes[older].newer;
    *(n->newer == NONE ? &x->newest : &x->nodes[n->newer].older) = i;
    *(older == NONE ? &x->oldest : &x->nodes[older].newer) = i;
}

static void use(es_prefix_index *x, uint32_t end)
{
    for (uint32_t i = end; i != ROOT; i = x->nodes[i].parent) {
        unlink_node(x, i);
        link_node(x, i, x->newest);
    }
}

/* --- the hash table ---------------------------------------------------------------- */

static uint64_t hash_of(const es_prefix_index *x, uint32_t parent, const int64_t *tokens)
{
    uint64_t hash = parent;
    for (uint64_t i = 0; i < x->block_size; i++) {
        hash = (hash ^ (uint64_t)tokens[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

static uint32_t *bucket(const es_prefix_index *x, uint64_t hash)
{
    return &x->buckets[hash & x->mask];
}

static void enter(es_prefix_index *x, uint32_t i)
{
    uint32_t *first = bucket(x, x->nodes[i].hash);
    x->nodes[i].next = *first;
    *first = i;
}

static void leave(es_prefix_index *x, uint32_t i)
{
    uint32_t *at = bucket(x, x->nodes[i].hash);
    while (*at != i)
        at = &x->nodes[*at].next;
    *at = x->nodes[i].next;
}

static uint32_t child(const es_prefix_index *x, uint32_t parent, const int64_t *tokens)
{
    uint64_t hash = hash_of(x, parent, tokens);
    uint32_t i = *bucket(x, hash);
    for (; i != NONE; i = x->nodes[i].next) {
        const node *n = &x->nodes[i];
        if (n->hash == hash && n->parent == parent && memcmp(n->tokens, tokens, x->block_size * sizeof *tokens) == 0)
            break;
    }
    return i;
}

/* --- nodes ------------------------------------------------------------------------- */

static int more_buckets(es_prefix_index *x)
{
    uint64_t count = 2 * ((uint64_t)x->mask + 1);
    uint32_t *buckets = malloc(count * sizeof *buckets);
    if (buckets == NULL)
        return -ENOMEM;
    memset(buckets, 0xff, count * sizeof *buckets); /* NONE */
    free(x->buckets);
    x->buckets = buckets;
    x->mask = (uint32_t)(count - 1);
    for (uint32_t i = x->newest; i != NONE; i = x->nodes[i].older)
        enter(x, i);
    return ES_OK;
}

static int more_nodes(es_prefix_index *x)
{
    if (x->room > UINT32_MAX / 2)
        return -ENOMEM;
    node *nodes = realloc(x->nodes, 2 * (uint64_t)x->room * sizeof *nodes);
    if (nodes == NULL)
        return -ENOMEM;
    x->nodes = nodes;
    x->room *= 2;
    return ES_OK;
}

/* A node with room for a run of so many blocks, in neither list nor table. Negative without memory. */
static int64_t new_node(es_prefix_index *x, uint64_t blocks)
{
    if ((x->count > x->mask && more_buckets(x) != ES_OK) ||
        (x->free == NONE && x->used == x->room && more_nodes(x) != ES_OK))
        return -ENOMEM;
    int64_t *tokens = malloc(blocks * x->block_size * sizeof *tokens), *numbers = malloc(blocks * sizeof *numbers);
    if (tokens == NULL || numbers == NULL) {
        free(tokens);
        free(numbers);
        return -ENOMEM;
    }
    uint32_t i = x->free == NONE ? x->used++ : x->free;
    if (i == x->free)
        x->free = x->nodes[i].next;
    x->nodes[i] = (node){.tokens = tokens, .numbers = numbers};
    x->count++;
    return i;
}

/* The opposite. */
static void drop_node(es_prefix_index *x, uint32_t i)
{
    node *n = &x->nodes[i];
    free(n->tokens);
    free(n->numbers);
    n->next = x->free;
    x->free = i;
    x->count--;
}

/* Gives memory back that a shorter run does not need. If that fails, it stays. */
static void shrink(es_prefix_index *x, node *n)
{
    int64_t *tokens = realloc(n->tokens, n->blocks * x->block_size * sizeof *tokens);
    n->tokens = tokens == NULL ? n->tokens : tokens;
    int64_t *numbers = realloc(n->numbers, n->blocks * sizeof *numbers);
    n->numbers = numbers == NULL ? n->numbers : numbers;
}

/* The first blocks of a run become a node of their own, above the others. Returns its number, negative without memory. */
static int64_t cut(es_prefix_index *x, uint32_t lower, uint64_t blocks)
{
    int64_t upper = new_node(x, blocks);
    if (upper < 0)
        return upper;
    node *u = &x->nodes[upper], *l = &x->nodes[lower];
    uint64_t tokens = blocks * x->block_size, rest = l->blocks - blocks;
    leave(x, lower);
    memcpy(u->tokens, l->tokens, tokens * sizeof *u->tokens);
    memcpy(u->numbers, l->numbers, blocks * sizeof *u->numbers);
    memmove(l->tokens, l->tokens + tokens, rest * x->block_size * sizeof *l->tokens);
    memmove(l->numbers, l->numbers + blocks, rest * sizeof *l->numbers);
    u->blocks = blocks;
    u->hash = l->hash;
    u->parent = l->parent;
    u->children = 1;
    l->blocks = rest;
    l->parent = (uint32_t)upper;
    l->hash = hash_of(x, l->parent, l->tokens);
    shrink(x, l);
    enter(x, (uint32_t)upper);
    enter(x, lower);
    link_node(x, (uint32_t)upper, lower);
    return upper;
}

/* --- calls ------------------------------------------------------------------------- */

es_prefix_index *es_prefix_index_new(uint64_t block_size, uint64_t capacity)
{
    es_prefix_index *x = malloc(sizeof *x);
    if (x == NULL)
        return NULL;
    *x = (es_prefix_index){.block_size = block_size, .capacity = capacity, .room = 64, .mask = 63};
    x->nodes = malloc(x->room * sizeof *x->nodes);
    x->buckets = malloc(64 * sizeof *x->buckets);
    if (x->nodes == NULL || x->buckets == NULL) {
        free(x->nodes);
        free(x->buckets);
        free(x);
        return NULL;
    }
    memset(x->buckets, 0xff, 64 * sizeof *x->buckets); /* NONE */
    x->nodes[ROOT] = (node){.parent = NONE};
    x->used = 1;
    x->free = x->newest = x->oldest = NONE;
    return x;
}

void es_prefix_index_free(es_prefix_index *x)
{
    for (uint32_t i = x->newest; i != NONE; i = x->nodes[i].older) {
        free(x->nodes[i].tokens);
        free(x->nodes[i].numbers);
    }
    free(x->nodes);
    free(x->buckets);
    free(x);
}

/* How many blocks of a run these tokens begin with. */
static uint64_t common(const es_prefix_index *x, const node *n, const int64_t *tokens, uint64_t blocks)
{
    uint64_t limit = (n->blocks < blocks ? n->blocks : blocks) * x->block_size, i = 0;
    while (i < limit && n->tokens[i] == tokens[i])
        i++;
    return i / x->block_size;
}

int64_t es_prefix_index_match(es_prefix_index *x, const int64_t *tokens, uint64_t blocks, int64_t *numbers,
                              uint32_t *end)
{
    uint64_t found = 0;
    uint32_t at = ROOT;
    while (found < blocks) {
        const int64_t *rest = tokens + found * x->block_size;
        uint32_t i = child(x, at, rest);
        if (i == NONE)
            break;
        uint64_t same = common(x, &x->nodes[i], rest, blocks - found);
        if (same < x->nodes[i].blocks) {
            int64_t upper = cut(x, i, same);
            if (upper < 0)
                return upper;
            i = (uint32_t)upper;
        }
        memcpy(numbers + found, x->nodes[i].numbers, same * sizeof *numbers);
        found += same;
        at = i;
    }
    use(x, at);
    *end = at;
    return (int64_t)found;
}

void es_prefix_index_lease(es_prefix_index *x, uint32_t end)
{
    x->nodes[end].leases++;
}

void es_prefix_index_release(es_prefix_index *x, uint32_t end)
{
    x->nodes[end].leases--;
    use(x, end);
}

uint64_t es_prefix_index_evict(es_prefix_index *x, uint64_t blocks, int64_t *numbers)
{
    uint64_t gone = 0;
    for (uint32_t i = x->oldest, newer; i != NONE && gone < blocks; i = newer) {
        node *n = &x->nodes[i];
        newer = n->newer;
        if (n->children > 0 || n->leases > 0)
            continue;
        while (n->blocks > 0 && gone < blocks)
            numbers[gone++] = n->numbers[--n->blocks];
        if (n->blocks > 0) {
            shrink(x, n);
            break;
        }
        x->nodes[n->parent].children--;
        unlink_node(x, i);
        leave(x, i);
        drop_node(x, i);
    }
    x->blocks -= gone;
    return gone;
}

int es_prefix_index_insert(es_prefix_index *x, const int64_t *tokens, uint64_t blocks, int64_t *numbers,
                           es_prefix_insertion *done, int64_t *evicted)
{
    int64_t known = es_prefix_index_match(x, tokens, blocks, numbers, &done->end);
    if (known < 0)
        return (int)known;
    *done = (es_prefix_insertion){.known = (uint64_t)known, .end = done->end};
    uint64_t more = blocks - done->known, room = x->capacity - x->blocks;
    if (more == 0)
        return ES_OK;
    int64_t made = new_node(x, more);
    if (made < 0)
        return (int)made;
    if (more > room) {
        es_prefix_index_lease(x, done->end); /* what is continued stays */
        done->evicted = es_prefix_index_evict(x, more - room, evicted);
        x->nodes[done->end].leases--;
    }
    room += done->evicted;
    done->taken = more < room ? more : room;
    if (done->taken == 0) {
        drop_node(x, (uint32_t)made);
        return ES_OK;
    }
    node *n = &x->nodes[made];
    n->blocks = done->taken;
    memcpy(n->tokens, tokens + done->known * x->block_size, n->blocks * x->block_size * sizeof *tokens);
    memcpy(n->numbers, numbers + done->known, n->blocks * sizeof *numbers);
    n->parent = done->end;
    n->hash = hash_of(x, n->parent, n->tokens);
    x->nodes[n->parent].children++;
    x->blocks += n->blocks;
    if (n->blocks < more)
        shrink(x, n);
    enter(x, (uint32_t)made);
    link_node(x, (uint32_t)made, NONE);
    use(x, (uint32_t)made);
    done->end = (uint32_t)made;
    return ES_OK;
}

uint64_t es_prefix_index_blocks(const es_prefix_index *x)
{
    return x->blocks;
}
