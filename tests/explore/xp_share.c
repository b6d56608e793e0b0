/* Shares work among the processors. There is one process per processor. Each takes the next piece until none is
 * left. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "xp.h"

void *xp_shared_memory(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        xp_die("no shared memory");
    return p;
}

static int count(const xp_scene *scenes)
{
    int n = 0;
    while (scenes[n].name != NULL)
        n++;
    return n;
}

int xp_count_scenes(void)
{
    return count(xp_one_ring) + count(xp_remote_learner) + count(xp_two_rings) + count(xp_weights);
}

const xp_scene *xp_scene_at(int n)
{
    const xp_scene *const lists[] = {xp_one_ring, xp_remote_learner, xp_two_rings, xp_weights};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; n -= count(lists[i++]))
        if (n < count(lists[i]))
            return &lists[i][n];
    return NULL;
}

bool xp_share_out(int pieces, void (*work)(int piece, void *arg), void *arg)
{
    bool ok = true;
    _Atomic int *next = xp_shared_memory(sizeof *next);
    fflush(stdout); /* else each process would print the buffered text again */
    for (long n = sysconf(_SC_NPROCESSORS_ONLN); n > 0; n--)
        if (fork() == 0) {
            setvbuf(stdout, NULL, _IOFBF, 1 << 20); /* keeps the output of a piece together */
            for (int i = (*next)++; i < pieces; i = (*next)++) {
                work(i, arg);
                fflush(stdout);
            }
            exit(0);
        }
    for (int status; wait(&status) > 0;)
        ok = ok && status == 0;
    munmap((void *)next, sizeof *next);
    return ok;
}
