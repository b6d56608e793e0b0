/* The region is read-only. An instruction that writes into it faults. Then the region is made writable, and the
 * processor traps after the one instruction. */
#define _GNU_SOURCE
#include "es_writes.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__x86_64__)

#define TRAP_FLAG 0x100

static struct {
    uint8_t *region;
    uint64_t size;
    void (*wrote)(void *arg);
    void *arg;
} watch;

static void protect(int how)
{
    if (mprotect(watch.region, watch.size, how) != 0)
        _exit(3);
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    ucontext_t *at = context;
    if ((uintptr_t)info->si_addr - (uintptr_t)watch.region >= watch.size) {
        signal(signal_number, SIG_DFL); /* a real fault: it comes again at once */
        return;
    }
    protect(PROT_READ | PROT_WRITE);
    at->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_trap(int signal_number, siginfo_t *info, void *context)
{
    ucontext_t *at = context;
    (void)signal_number, (void)info;
    at->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
    protect(PROT_READ);
    watch.wrote(watch.arg);
}

bool es_writes_supported(void)
{
    return true;
}

void es_writes_watch(void *region, uint64_t size, void (*act)(void *arg), void (*wrote)(void *arg), void *arg)
{
    watch.region = region, watch.size = size, watch.wrote = wrote, watch.arg = arg;
    sigaction(SIGSEGV, &(struct sigaction){.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, NULL);
    sigaction(SIGTRAP, &(struct sigaction){.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO}, NULL);
    protect(PROT_READ);
    act(arg);
    protect(PROT_READ | PROT_WRITE);
}

#else

bool es_writes_supported(void)
{
    return false;
}

void es_writes_watch(void *region, uint64_t size, void (*act)(void *arg), void (*wrote)(void *arg), void *arg)
{
    (void)region, (void)size, (void)act, (void)wrote, (void)arg;
    abort();
}

#endif
