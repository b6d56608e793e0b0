/* What a Core says of its store and changes nothing: what tables can do and have, and the steps. */
#ifndef ES_PYTHON_LOOKUPS_H
#define ES_PYTHON_LOOKUPS_H

#include <stdbool.h>
#include <string.h>

#include "python/core.h"

static PyObject *ask(core *self, PyObject *args, int (*question)(es_replay *, uint32_t, uint64_t))
{
    PyObject *table_number;
    unsigned long long n;
    if (!PyArg_ParseTuple(args, "OK", &table_number, &n))
        return NULL;
    int64_t table = read_table(self, table_number);
    if (table < 0)
        return NULL;
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, 0, code = question(self->replay, (uint32_t)table, n));
    return PyLong_FromLong(code);
}

static PyObject *core_can_sample(core *self, PyObject *args)
{
    return ask(self, args, self->call.can_sample);
}

static PyObject *core_can_insert(core *self, PyObject *args)
{
    return ask(self, args, self->call.can_insert);
}

static PyObject *core_check_priority(core *self, PyObject *args)
{
    PyObject *table_number;
    double priority;
    if (!PyArg_ParseTuple(args, "Od", &table_number, &priority))
        return NULL;
    int64_t table = read_table(self, table_number);
    if (table < 0)
        return NULL;
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, 0, code = self->call.check_priority(self->replay, (uint32_t)table, priority));
    return PyLong_FromLong(code);
}

static PyObject *core_info(core *self, PyObject *table_number)
{
    es_table_info info;
    int64_t table = read_table(self, table_number);
    if (table < 0)
        return NULL;
    memset(&info, 0, sizeof info);
    int code = enter(self);
    if (code != ES_OK)
        return PyLong_FromLong(code);
    LOCKED_CALL(self, 0, self->call.info(self->replay, (uint32_t)table, &info));
    return PyBytes_FromStringAndSize((const char *)&info, sizeof info);
}

static PyObject *core_num_steps(core *self, PyObject *nothing)
{
    (void)nothing;
    return call_number(self, self->call.num_steps);
}

/* list_steps(): the bytes of an es_stored_step for each step. */
static PyObject *core_list_steps(core *self, PyObject *nothing)
{
    (void)nothing;
    int code = enter(self);
    if (code != ES_OK)
        return PyLong_FromLong(code);
    uint64_t n = self->call.num_steps(self->replay);
    es_stored_step *steps = PyMem_Calloc(n + 1, sizeof *steps);
    if (steps == NULL) {
        leave(self);
        return PyErr_NoMemory();
    }
    LOCKED_CALL(self, n * sizeof *steps, n = self->call.list_steps(self->replay, steps, n));
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)steps, (Py_ssize_t)(n * sizeof *steps));
    PyMem_Free(steps);
    return bytes;
}

/* read_steps(steps, leaves): see _replay.pyi. */
static PyObject *core_read_steps(core *self, PyObject *args)
{
    const char *listed;
    Py_ssize_t size;
    PyObject *arrays;
    if (!PyArg_ParseTuple(args, "y#O!", &listed, &size, &PyTuple_Type, &arrays))
        return NULL;
    npy_intp n = size / (Py_ssize_t)sizeof(es_stored_step);
    bool fits = PyTuple_Size(arrays) == self->num_leaves && size % (Py_ssize_t)sizeof(es_stored_step) == 0;
    void **leaves = PyMem_Malloc((size_t)self->num_leaves * sizeof *leaves + 1);
    if (leaves == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; fits && i < self->num_leaves; i++) {
        leaf *l = &self->steps[i];
        PyObject *array = PyTuple_GetItem(arrays, i);
        l->shape[0] = n;
        fits = is_exact(array, l->dtype, l->ndim, l->shape) == 1 && PyArray_ISWRITEABLE((PyArrayObject *)array);
        if (fits)
            leaves[i] = PyArray_DATA((PyArrayObject *)array);
    }
    int64_t done = fits ? enter(self) : ES_OK;
    if (fits && done == ES_OK)
        LOCKED_CALL(self, (size_t)n * self->step_bytes,
                    done = (int64_t)self->call.read_steps(self->replay, (const es_stored_step *)(const void *)listed,
                                                          (uint64_t)n, leaves));
    PyMem_Free(leaves);
    if (!fits) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "read_steps(bytes of listed steps, arrays of leaves)");
        return NULL;
    }
    return PyLong_FromLongLong(done);
}

#endif
