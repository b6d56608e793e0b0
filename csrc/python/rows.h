/* A step of each of several environments: what add_vector() is given, of a replay's own steps and of a writer's. */
#ifndef ES_PYTHON_ROWS_H
#define ES_PYTHON_ROWS_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "python/arrays.h"
#include "python/trees.h"
#include "replay/es_replay_types.h"

/* The bytes of an array of numbers from row `first` on; *ok = 0 if it is no such array. None: NULL. */
static inline const void *rows(PyObject *from, int type, int ndim, const npy_intp *shape, npy_intp first, int *ok)
{
    if (from == Py_None)
        return NULL;
    if (!PyArray_CheckExact(from) || PyArray_TYPE((PyArrayObject *)from) != type ||
        !PyArray_ISCARRAY_RO((PyArrayObject *)from) ||
        is_exact(from, (PyObject *)PyArray_DESCR((PyArrayObject *)from), ndim, shape) != 1) {
        *ok = 0;
        return NULL;
    }
    npy_intp row = PyArray_ITEMSIZE((PyArrayObject *)from) * (ndim > 1 ? shape[1] : 1);
    return PyArray_BYTES((PyArrayObject *)from) + first * row;
}

/* What a call needs for each leaf, and for each row's final observations. The first of each are at hand. */
typedef struct {
    PyObject **leaves, **finals; /* references that are the call's own, or NULL */
    void **pointers;
    const void **final_pointers; /* n times one for each leaf; NULL: no row has any */
    PyObject *few_leaves[16], *few_finals[16];
    void *few_pointers[16];
    const void *few_final_pointers[64];
} parts;

/* 0: there is no memory. */
static inline int make_parts(parts *p, Py_ssize_t num_leaves)
{
    memset(p->few_leaves, 0, sizeof p->few_leaves);
    memset(p->few_finals, 0, sizeof p->few_finals);
    p->leaves = p->few_leaves;
    p->finals = p->few_finals;
    p->pointers = p->few_pointers;
    p->final_pointers = NULL;
    if (num_leaves <= (Py_ssize_t)(sizeof p->few_leaves / sizeof *p->few_leaves))
        return 1;
    p->leaves = PyMem_Calloc(3 * (size_t)num_leaves, sizeof *p->leaves);
    p->finals = p->leaves + num_leaves;
    p->pointers = (void **)(p->finals + num_leaves);
    return p->leaves != NULL;
}

static inline void drop_parts(parts *p, Py_ssize_t num_leaves)
{
    for (Py_ssize_t i = 0; i < num_leaves; i++) {
        Py_XDECREF(p->leaves[i]);
        Py_XDECREF(p->finals[i]);
    }
    if (p->leaves != p->few_leaves)
        PyMem_Free(p->leaves);
    if (p->final_pointers != p->few_final_pointers)
        PyMem_Free(p->final_pointers);
}

/* Makes room for n rows of final observations, all zeros. 0: there is no memory. */
static inline int make_finals(parts *p, size_t n, size_t num_leaves)
{
    if (n * num_leaves <= sizeof p->few_final_pointers / sizeof *p->few_final_pointers) {
        memset(p->few_final_pointers, 0, n * num_leaves * sizeof *p->few_final_pointers);
        p->final_pointers = p->few_final_pointers;
    } else {
        p->final_pointers = PyMem_Calloc(n * num_leaves, sizeof *p->final_pointers);
    }
    return p->final_pointers != NULL;
}

/* How a row ends its episode. */
static inline uint32_t ends_of(const es_vector *v, uint64_t row)
{
    return (v->terminated != NULL && v->terminated[row] ? ES_STEP_TERMINATED : 0) |
           (v->truncated != NULL && v->truncated[row] ? ES_STEP_TRUNCATED : 0);
}

/* Whether an array has n rows of a leaf, and where: 1 or 0; -1: an exception is set. */
static inline int find_rows(leaf *l, PyObject *array, npy_intp n, char **at)
{
    l->shape[0] = n;
    int ok = is_exact(array, l->dtype, l->ndim, l->shape);
    if (ok == 1)
        *at = PyArray_BYTES((PyArrayObject *)array);
    return ok;
}

