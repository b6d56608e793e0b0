#define _GNU_SOURCE
#include "es_tracee.h"

#include <elf.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAP_NS 50000

#if defined(__x86_64__)
#define PC(regs) ((regs).rip)
#define BREAKPOINT UINT64_C(0xcc)
#define BREAKPOINT_MASK UINT64_C(0xff)
#define SYSTEM_CALL 0x050fu
#define SYSTEM_CALL_SIZE 2
#elif defined(__aarch64__)
#define PC(regs) ((regs).pc)
#define BREAKPOINT UINT64_C(0xd4200000)
#define BREAKPOINT_MASK UINT64_C(0xffffffff)
#define SYSTEM_CALL 0xd4000001u
#define SYSTEM_CALL_SIZE 4
#else
#error "which register is the program counter here?"
#endif

bool tracee_calls_kernel(uint64_t pc)
{
    uint32_t word = 0;
    memcpy(&word, (const void *)(uintptr_t)pc, SYSTEM_CALL_SIZE);
    return word == SYSTEM_CALL;
}

void nap_ns(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

bool process_sleeps(pid_t pid)
{
    char path[32], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return false;
    bool got = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    const char *end = strrchr(line, ')');
    return got && end != NULL && end[1] == ' ' && end[2] == 'S';
}

static void regs_or_die(const es_tracee *t, enum __ptrace_request request, struct user_regs_struct *regs)
{
    struct iovec io = {.iov_base = regs, .iov_len = sizeof *regs};
    if (ptrace(request, t->pid, (void *)NT_PRSTATUS, &io) != 0) {
        perror("ptrace registers");
        abort();
    }
}

uint64_t tracee_pc(const es_tracee *t)
{
    struct user_regs_struct regs;
    regs_or_die(t, PTRACE_GETREGSET, &regs);
    return PC(regs);
}

static void set_pc(const es_tracee *t, uint64_t pc)
{
    struct user_regs_struct regs;
    regs_or_die(t, PTRACE_GETREGSET, &regs);
    PC(regs) = pc;
    regs_or_die(t, PTRACE_SETREGSET, &regs);
}

/* Waits for the tracee to stop. Polls if when_asleep is set: a sleeping tracee then needs a call to wake it. */
static int wait_for(es_tracee *t)
{
    int status = 0;
    if (t->when_asleep == NULL)
        return waitpid(t->pid, &status, __WALL) == t->pid ? status : -1;
    for (int looks = 0;; looks++) {
        pid_t got = waitpid(t->pid, &status, __WALL | WNOHANG);
        if (got != 0)
            return got == t->pid ? status : -1;
        if (looks > 2 && t->when_asleep != NULL && process_sleeps(t->pid)) {
            t->when_asleep(t->arg);
            t->when_asleep = NULL;
            return waitpid(t->pid, &status, __WALL) == t->pid ? status : -1;
        }
        looks > 2 ? nap_ns(NAP_NS) : (void)sched_yield();
    }
}

static enum es_stop resume(es_tracee *t, enum __ptrace_request how)
{
    if (ptrace(how, t->pid, NULL, NULL) != 0)
        return ES_STOP_BAD;
    int status = wait_for(t);
    if (status != -1 && WIFSTOPPED(status) && WSTOPSIG(status) == SIGUSR1) /* the tracee has a handler for it */
        status = ptrace(how, t->pid, NULL, (void *)(long)SIGUSR1) == 0 ? wait_for(t) : -1;
    if (status != -1 && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP)
        return ES_STOP_TRAP;
    if (status != -1 && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP)
        return ES_STOP_SELF;
    fprintf(stderr, "  the tracee: status 0x%x\n", (unsigned)status);
    return ES_STOP_BAD;
}

enum es_stop tracee_step(es_tracee *t)
{
    return resume(t, PTRACE_SINGLESTEP);
}

static void poke(const es_tracee *t, uint64_t address, uint64_t word)
{
    if (ptrace(PTRACE_POKETEXT, t->pid, (void *)address, (void *)word) != 0) {
        perror("ptrace poke");
        abort();
    }
}

enum es_stop tracee_run_to(es_tracee *t, uint64_t address, uint64_t hits)
{
    errno = 0;
    uint64_t word = (uint64_t)ptrace(PTRACE_PEEKTEXT, t->pid, (void *)address, NULL);
    if (errno != 0)
        return ES_STOP_BAD;
    enum es_stop stop = ES_STOP_TRAP;
    bool there = tracee_pc(t) == address;
    while (hits > 0) {
        if (there) { /* step off the address first, without the breakpoint */
            stop = tracee_step(t);
            there = stop == ES_STOP_TRAP && tracee_pc(t) == address;
        } else {
            poke(t, address, (word & ~BREAKPOINT_MASK) | BREAKPOINT);
            stop = resume(t, PTRACE_CONT);
            poke(t, address, word);
            there = stop == ES_STOP_TRAP;
            if (there)
                set_pc(t, address);
        }
        if (stop != ES_STOP_TRAP)
            return stop;
        hits -= there;
    }
    return ES_STOP_TRAP;
}

void tracee_kill(es_tracee *t)
{
    int status;
    kill(t->pid, SIGKILL);
    while (waitpid(t->pid, &status, __WALL) == t->pid && !WIFSIGNALED(status) && !WIFEXITED(status))
        ;
}

void tracee_begin(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(77);
}

bool tracee_attach(es_tracee *t, pid_t child)
{
    int status;
    *t = (es_tracee){.pid = child};
    return waitpid(child, &status, __WALL) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP &&
           ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)PTRACE_O_EXITKILL) == 0;
}

/* Tries everything that the tests need: a stop, a step, reading the registers. */
static bool may_trace(void)
{
    es_tracee t;
    pid_t child = fork();
    if (child == 0) {
        tracee_begin();
        raise(SIGSTOP);
        _exit(0);
    }
    bool ok = tracee_attach(&t, child) && ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0;
    int status = 0;
    ok = ok && waitpid(child, &status, __WALL) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
    if (ok)
        (void)tracee_pc(&t);
    if (!WIFEXITED(status) && !WIFSIGNALED(status))
        tracee_kill(&t);
    return ok;
}

void tracee_require_ptrace(void)
{
    static bool known;
    if (!known && !may_trace()) {
        fprintf(stderr, "NOT RUN: ptrace is not permitted here: exit status 77\n");
        exit(77);
    }
    known = true;
}
