/* A Core: a process's hold of a store (an es_replay) as echo_shm._replay sees it. Addresses of the C functions, what a
 * step and each table's batches look like, the pools of batches, and the lock.
 *
 * One thread at a time uses an es_replay, so every call holds the lock. No code of Python's runs meanwhile, so neither a
 * handler of signals nor a finalizer comes to wait for its own thread. But a selector written in Python may run: a call
 * from there is refused. A call that moves many bytes gives up the GIL. Whoever waits for the lock gives it up, too, so
 * it is never waited for with the GIL.
 */
#ifndef ES_PYTHON_CORE_H
#define ES_PYTHON_CORE_H

#include <Python.h>
#include <stdint.h>

#include "python/arrays.h"
#include "python/kept.h"
#include "python/pool.h"
#include "replay/es_checkpoint.h"

/* From this size on the work is worth giving up the GIL (bytes). */
#define RELEASE_GIL_FROM (64 * 1024)

#define FUNCTIONS(F)   \
    F(add)             \
    F(add_last)        \
    F(add_vector)      \
    F(extend)          \
    F(set_version)     \
    F(version)         \
    F(sample)          \
    F(get)             \
    F(weigh)           \
    F(put_back)        \
    F(update)          \
    F(delete)          \
    F(reset)           \
    F(learned)         \
    F(set_limits)      \
    F(notes)           \
    F(set_notes)       \
    F(can_sample)      \
    F(can_insert)      \
    F(check_priority)  \
    F(info)            \
    F(num_steps)       \
    F(list_steps)      \
    F(read_steps)      \
    F(end_episode)     \
    F(end_episodes)    \
    F(environments)    \
    F(connect_inbox)   \
    F(connect_updates) \
    F(connect_batches) \
    F(put)             \
    F(disconnect)      \
    F(turn)            \
    F(snapshot)        \
    F(snapshot_done)   \
    F(hold)            \
    F(room)            \
    F(free)

/* Those of a checkpoint. */
#define SAVE_FUNCTIONS(F) \
    F(begin)              \
    F(take)               \
    F(write)              \
    F(end)                \
    F(drawn)              \
    F(go_on)

typedef struct {
#define DECLARE(name) __typeof__(es_replay_##name) *name;
    FUNCTIONS(DECLARE)
#define DECLARE_SAVE(name) __typeof__(es_checkpoint_##name) *name;
    SAVE_FUNCTIONS(DECLARE_SAVE)
    uint32_t (*fork_generation)(void);
} functions;

/* A batch of one table: the arrays of its items, then the columns. shape[0] is the batch's, set anew for each. */
typedef struct {
    PyObject *tree; /* of the data, as a step's form; NULL or None: only Python can build it */
    leaf *arrays;
    Py_ssize_t num_outputs;
    size_t item_bytes;
    pool *pool;
    kept kept[KEPT];
    int next_kept;
} batch_form;

typedef struct {
    PyObject_HEAD functions call;
    es_replay *replay; /* NULL: closed */
    uint32_t generation;
    PyThread_type_lock lock;
    unsigned long owner;   /* the thread that has it; 0: none, or it has just begun or ended */
    PyObject *keep, *form; /* form: of a step's tree, see trees.h; None: only Python can take it apart */
    long waiting;          /* threads of Python that wait for a change; Python counts them */
    Py_ssize_t num_leaves;
    leaf *steps; /* an array of n steps for each leaf: shape[0] is set anew for each n */
    size_t step_bytes;
    uint32_t num_tables;
    batch_form *tables;
} core;

/* --- the lock ---------------------------------------------------------------- */

static void leave(core *self)
{
    __atomic_store_n(&self->owner, 0, __ATOMIC_RELAXED);
    PyThread_release_lock(self->lock);
}

/* Takes the lock, or says why the replay cannot be used. */
static int enter(core *self)
{
    if (self->call.fork_generation() != self->generation)
        return ES_EFORK;
    const unsigned long me = PyThread_get_thread_ident();
    if (!PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
        if (__atomic_load_n(&self->owner, __ATOMIC_RELAXED) == me) /* only this thread can have written that */
            return ES_EREENTERED;
        Py_BEGIN_ALLOW_THREADS
        PyThread_acquire_lock(self->lock, WAIT_LOCK);
        Py_END_ALLOW_THREADS
    }
    __atomic_store_n(&self->owner, me, __ATOMIC_RELAXED);
    if (self->replay != NULL)
        return ES_OK;
    leave(self);
    return ES_EDETACHED;
}

/* A call between enter() and leave(). */
#define LOCKED_CALL(self, bytes, statement) \
    do {                                    \
        if ((bytes) < RELEASE_GIL_FROM) {   \
            statement;                      \
            leave(self);                    \
        } else {                            \
            Py_BEGIN_ALLOW_THREADS          \
            statement;                      \
            leave(self);                    \
            Py_END_ALLOW_THREADS            \
        }                                   \
    } while (0)

/* Calls what needs nothing but the replay. Returns the code. */
static PyObject *call_void(core *self, size_t bytes, void (*function)(es_replay *))
{
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, bytes, function(self->replay));
    return PyLong_FromLong(code);
}

/* Asks for a number. Returns it, or the code. */
static PyObject *call_number(core *self, uint64_t (*function)(es_replay *))
{
    int64_t number = enter(self);
    if (number == ES_OK)
        LOCKED_CALL(self, 0, number = (int64_t)function(self->replay));
    return PyLong_FromLongLong(number);
}

static PyObject *trouble(int64_t code, const es_trouble *why)
{
    return Py_BuildValue("(LIK)", (long long)code, (unsigned int)why->table, (unsigned long long)why->index);
}

/* --- arguments --------------------------------------------------------------- */

/* Reads the number of a table. -1: an exception is set. */
static int64_t read_table(const core *self, PyObject *from)
{
    unsigned long table = PyLong_AsUnsignedLong(from);
    if (PyErr_Occurred())
        return -1;
    if (table >= self->num_tables) {
        PyErr_SetString(PyExc_IndexError, "there is no such table");
        return -1;
    }
    return (int64_t)table;
}

/* The keys of an exact array, and how many; NULL if it is none. */
static const uint64_t *read_keys(PyObject *from, npy_intp *n)
{
    if (!PyArray_CheckExact(from))
        return NULL;
    PyArrayObject *array = (PyArrayObject *)from;
    if (PyArray_NDIM(array) != 1 || PyArray_TYPE(array) != NPY_UINT64 || !PyArray_ISCARRAY_RO(array))
        return NULL;
    *n = PyArray_DIM(array, 0);
    return PyArray_DATA(array);
}

#endif
