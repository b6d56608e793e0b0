/* The arrays of the latest batches. The next batch has them, if nobody refers to them any more: to make a dozen new
 * objects takes as long as to draw some twenty items.
 *
 * Nothing may show that an array is the same object as before. So one that was changed, or has a weak reference, is not
 * used again.
 */
#ifndef ES_PYTHON_KEPT_H
#define ES_PYTHON_KEPT_H

#include <Python.h>
#include <stdbool.h>

#include "python/arrays.h"
#include "python/pool.h"

/* A loop has one batch while it asks for the next, and a few that were drawn ahead. */
#define KEPT 4

typedef struct {
    PyObject *arrays; /* a tuple; NULL: none */
    block *memory;    /* of all of them */
    npy_intp n;
} kept;

static void keep_arrays(kept *k, PyObject *arrays, block *memory, npy_intp n)
{
    const kept old = *k;
    Py_INCREF(arrays);
    Py_INCREF(memory);
    *k = (kept){arrays, memory, n};
    Py_XDECREF(old.arrays); /* last: code of Python's may run */
    Py_XDECREF(old.memory);
}

static void forget_arrays(kept k[KEPT])
{
    for (int i = 0; i < KEPT; i++) {
        const kept old = k[i];
        k[i] = (kept){0};
        Py_XDECREF(old.arrays);
        Py_XDECREF(old.memory);
    }
}

/* Whether nobody but the tuple refers to the array, and it is as it was made. */
static bool is_unused(PyObject *value, const leaf *l, npy_intp n, const char *data, const block *memory)
{
    PyArrayObject *array = (PyArrayObject *)value;
    if (Py_REFCNT(value) != 1 || PyArray_BASE(array) != (const PyObject *)memory || PyArray_BYTES(array) != data ||
        PyArray_DESCR(array) != (PyArray_Descr *)l->dtype || PyArray_NDIM(array) != l->ndim ||
        PyArray_DIM(array, 0) != n || !PyArray_CHKFLAGS(array, NPY_ARRAY_CARRAY) ||
        ((PyArrayObject_fields *)(void *)array)->weakreflist != NULL)
        return false;
    for (int d = 1; d < l->ndim; d++)
        if (PyArray_DIM(array, d) != l->shape[d])
            return false;
    return true;
}

static bool all_unused(const kept *k, const leaf *leaves, Py_ssize_t count)
{
    if (k->arrays == NULL || Py_REFCNT(k->arrays) != 1)
        return false;
    const char *at = k->memory->memory;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!is_unused(PyTuple_GetItem(k->arrays, i), &leaves[i], k->n, at, k->memory))
            return false;
        at += padded((size_t)k->n * (size_t)leaves[i].distance);
    }
    return true;
}

/* The arrays of a batch of n items that nobody refers to any more; NULL: there is none. */
static PyObject *unused_arrays(const kept k[KEPT], npy_intp n, const leaf *leaves, Py_ssize_t count)
{
    for (int i = 0; i < KEPT; i++)
        if (k[i].n == n && all_unused(&k[i], leaves, count)) {
            Py_INCREF(k[i].arrays);
            return k[i].arrays;
        }
    return NULL;
}

#endif
