/* send_vector() of echo_shm._send: a step of each of a writer's environments, sent with one call of es_api_send_many().
 *
 * Python has the environments in an array (ring/inbox.py), and what is not common is its to do. Both read and write the
 * same es_environment, so calls of either kind may follow each other. Python's lock protects the array and the plan. */
#ifndef ES_PYTHON_ENVIRONMENTS_H
#define ES_PYTHON_ENVIRONMENTS_H

#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "python/arrays.h"
#include "python/rows.h"
#include "replay/es_replay_types.h"

#define VECTOR_PLAN "echo_shm.vector_plan"
#define HIGHEST (-1.0) /* the table's highest priority so far */

typedef int64_t (*send_many_function)(void *ring, void **leaves, uint64_t first, uint64_t n, uint64_t timeout_ns);

typedef struct {
    send_many_function send_many;
    void *ring;
    PyObject *keep;          /* what keeps the ring, and the environments */
    PyObject *form, *needed; /* as of read_vector() */
    es_environment *each;    /* in Python's array */
    uint64_t n, stream;
    Py_ssize_t num_leaves;
    leaf *steps;
    size_t step_bytes, head_bytes;
    uint8_t *heads;  /* room for 2 * n; all but their es_inbox_head never changes */
    void **pointers; /* one for the heads, and one for each leaf */
} vector_plan;

static void free_vector(vector_plan *p)
{
    free_leaves(p->steps, p->num_leaves);
    Py_XDECREF(p->keep);
    Py_XDECREF(p->form);
    Py_XDECREF(p->needed);
    PyMem_Free(p->heads);
    PyMem_Free(p->pointers);
    PyMem_Free(p);
}

static void free_vector_plan(PyObject *capsule)
{
    free_vector(PyCapsule_GetPointer(capsule, VECTOR_PLAN));
}

/* Heads whose priorities are the tables' highest: 0, or -1: an exception is set. */
static int make_heads(vector_plan *p, size_t num_tables)
{
    const double highest = HIGHEST;
    p->heads = PyMem_Calloc(2 * (size_t)p->n + 1, p->head_bytes);
    p->pointers = PyMem_Calloc((size_t)p->num_leaves + 1, sizeof *p->pointers);
    if (p->heads == NULL || p->pointers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint64_t i = 0; i < 2 * p->n; i++)
        for (size_t t = 0; t < num_tables; t++)
            memcpy(p->heads + i * p->head_bytes + sizeof(es_inbox_head) + t * sizeof highest, &highest, sizeof highest);
    return 0;
}

/* Where an array has the environments; NULL: an exception is set. */
static es_environment *environments_in(PyObject *array, uint64_t *n)
{
    if (PyArray_CheckExact(array) && PyArray_ISCARRAY((PyArrayObject *)array) &&
        PyArray_NDIM((PyArrayObject *)array) == 1 &&
        PyArray_ITEMSIZE((PyArrayObject *)array) == (npy_intp)sizeof(es_environment)) {
        *n = (uint64_t)PyArray_DIM((PyArrayObject *)array, 0);
        return PyArray_DATA((PyArrayObject *)array);
    }
    PyErr_SetString(PyExc_TypeError, "environments are an array of es_environment");
    return NULL;
}

/* make_vector_plan(function, ring, keep, leaves, form, needed, stream, environments, num_tables, bytes of a head) */
static PyObject *make_vector_plan(PyObject *module, PyObject *args)
{
    unsigned long long function, ring, stream;
    PyObject *keep, *leaves, *form, *needed, *environments;
    Py_ssize_t num_tables, head_bytes;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKOO!OO!KOnn", &function, &ring, &keep, &PyTuple_Type, &leaves, &form, &PyTuple_Type,
                          &needed, &stream, &environments, &num_tables, &head_bytes))
        return NULL;
    vector_plan *p = PyMem_Calloc(1, sizeof *p);
    if (p == NULL)
        return PyErr_NoMemory();
    p->send_many = (send_many_function)(uintptr_t)function;
    p->ring = (void *)(uintptr_t)ring;
    p->stream = stream;
    p->head_bytes = (size_t)head_bytes;
    p->each = environments_in(environments, &p->n);
    p->keep = PyTuple_Pack(2, keep, environments);
    Py_INCREF(form);
    p->form = form;
    Py_INCREF(needed);
    p->needed = needed;
    PyObject *capsule = NULL;
    if (p->each != NULL && p->keep != NULL && (p->steps = read_leaves(leaves)) != NULL) {
        p->num_leaves = PyTuple_Size(leaves);
        for (Py_ssize_t i = 0; i < p->num_leaves; i++)
            p->step_bytes += (size_t)p->steps[i].distance;
        if (make_heads(p, (size_t)num_tables) == 0)
            capsule = PyCapsule_New(p, VECTOR_PLAN, free_vector_plan);
    }
    if (capsule == NULL)
        free_vector(p);
    return capsule;
}

/* --- what is sent: the rows that are steps, then what episodes end with --------------- */

