/* add(), add_each(), extend() and end_episode() of a Core. */
#ifndef ES_PYTHON_INSERTS_H
#define ES_PYTHON_INSERTS_H

#include <math.h>
#include <string.h>

#include "python/core.h"
#include "python/rows.h"
#include "python/scalars.h"
#include "python/trees.h"

/* The same priority for all tables. 1: read; 0: it is none, and Python says so. */
static int read_priority(const core *self, PyObject *from, double *priorities)
{
    double value = -1; /* each table's highest */
    if (from != Py_None) {
        if (!PyFloat_Check(from) && !PyLong_CheckExact(from) && !PyArray_IsScalar(from, Floating))
            return 0;
        value = PyFloat_AsDouble(from);
        if (value == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
        if (!(value >= 0) || isinf(value))
            return 0;
    }
    for (uint32_t t = 0; t < self->num_tables; t++)
        priorities[t] = value;
    return 1;
}

/* Stores one step; or two where `final` is not NULL: the last of an episode, and the observations that it ends with.
 * None: it is stored; True: so it is, and threads wait for a change; False: a leaf is not exact; else what is wrong. */
static PyObject *insert(core *self, uint32_t flags, const double *priorities, PyObject *const *leaves,
                        PyObject *const *final)
{
    void *few[16], **pointers = few;
    scalar few_scalars[16], *scalars = few_scalars;
    const Py_ssize_t n = self->num_leaves, all = final == NULL ? n : 2 * n;
    if (all > (Py_ssize_t)(sizeof few / sizeof *few)) {
        pointers = PyMem_Malloc((size_t)all * (sizeof *pointers + sizeof *scalars));
        if (pointers == NULL)
            return PyErr_NoMemory();
        scalars = (scalar *)(pointers + all);
    }
    int ok = 1;
    for (Py_ssize_t i = 0; i < all && ok == 1; i++) {
        const leaf *l = &self->steps[i % n];
        PyObject *value = i < n ? leaves[i] : final[i - n];
        ok = is_exact(value, l->dtype, l->ndim - 1, l->shape + 1);
        if (ok == 1)
            pointers[i] = PyArray_DATA((PyArrayObject *)value);
        else if (ok == 0 && l->ndim == 1 && (ok = read_scalar(value, l->dtype, &scalars[i])))
            pointers[i] = &scalars[i];
    }
    const void *const *step = (const void *const *)pointers;
    es_trouble why = {0};
    int code = ok == 1 ? enter(self) : ES_OK;
    if (ok == 1 && code == ES_OK)
        LOCKED_CALL(self, self->step_bytes,
                    code = final == NULL ? self->call.add(self->replay, step, flags, priorities, &why)
                                         : self->call.add_last(self->replay, step, step + n, flags, priorities, &why));
    if (pointers != few)
        PyMem_Free(pointers);
    if (ok < 0)
        return NULL;
    if (ok == 0)
        Py_RETURN_FALSE;
    if (code != ES_OK)
        return trouble(code, &why);
    if (self->waiting)
        Py_RETURN_TRUE;
    Py_RETURN_NONE;
}

/* -1: an exception is set. */
static int read_flags(PyObject *terminated, PyObject *truncated)
{
    int first = terminated == Py_False ? 0 : PyObject_IsTrue(terminated);
    int second = truncated == Py_False ? 0 : PyObject_IsTrue(truncated);
    if (first < 0 || second < 0)
        return -1;
    return (first ? ES_STEP_TERMINATED : 0) | (second ? ES_STEP_TRUNCATED : 0);
}

/* Whether it is a number of seconds of the usual kind. Python deals with all others. */
static int is_plain_timeout(PyObject *from)
{
    if (from == Py_None)
        return 1;
    if (!PyFloat_CheckExact(from) && !PyLong_CheckExact(from))
        return 0;
    int plain = PyFloat_AsDouble(from) >= 0; /* -1 after an overflow */
    PyErr_Clear();
    return plain;
}

/* add(step, terminated, truncated, priority, timeout): see _replay.pyi. */
static PyObject *core_add(core *self, PyObject *const *args, Py_ssize_t nargs)
{
    double priorities[ES_MAX_TABLES];
    PyObject *few[16] = {NULL}, **leaves = few, *result = NULL;
    Py_ssize_t n = self->num_leaves;
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "add(step, terminated, truncated, priority, timeout)");
        return NULL;
    }
    if (self->form == Py_None || !is_plain_timeout(args[4]) || !read_priority(self, args[3], priorities))
        Py_RETURN_FALSE;
    int flags = read_flags(args[1], args[2]);
    if (flags < 0)
        return NULL;
    if (n > (Py_ssize_t)(sizeof few / sizeof *few) && (leaves = PyMem_Calloc((size_t)n, sizeof *leaves)) == NULL)
        return PyErr_NoMemory();
    if (take_apart(args[0], self->form, leaves)) {
        result = insert(self, (uint32_t)flags, priorities, leaves, NULL);
    } else {
        PyErr_Clear();
        result = PyBool_FromLong(0);
    }
    for (Py_ssize_t i = 0; i < n; i++)
        Py_XDECREF(leaves[i]);
    if (leaves != few)
        PyMem_Free(leaves);
    return result;
}

