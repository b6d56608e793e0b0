/* sample() and get() of a Core: they fill a batch's arrays. */
#ifndef ES_PYTHON_DRAWS_H
#define ES_PYTHON_DRAWS_H

#include <errno.h>
#include <math.h>
#include <stdbool.h>

#include "python/core.h"
#include "python/trees.h"

/* Bytes of a block for n items; 0 when that is out of range. own: where the pool's own arrays begin. */
static size_t block_size(const batch_form *form, npy_intp n, Py_ssize_t own)
{
    size_t size = 0;
    for (Py_ssize_t i = own; i < form->num_outputs + ES_BATCH_COLUMNS; i++) {
        size_t bytes;
        if (__builtin_mul_overflow((size_t)n, (size_t)form->arrays[i].distance, &bytes) || bytes > SIZE_MAX / 4 ||
            size + padded(bytes) > SIZE_MAX / 4)
            return 0;
        size += padded(bytes);
    }
    return size;
}

/* Whether out is a tuple of an array for each leaf of the data, of n items, to be written into. */
static bool fits_out(const batch_form *form, PyObject *out, npy_intp n)
{
    if (!PyTuple_Check(out) || PyTuple_Size(out) != form->num_outputs)
        return false;
    for (Py_ssize_t i = 0; i < form->num_outputs; i++) {
        leaf *l = &form->arrays[i];
        PyObject *array = PyTuple_GetItem(out, i);
        l->shape[0] = n;
        if (is_exact(array, l->dtype, l->ndim, l->shape) != 1 || !PyArray_ISWRITEABLE((PyArrayObject *)array))
            return false;
    }
    return true;
}

/* The arrays of a batch of n items: those of out, or of a new block, and the columns. NULL: an exception is set. */
static PyObject *make_arrays(batch_form *form, npy_intp n, PyObject *out)
{
    Py_ssize_t own = out == Py_None ? 0 : form->num_outputs, count = form->num_outputs + ES_BATCH_COLUMNS;
    size_t size = n > 0 ? block_size(form, n, own) : 0;
    if (size == 0) {
        PyErr_Format(PyExc_MemoryError, "a batch of %zd items does not fit into memory", (Py_ssize_t)n);
        return NULL;
    }
    if (out != Py_None && !fits_out(form, out, n)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "out: a tuple of an exact, writable array for each leaf");
        return NULL;
    }
    if (own == 0 && size < MAP_FROM) {
        PyObject *unused = unused_arrays(form->kept, n, form->arrays, count);
        if (unused != NULL)
            return unused;
    }
    /* First: a new tuple may start the garbage collection, which runs code of Python's. From here on none runs. */
    PyObject *made = PyTuple_New(count);
    block *memory = made == NULL ? NULL : block_new(form->pool, size);
    if (memory == NULL) {
        Py_XDECREF(made);
        return NULL;
    }
    char *at = memory->memory;
    for (Py_ssize_t i = 0; i < count && made != NULL; i++) {
        leaf *l = &form->arrays[i];
        PyObject *array;
        if (i < own) {
            array = PyTuple_GetItem(out, i);
            Py_INCREF(array);
        } else {
            l->data = at;
            l->shape[0] = n;
            at += padded((size_t)n * (size_t)l->distance);
            array = array_over(l, 0, (PyObject *)memory);
        }
        if (array == NULL || PyTuple_SetItem(made, i, array) != 0)
            Py_CLEAR(made);
    }
    if (made != NULL && own == 0 && size < MAP_FROM && !form->pool->closed) {
        kept *next = &form->kept[form->next_kept];
        form->next_kept = (form->next_kept + 1) % KEPT;
        keep_arrays(next, made, memory, n);
    }
    Py_DECREF(memory); /* the arrays have it */
    return made;
}

/* The arrays of a batch, as the core takes them. *p: room for FEW_ARRAYS pointers, or a new block when there are more.
 * false: an exception is set. */
#define FEW_ARRAYS (16 + ES_BATCH_COLUMNS)
static bool open_arrays(const batch_form *form, PyObject *made, void ***p, es_batch_arrays *arrays)
{
    Py_ssize_t count = form->num_outputs + ES_BATCH_COLUMNS;
    if (count > FEW_ARRAYS && (*p = PyMem_Malloc((size_t)count * sizeof **p)) == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        (*p)[i] = PyArray_DATA((PyArrayObject *)PyTuple_GetItem(made, i));
    void **c = *p + form->num_outputs;
    *arrays = (es_batch_arrays){
        .leaves = *p,
        .key = c[0],
        .probability = c[1],
        .weight = c[2],
        .priority = c[3],
        .times_sampled = c[4],
        .table_size = c[5],
        .age = c[6],
        .version = c[7],
    };
    return true;
}

/* Draws n items, or gets those with the keys. Returns the arrays, or what is wrong. */
static PyObject *fill(core *self, uint32_t table, npy_intp n, double beta, const uint64_t *keys, PyObject *out)
{
    batch_form *form = &self->tables[table];
    PyObject *made = make_arrays(form, n, out);
    if (made == NULL)
        return NULL;
    void *few[FEW_ARRAYS], **p = few;
    es_batch_arrays arrays;
    if (!open_arrays(form, made, &p, &arrays)) {
        Py_DECREF(made);
        return NULL;
    }
    es_trouble why = {0};
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, (size_t)n * (form->item_bytes + 8 * ES_BATCH_COLUMNS),
                    code = keys == NULL ? self->call.sample(self->replay, table, (uint64_t)n, beta, &arrays)
                                        : self->call.get(self->replay, table, keys, (uint64_t)n, beta, &arrays, &why));
    if (p != few)
        PyMem_Free(p);
    if (code == ES_OK)
        return made;
    Py_DECREF(made);
    if (code == -ENOMEM)
        return PyErr_NoMemory();
    return keys == NULL ? PyLong_FromLong(code) : trouble(code, &why);
}