/* The i-th head. */
static es_inbox_head head_at(const vector_plan *p, uint64_t i)
{
    es_inbox_head head;
    memcpy(&head, p->heads + i * p->head_bytes, sizeof head);
    return head;
}

static void write_head(const vector_plan *p, uint64_t i, uint64_t row, uint32_t later, uint32_t flags)
{
    const es_environment *e = &p->each[row];
    const es_inbox_head head = {.stream = p->stream,
                                .number = e->number + later,
                                .index = e->index + later,
                                .environment = (uint32_t)row,
                                .episode = e->episode,
                                .flags = flags};
    memcpy(p->heads + i * p->head_bytes, &head, sizeof head);
}

/* Writes all heads: how many. -1: a row ends an episode, and must be a reset. */
static int64_t write_heads(const vector_plan *p, const es_vector *v)
{
    uint64_t count = 0;
    for (uint64_t row = 0; row < p->n; row++) {
        const uint32_t flags = ends_of(v, row);
        if (v->skips_resets && p->each[row].resets) {
            if (flags)
                return -1;
            continue;
        }
        write_head(p, count++, row, 0, v->finals == NULL ? flags : 0);
    }
    for (uint64_t row = 0; v->finals != NULL && row < p->n; row++) {
        const uint32_t flags = ends_of(v, row);
        if (flags)
            write_head(p, count++, row, 1, flags | ES_STEP_FINAL);
    }
    return (int64_t)count;
}

/* Copies what goes with each head, leaf by leaf, one after the other. */
static void gather(vector_plan *p, const es_vector *v, uint64_t count, uint8_t *to)
{
    for (Py_ssize_t l = 0; l < p->num_leaves; l++) {
        const size_t size = (size_t)p->steps[l].distance;
        p->pointers[l + 1] = to;
        for (uint64_t i = 0; size > 0 && i < count; i++, to += size) {
            const es_inbox_head head = head_at(p, i);
            const uint8_t *from = (const uint8_t *)v->leaves[l] + head.environment * size;
            if (head.flags & ES_STEP_FINAL)
                from = v->finals[(size_t)head.environment * (size_t)p->num_leaves + (size_t)l];
            if (from == NULL)
                memset(to, 0, size);
            else
                memcpy(to, from, size);
        }
    }
}

/* Sends so many: how many were sent, or an error. */
static int64_t send_rows(vector_plan *p, const es_vector *v, uint64_t count)
{
    uint8_t *copies = NULL;
    p->pointers[0] = p->heads;
    if (count == p->n && v->finals == NULL) {
        for (Py_ssize_t l = 0; l < p->num_leaves; l++)
            p->pointers[l + 1] = (void *)(uintptr_t)v->leaves[l];
    } else {
        copies = malloc(count * p->step_bytes + 1);
        if (copies == NULL)
            return 0; /* Python tries again, and says so */
        gather(p, v, count, copies);
    }
    const int64_t sent = p->send_many(p->ring, p->pointers, 0, count, 0);
    free(copies);
    return sent;
}

/* Notes that all were sent. */
static void note_sent(const vector_plan *p, uint64_t count, uint32_t skips_resets)
{
    for (uint64_t row = 0; row < p->n; row++)
        p->each[row].resets = 0;
    for (uint64_t i = 0; i < count; i++) {
        const es_inbox_head head = head_at(p, i);
        es_environment *e = &p->each[head.environment];
        const int over = (head.flags & (ES_STEP_TERMINATED | ES_STEP_TRUNCATED)) != 0;
        e->number = head.number + 1;
        e->index = over ? 0 : head.index + 1;
        e->episode = head.episode + (over ? 1 : 0);
        e->resets = over && skips_resets;
    }
}

/* send_vector(plan, steps, terminated, truncated, autoreset, final): see _send.pyi. */
static PyObject *send_vector(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    vector_plan *p = nargs == 6 ? PyCapsule_GetPointer(args[0], VECTOR_PLAN) : NULL;
    if (p == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "send_vector(plan, steps, terminated, truncated, autoreset, final)");
        return NULL;
    }
    parts found;
    if (!make_parts(&found, p->num_leaves))
        return PyErr_NoMemory();
    es_vector v = {0};
    int64_t count = -1, sent = 0;
    const int ok = read_vector(p->steps, p->num_leaves, p->form, p->needed, args + 1, &v, &found);
    if (ok == 1 && v.n == p->n)
        count = write_heads(p, &v);
    if (count > 0 && (size_t)count * p->step_bytes >= RELEASE_GIL_FROM) {
        Py_BEGIN_ALLOW_THREADS
        sent = send_rows(p, &v, (uint64_t)count);
        Py_END_ALLOW_THREADS
    } else if (count > 0) {
        sent = send_rows(p, &v, (uint64_t)count);
    }
    if (sent == count)
        note_sent(p, (uint64_t)count, v.skips_resets);
    drop_parts(&found, p->num_leaves);
    if (ok < 0)
        return NULL;
    if (sent == count)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(sent > 0 ? sent : 0);
}

#endif