/* add_each(terminated, truncated, float64s, leaf0, leaf1, ...): see _replay.pyi. As many leaves again are a final
 * observation. */
static PyObject *core_add_each(core *self, PyObject *const *args, Py_ssize_t nargs)
{
    double priorities[ES_MAX_TABLES];
    const Py_ssize_t n = self->num_leaves;
    if ((nargs != n + 3 && nargs != 2 * n + 3) || !PyBytes_Check(args[2]) ||
        PyBytes_Size(args[2]) != (Py_ssize_t)(self->num_tables * sizeof *priorities)) {
        PyErr_SetString(PyExc_TypeError, "add_each(terminated, truncated, float64s, leaf0, leaf1, ...)");
        return NULL;
    }
    int flags = read_flags(args[0], args[1]);
    if (flags < 0)
        return NULL;
    memcpy(priorities, PyBytes_AsString(args[2]), self->num_tables * sizeof *priorities);
    return insert(self, (uint32_t)flags, priorities, args + 3, nargs > n + 3 ? args + 3 + n : NULL);
}

/* extend(leaves, total, first, n, flags, priorities): see _replay.pyi. */
static PyObject *core_extend(core *self, PyObject *args)
{
    PyObject *leaves, *flags, *priorities;
    Py_ssize_t total, first, n;
    if (!PyArg_ParseTuple(args, "O!nnnOO", &PyTuple_Type, &leaves, &total, &first, &n, &flags, &priorities))
        return NULL;
    int ok = PyTuple_Size(leaves) == self->num_leaves && first >= 0 && n >= 0 && n <= total && first <= total - n;
    const npy_intp shape[] = {total, self->num_tables};
    const uint8_t *flag_rows = rows(flags, NPY_UINT8, 1, shape, first, &ok);
    const double *priority_rows = rows(priorities, NPY_DOUBLE, 2, shape, first, &ok);
    void **pointers = PyMem_Malloc((size_t)self->num_leaves * sizeof *pointers + 1);
    if (pointers == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < self->num_leaves && ok == 1; i++) {
        leaf *l = &self->steps[i];
        PyObject *array = PyTuple_GetItem(leaves, i);
        l->shape[0] = total;
        ok = is_exact(array, l->dtype, l->ndim, l->shape);
        if (ok == 1)
            pointers[i] = PyArray_BYTES((PyArrayObject *)array) + first * l->distance;
    }
    es_trouble why = {0};
    int64_t sent = 0;
    int code = ok == 1 ? enter(self) : ES_OK;
    if (ok == 1 && code == ES_OK)
        LOCKED_CALL(self, (size_t)n * self->step_bytes,
                    sent = self->call.extend(self->replay, (const void *const *)pointers, (uint64_t)n, flag_rows,
                                             priority_rows, &code, &why));
    PyMem_Free(pointers);
    if (ok != 1) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "extend(leaves, total, first, n, flags, priorities): exact arrays only");
        return NULL;
    }
    return Py_BuildValue("(LN)", (long long)sent, trouble(sent < n ? code : ES_OK, &why));
}

/* set_version(version, by_hand), version(): see _replay.pyi. */
static PyObject *core_set_version(core *self, PyObject *args)
{
    long long version;
    int by_hand;
    if (!PyArg_ParseTuple(args, "Lp", &version, &by_hand))
        return NULL;
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, 0, self->call.set_version(self->replay, version, by_hand));
    return PyLong_FromLong(code);
}

static PyObject *core_version(core *self, PyObject *nothing)
{
    int64_t version = 0;
    (void)nothing;
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, 0, version = self->call.version(self->replay));
    return PyLong_FromLongLong(code == ES_OK ? version : code);
}

/* end_episode(environments): see _replay.pyi. */
static PyObject *core_end_episode(core *self, PyObject *environments)
{
    int ok = 1;
    npy_intp n =
        environments != Py_None && PyArray_CheckExact(environments) && PyArray_NDIM((PyArrayObject *)environments) == 1
            ? PyArray_DIM((PyArrayObject *)environments, 0)
            : 0;
    const int64_t *some = rows(environments, NPY_INT64, 1, &n, 0, &ok);
    if (!ok) {
        PyErr_SetString(PyExc_TypeError, "end_episode(environments): an array of int64, or None");
        return NULL;
    }
    int code = enter(self);
    if (code == ES_OK && environments == Py_None)
        LOCKED_CALL(self, 0, self->call.end_episode(self->replay));
    else if (code == ES_OK)
        LOCKED_CALL(self, 0, self->call.end_episodes(self->replay, some, (uint64_t)n));
    return PyLong_FromLong(code);
}

#endif
