/* add_vector() and add_rows() of a Core: a step of each of several environments. */
#ifndef ES_PYTHON_VECTORS_H
#define ES_PYTHON_VECTORS_H

#include "python/core.h"
#include "python/inserts.h"
#include "python/rows.h"

/* The rest of both calls: how many rows are done. Nobody can change the environments meanwhile, which were checked. */
static int64_t store_rows(core *self, es_vector *v, uint64_t first, int *code, es_trouble *why)
{
    const size_t bytes = (size_t)(v->n - first) * self->step_bytes;
    int64_t done = (int64_t)first, *copy = NULL;
    if (v->environments != NULL && bytes >= RELEASE_GIL_FROM) {
        copy = PyMem_Malloc((size_t)v->n * sizeof *copy);
        *code = -ENOMEM;
        if (copy == NULL)
            return done;
        memcpy(copy, v->environments, (size_t)v->n * sizeof *copy);
        v->environments = copy;
    }
    *code = enter(self);
    if (*code == ES_OK)
        LOCKED_CALL(self, bytes, done = self->call.add_vector(self->replay, v, first, code, why));
    PyMem_Free(copy);
    return done;
}

/* The fields that are arrays of n numbers: 1, or 0 if one is something else. */
static int read_columns(const core *self, es_vector *v, PyObject *terminated, PyObject *truncated,
                        PyObject *environments, PyObject *priorities)
{
    const npy_intp shape[] = {(npy_intp)v->n, self->num_tables};
    int ok = 1;
    v->terminated = rows(terminated, NPY_BOOL, 1, shape, 0, &ok);
    v->truncated = rows(truncated, NPY_BOOL, 1, shape, 0, &ok);
    v->environments = rows(environments, NPY_INT64, 1, shape, 0, &ok);
    v->priorities = rows(priorities, NPY_DOUBLE, 2, shape, 0, &ok);
    return ok;
}

/* add_vector(steps, terminated, truncated, autoreset, final, priorities, environments, timeout, needed): see
 * _replay.pyi. */
static PyObject *core_add_vector(core *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 9 || !PyTuple_Check(args[8])) {
        PyErr_SetString(PyExc_TypeError, "add_vector(steps, terminated, truncated, autoreset, final, priorities, "
                                         "environments, timeout, needed)");
        return NULL;
    }
    if (args[5] != Py_None || !is_plain_timeout(args[7]))
        Py_RETURN_FALSE;
    parts p;
    if (!make_parts(&p, self->num_leaves))
        return PyErr_NoMemory();
    es_vector v = {0};
    es_trouble why = {0};
    int64_t done = 0;
    int code = ES_OK, ok = read_vector(self->steps, self->num_leaves, self->form, args[8], args, &v, &p);
    const npy_intp n = (npy_intp)v.n;
    if (ok == 1)
        v.environments = rows(args[6], NPY_INT64, 1, &n, 0, &ok);
    if (ok == 1)
        done = store_rows(self, &v, 0, &code, &why);
    drop_parts(&p, self->num_leaves);
    if (ok < 0)
        return NULL;
    if (ok == 0 || code == ES_EENVIRONMENT || code == ES_ERESET)
        Py_RETURN_FALSE;
    if (code != ES_OK)
        return Py_BuildValue("(LN)", (long long)done, trouble(code, &why));
    if (self->waiting)
        Py_RETURN_TRUE;
    Py_RETURN_NONE;
}

/* Takes references to the members of a tuple of arrays, one for each leaf. */
static void take_leaves(PyObject **to, PyObject *from, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        to[i] = PyTuple_GetItem(from, i);
        Py_INCREF(to[i]);
    }
}

/* add_rows(first, n, leaves, finals, terminated, truncated, skips_resets, priorities, environments): see _replay.pyi. */
static PyObject *core_add_rows(core *self, PyObject *args)
{
    PyObject *leaves, *finals, *terminated, *truncated, *priorities, *environments;
    Py_ssize_t first, n;
    int skips_resets;
    if (!PyArg_ParseTuple(args, "nnO!OOOpOO", &first, &n, &PyTuple_Type, &leaves, &finals, &terminated, &truncated,
                          &skips_resets, &priorities, &environments))
        return NULL;
    parts p;
    if (!make_parts(&p, self->num_leaves))
        return PyErr_NoMemory();
    const int known = finals != Py_None;
    es_vector v = {.n = (uint64_t)n, .skips_resets = skips_resets != 0};
    es_trouble why = {0};
    int64_t done = 0;
    int code = ES_OK, ok = 0 <= first && first <= n && PyTuple_Size(leaves) == self->num_leaves &&
                           (!known || (PyTuple_Check(finals) && PyTuple_Size(finals) == self->num_leaves));
    if (ok) {
        take_leaves(p.leaves, leaves, self->num_leaves);
        if (known)
            take_leaves(p.finals, finals, self->num_leaves);
        ok = read_columns(self, &v, terminated, truncated, environments, priorities);
    }
    if (ok == 1)
        ok = find_steps(self->steps, self->num_leaves, &v, &p);
    if (ok == 1 && known)
        ok = find_finals(self->steps, (size_t)self->num_leaves, &v, &p, 1);
    if (ok == 1)
        done = store_rows(self, &v, (uint64_t)first, &code, &why);
    drop_parts(&p, self->num_leaves);
    if (ok != 1) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "add_rows(): exact arrays only");
        return NULL;
    }
    return Py_BuildValue("(LN)", (long long)done, trouble(code, &why));
}

#endif