/* The rows of each leaf: 1 or 0; -1: an exception is set. */
static inline int find_steps(leaf *steps, Py_ssize_t num_leaves, es_vector *v, parts *p)
{
    int ok = 1;
    for (Py_ssize_t i = 0; i < num_leaves && ok == 1; i++)
        ok = find_rows(&steps[i], p->leaves[i], (npy_intp)v->n, (char **)&p->pointers[i]);
    v->leaves = (const void *const *)p->pointers;
    return ok;
}

static inline npy_intp count_ends(const es_vector *v)
{
    npy_intp count = 0;
    for (uint64_t row = 0; row < v->n; row++)
        count += ends_of(v, row) != 0;
    return count;
}

/* Notes where each row's final observations are, of arrays of n rows, or, if they are dense, with one for each row that
 * ends an episode. 1, or 0 if an array is another one; -1: an exception is set. */
static inline int find_finals(leaf *steps, size_t num_leaves, es_vector *v, parts *p, int dense)
{
    if (!make_finals(p, v->n, num_leaves)) {
        PyErr_NoMemory();
        return -1;
    }
    v->finals = p->final_pointers;
    for (size_t i = 0; i < num_leaves; i++) {
        char *at;
        if (p->finals[i] == NULL)
            continue;
        int ok = find_rows(&steps[i], p->finals[i], dense ? count_ends(v) : (npy_intp)v->n, &at);
        if (ok != 1)
            return ok;
        for (uint64_t row = 0; row < v->n; row++) {
            const int ended = ends_of(v, row) != 0;
            if (ended)
                p->final_pointers[row * num_leaves + i] = at;
            at += ended || !dense ? steps[i].distance : 0;
        }
    }
    return 1;
}

/* 1: the row after an end is no step; 0: it is; -1: it is no mode. */
static inline int read_autoreset(PyObject *from)
{
    if (!PyUnicode_CheckExact(from))
        return -1;
    if (PyUnicode_CompareWithASCIIString(from, "next_step") == 0)
        return 1;
    return PyUnicode_CompareWithASCIIString(from, "same_step") == 0 ||
                   PyUnicode_CompareWithASCIIString(from, "disabled") == 0
               ? 0
               : -1;
}

/* Whether all leaves are there that an episode's last observations must have; `needed`: their numbers. */
static inline int has_needed(const parts *p, PyObject *needed)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(needed); i++)
        if (p->finals[PyLong_AsSsize_t(PyTuple_GetItem(needed, i))] == NULL)
            return 0;
    return 1;
}

/* How many rows a tree's first leaf has; -1: it is no array of rows. */
static inline npy_intp count_rows(const parts *p)
{
    PyObject *first = p->leaves[0];
    return PyArray_CheckExact(first) && PyArray_NDIM((PyArrayObject *)first) > 0
               ? PyArray_DIM((PyArrayObject *)first, 0)
               : -1;
}

/* Reads (steps, terminated, truncated, autoreset, final): 1; 0: Python does; -1: an exception is set. form: of a step's
 * tree. needed: the leaves that an episode's last observations must have, by number. */
static inline int read_vector(leaf *steps, Py_ssize_t num_leaves, PyObject *form, PyObject *needed,
                              PyObject *const *args, es_vector *v, parts *p)
{
    const int skips_resets = read_autoreset(args[3]);
    if (form == Py_None || skips_resets < 0)
        return 0;
    int ok = take_apart(args[0], form, p->leaves);
    const npy_intp n = ok ? count_rows(p) : -1;
    if (n < 0) {
        PyErr_Clear();
        return 0;
    }
    v->n = (uint64_t)n;
    v->skips_resets = (uint32_t)skips_resets;
    v->terminated = rows(args[1], NPY_BOOL, 1, &n, 0, &ok);
    v->truncated = rows(args[2], NPY_BOOL, 1, &n, 0, &ok);
    if (ok == 1)
        ok = find_steps(steps, num_leaves, v, p);
    if (ok != 1 || args[4] == Py_None || count_ends(v) == 0)
        return ok;
    if (take_part_apart(args[4], form, p->finals) && has_needed(p, needed))
        return find_finals(steps, (size_t)num_leaves, v, p, 0);
    PyErr_Clear();
    return 0;
}

#endif
