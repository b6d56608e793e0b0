/* One process under ptrace: a step, a run to an address, a kill between two instructions. */
#ifndef ES_TRACEE_H
#define ES_TRACEE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* How a step or a run ended: at its instruction, at a SIGSTOP that the tracee sent itself, or with an error. */
enum es_stop { ES_STOP_TRAP, ES_STOP_SELF, ES_STOP_BAD };

typedef struct es_tracee {
    pid_t pid;
    /* Called once in the tracer, when the tracee sleeps in a system call. */
    void (*when_asleep)(void *arg);
    void *arg;
} es_tracee;

/* Exits with 77 when this process may not trace its children. */
void tracee_require_ptrace(void);
/* After fork(): the parent attaches to a child that calls tracee_begin(), and waits for the SIGSTOP that the child
 * sends itself. */
bool tracee_attach(es_tracee *t, pid_t child);
void tracee_begin(void);

uint64_t tracee_pc(const es_tracee *t);
/* Executes one instruction. A system call counts as one. */
enum es_stop tracee_step(es_tracee *t);
/* Runs until the tracee arrives at the address for the hits-th time from here. Does not execute the instruction
 * there. */
enum es_stop tracee_run_to(es_tracee *t, uint64_t address, uint64_t hits);
/* Sends SIGKILL and waits for the tracee's end. The kernel has then dropped its locks. */
void tracee_kill(es_tracee *t);

/* Whether the instruction at pc is a system call. The tracer has the same instructions as the tracee. */
bool tracee_calls_kernel(uint64_t pc);
/* Whether a process sleeps in a system call. */
bool process_sleeps(pid_t pid);
void nap_ns(long ns);

#endif
