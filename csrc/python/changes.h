/* update(), delete(), reset(), learned() and set_limits() of a Core, and its notes. */
#ifndef ES_PYTHON_CHANGES_H
#define ES_PYTHON_CHANGES_H

#include <stdbool.h>

#include "python/core.h"

/* Bytes of an item that an update or a deletion reads and writes, roughly. */
#define BYTES_OF_AN_ITEM 64

/* Most numbers that an update converts without asking for memory. */
#define FEW 512

/* Whether an array has n floats or doubles that can be read where they are, at any distance from each other. */
static bool has_numbers(PyObject *from, npy_intp n)
{
    if (!PyArray_CheckExact(from))
        return false;
    PyArrayObject *array = (PyArrayObject *)from;
    return PyArray_NDIM(array) == 1 && PyArray_DIM(array, 0) == n && PyArray_ISBEHAVED_RO(array) &&
           (PyArray_TYPE(array) == NPY_DOUBLE || PyArray_TYPE(array) == NPY_FLOAT);
}

static void copy_numbers(double *to, PyArrayObject *from, npy_intp n)
{
    const char *at = PyArray_BYTES(from);
    const npy_intp stride = PyArray_STRIDE(from, 0);
    if (PyArray_TYPE(from) == NPY_DOUBLE)
        for (npy_intp i = 0; i < n; i++)
            to[i] = *(const double *)(const void *)(at + i * stride);
    else
        for (npy_intp i = 0; i < n; i++)
            to[i] = *(const float *)(const void *)(at + i * stride);
}

/* update(table, keys, priorities): see _replay.pyi. */
static PyObject *core_update(core *self, PyObject *const *args, Py_ssize_t nargs)
{
    double few[FEW], *numbers = few;
    npy_intp n = 0;
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "update(table, keys, priorities)");
        return NULL;
    }
    int64_t table = read_table(self, args[0]);
    if (table < 0)
        return NULL;
    const uint64_t *keys = read_keys(args[1], &n);
    if (keys == NULL || !has_numbers(args[2], n))
        Py_RETURN_NONE;
    PyArrayObject *priorities = (PyArrayObject *)args[2];
    const bool as_they_are = PyArray_TYPE(priorities) == NPY_DOUBLE && PyArray_IS_C_CONTIGUOUS(priorities);
    if (as_they_are)
        numbers = PyArray_DATA(priorities);
    else if (n > FEW && (numbers = PyMem_Malloc((size_t)n * sizeof *numbers)) == NULL)
        return PyErr_NoMemory();
    if (!as_they_are)
        copy_numbers(numbers, priorities, n);
    es_trouble why = {0};
    int64_t code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, (size_t)n * BYTES_OF_AN_ITEM,
                    code = self->call.update(self->replay, (uint32_t)table, keys, numbers, (uint64_t)n, &why));
    if (!as_they_are && numbers != few)
        PyMem_Free(numbers);
    return code >= 0 ? PyLong_FromLongLong(code) : trouble(code, &why);
}

static PyObject *core_delete(core *self, PyObject *const *args, Py_ssize_t nargs)
{
    npy_intp n = 0;
    const uint64_t *keys = nargs == 2 ? read_keys(args[1], &n) : NULL;
    if (keys == NULL) {
        PyErr_SetString(PyExc_TypeError, "delete(table, uint64s)");
        return NULL;
    }
    int64_t table = read_table(self, args[0]), code = table < 0 ? 0 : enter(self);
    if (table < 0)
        return NULL;
    if (code == ES_OK)
        LOCKED_CALL(self, (size_t)n * BYTES_OF_AN_ITEM,
                    code = self->call.delete(self->replay, (uint32_t)table, keys, (uint64_t)n));
    return PyLong_FromLongLong(code);
}

static PyObject *core_learned(core *self, PyObject *table_number)
{
    int64_t table = read_table(self, table_number), code = table < 0 ? 0 : enter(self);
    if (table < 0)
        return NULL;
    if (code == ES_OK)
        LOCKED_CALL(self, RELEASE_GIL_FROM, code = self->call.learned(self->replay, (uint32_t)table));
    return PyLong_FromLongLong(code);
}

static PyObject *core_set_limits(core *self, PyObject *args)
{
    PyObject *table_number;
    double min_diff, max_diff;
    if (!PyArg_ParseTuple(args, "Odd", &table_number, &min_diff, &max_diff))
        return NULL;
    int64_t table = read_table(self, table_number), code = table < 0 ? 0 : enter(self);
    if (table < 0)
        return NULL;
    if (code == ES_OK)
        LOCKED_CALL(self, 0, code = self->call.set_limits(self->replay, (uint32_t)table, min_diff, max_diff));
    return PyLong_FromLongLong(code);
}

/* Calls with the bytes of an array of uint8, and how many there are. */
static PyObject *with_bytes(core *self, PyObject *from, bool writes)
{
    PyArrayObject *array = (PyArrayObject *)from;
    if (!PyArray_CheckExact(from) || PyArray_TYPE(array) != NPY_UINT8 || !PyArray_ISCARRAY(array)) {
        PyErr_SetString(PyExc_TypeError, "notes are a contiguous, writable array of uint8");
        return NULL;
    }
    void *bytes = PyArray_DATA(array);
    uint64_t size = (uint64_t)PyArray_NBYTES(array);
    int code = enter(self);
    if (code != ES_OK)
        return PyLong_FromLong(code);
    if (writes)
        self->call.set_notes(self->replay, bytes, size);
    else
        self->call.notes(self->replay, bytes, size);
    leave(self);
    return PyLong_FromLong(code);
}

static PyObject *core_notes(core *self, PyObject *array)
{
    return with_bytes(self, array, false);
}

static PyObject *core_set_notes(core *self, PyObject *array)
{
    return with_bytes(self, array, true);
}

static PyObject *core_reset(core *self, PyObject *table_number)
{
    int64_t table = read_table(self, table_number), code = table < 0 ? 0 : enter(self);
    if (table < 0)
        return NULL;
    if (code == ES_OK)
        LOCKED_CALL(self, RELEASE_GIL_FROM, code = self->call.reset(self->replay, (uint32_t)table));
    return PyLong_FromLongLong(code);
}

#endif