static PyObject *core_sample(core *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4) {
        PyErr_SetString(PyExc_TypeError, "sample(table, n, beta, out)");
        return NULL;
    }
    int64_t table = read_table(self, args[0]);
    Py_ssize_t n = table < 0 ? -1 : PyLong_AsSsize_t(args[1]);
    double beta = args[2] == Py_None ? NAN : PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred())
        return NULL;
    return fill(self, (uint32_t)table, n, beta, NULL, args[3]);
}

/* weigh(table, weights), put_back(table, arrays): of a batch that sample() has returned with a negative beta. */
static PyObject *core_weigh(core *self, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t table = nargs == 2 ? read_table(self, args[0]) : -1;
    if (table < 0 || !PyArray_CheckExact(args[1]) || PyArray_TYPE((PyArrayObject *)args[1]) != NPY_DOUBLE) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "weigh(table, float64s)");
        return NULL;
    }
    PyArrayObject *weights = (PyArrayObject *)args[1];
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, 0,
                    self->call.weigh(self->replay, (uint32_t)table, PyArray_DATA(weights),
                                     (uint64_t)PyArray_DIM(weights, 0), NAN));
    return PyLong_FromLong(code);
}

static PyObject *core_put_back(core *self, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t table = nargs == 2 ? read_table(self, args[0]) : -1;
    const batch_form *form = table < 0 ? NULL : &self->tables[table];
    if (form == NULL || !PyTuple_Check(args[1]) || PyTuple_Size(args[1]) != form->num_outputs + ES_BATCH_COLUMNS) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "put_back(table, arrays)");
        return NULL;
    }
    PyArrayObject *keys = (PyArrayObject *)PyTuple_GetItem(args[1], form->num_outputs);
    void *few[FEW_ARRAYS], **p = few;
    es_batch_arrays arrays;
    if (!open_arrays(form, args[1], &p, &arrays))
        return NULL;
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, 0,
                    code = self->call.put_back(self->replay, (uint32_t)table, (uint64_t)PyArray_DIM(keys, 0), &arrays));
    if (p != few)
        PyMem_Free(p);
    return PyLong_FromLong(code);
}

static PyObject *core_get(core *self, PyObject *const *args, Py_ssize_t nargs)
{
    npy_intp n = 0;
    const uint64_t *keys = nargs == 2 ? read_keys(args[1], &n) : NULL;
    if (keys == NULL) {
        PyErr_SetString(PyExc_TypeError, "get(table, uint64s)");
        return NULL;
    }
    int64_t table = read_table(self, args[0]);
    return table < 0 ? NULL : fill(self, (uint32_t)table, n, NAN, keys, Py_None);
}

/* batch(table, type, arrays): see _replay.pyi. */
static PyObject *core_batch(core *self, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t table = nargs == 3 ? read_table(self, args[0]) : -1;
    const batch_form *form = table < 0 ? NULL : &self->tables[table];
    if (form == NULL || !PyType_Check(args[1]) || !PyType_IsSubtype((PyTypeObject *)args[1], &PyTuple_Type) ||
        !PyTuple_Check(args[2]) || PyTuple_Size(args[2]) != form->num_outputs + ES_BATCH_COLUMNS) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "batch(table, type, arrays)");
        return NULL;
    }
    if (form->tree == Py_None)
        Py_RETURN_NONE;
    PyObject *data = build(form->tree, args[2]);
    PyObject *made = data == NULL ? NULL : PyType_GenericAlloc((PyTypeObject *)args[1], 1 + ES_BATCH_COLUMNS);
    if (made == NULL) {
        Py_XDECREF(data);
        return NULL;
    }
    (void)PyTuple_SetItem(made, 0, data); /* nobody else has it yet, so it cannot fail */
    for (Py_ssize_t i = 0; i < ES_BATCH_COLUMNS; i++) {
        PyObject *column = PyTuple_GetItem(args[2], form->num_outputs + i);
        Py_INCREF(column);
        (void)PyTuple_SetItem(made, 1 + i, column);
    }
    return made;
}

#endif
