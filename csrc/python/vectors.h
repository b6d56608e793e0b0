/* add_vector() and add_rows() of a Core: a step of each of several environments. */
#ifndef ES_PYTHON_VECTORS_H
#define ES_PYTHON_VECTORS_H

#include "python/core.h"
#include "python/inserts.h"
#include "python/trees.h"

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
static int make_parts(parts *p, Py_ssize_t num_leaves)
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

static void drop_parts(parts *p, Py_ssize_t num_leaves)
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
static int make_finals(parts *p, size_t n, size_t num_leaves)
{
    if (n * num_leaves <= sizeof p->few_final_pointers / sizeof *p->few_final_pointers) {
        memset(p->few_final_pointers, 0, n * num_leaves * sizeof *p->few_final_pointers);
        p->final_pointers = p->few_final_pointers;
    } else {
        p->final_pointers = PyMem_Calloc(n * num_leaves, sizeof *p->final_pointers);
    }
    return p->final_pointers != NULL;
}

static int ends(const es_vector *v, uint64_t row)
{
    return (v->terminated != NULL && v->terminated[row]) || (v->truncated != NULL && v->truncated[row]);
}

/* Whether an array has n rows of a leaf, and where: 1 or 0; -1: an exception is set. */
static int find_rows(leaf *l, PyObject *array, npy_intp n, char **at)
{
    l->shape[0] = n;
    int ok = is_exact(array, l->dtype, l->ndim, l->shape);
    if (ok == 1)
        *at = PyArray_BYTES((PyArrayObject *)array);
    return ok;
}

/* The rows of each leaf: 1 or 0; -1: an exception is set. */
static int find_steps(core *self, es_vector *v, parts *p)
{
    int ok = 1;
    for (Py_ssize_t i = 0; i < self->num_leaves && ok == 1; i++)
        ok = find_rows(&self->steps[i], p->leaves[i], (npy_intp)v->n, (char **)&p->pointers[i]);
    v->leaves = (const void *const *)p->pointers;
    return ok;
}

static npy_intp count_ends(const es_vector *v)
{
    npy_intp count = 0;
    for (uint64_t row = 0; row < v->n; row++)
        count += ends(v, row);
    return count;
}

/* Notes where each row's final observations are, of arrays of n rows, or, if they are dense, with one for each row that
 * ends an episode. 1, or 0 if an array is another one; -1: an exception is set. */
static int find_finals(core *self, es_vector *v, parts *p, int dense)
{
    const size_t num_leaves = (size_t)self->num_leaves;
    if (!make_finals(p, v->n, num_leaves)) {
        PyErr_NoMemory();
        return -1;
    }
    v->finals = p->final_pointers;
    for (size_t i = 0; i < num_leaves; i++) {
        char *at;
        if (p->finals[i] == NULL)
            continue;
        int ok = find_rows(&self->steps[i], p->finals[i], dense ? count_ends(v) : (npy_intp)v->n, &at);
        if (ok != 1)
            return ok;
        for (uint64_t row = 0; row < v->n; row++) {
            const int ended = ends(v, row);
            if (ended)
                p->final_pointers[row * num_leaves + i] = at;
            at += ended || !dense ? self->steps[i].distance : 0;
        }
    }
    return 1;
}

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

/* 1: the row after an end is no step; 0: it is; -1: it is no mode. */
static int read_autoreset(PyObject *from)
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
static int has_needed(const parts *p, PyObject *needed)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(needed); i++)
        if (p->finals[PyLong_AsSsize_t(PyTuple_GetItem(needed, i))] == NULL)
            return 0;
    return 1;
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

/* How many rows a tree's first leaf has; -1: it is no array of rows. */
static npy_intp count_rows(const parts *p)
{
    PyObject *first = p->leaves[0];
    return PyArray_CheckExact(first) && PyArray_NDIM((PyArrayObject *)first) > 0
               ? PyArray_DIM((PyArrayObject *)first, 0)
               : -1;
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
    const int skips_resets = read_autoreset(args[3]);
    if (self->form == Py_None || skips_resets < 0 || args[5] != Py_None || !is_plain_timeout(args[7]))
        Py_RETURN_FALSE;
    parts p;
    if (!make_parts(&p, self->num_leaves))
        return PyErr_NoMemory();
    es_vector v = {.skips_resets = (uint32_t)skips_resets};
    es_trouble why = {0};
    int64_t done = 0;
    int code = ES_OK;
    int ok = take_apart(args[0], self->form, p.leaves);
    if (!ok)
        PyErr_Clear();
    const npy_intp n = ok ? count_rows(&p) : -1;
    ok = n >= 0;
    if (ok) {
        v.n = (uint64_t)n;
        ok = read_columns(self, &v, args[1], args[2], args[6], args[5]);
    }
    if (ok == 1)
        ok = find_steps(self, &v, &p);
    if (ok == 1 && args[4] != Py_None && count_ends(&v) > 0) {
        if (take_part_apart(args[4], self->form, p.finals) && has_needed(&p, args[8]))
            ok = find_finals(self, &v, &p, 0);
        else
            ok = 0;
        if (ok == 0)
            PyErr_Clear();
    }
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
        ok = find_steps(self, &v, &p);
    if (ok == 1 && known)
        ok = find_finals(self, &v, &p, 1);
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
