/* The numbers of one stream's next step, and the heads of what a writer sends. */
#ifndef ES_PYTHON_NUMBERS_H
#define ES_PYTHON_NUMBERS_H

#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#include "python/arrays.h"
#include "replay/es_replay_types.h"

static PyTypeObject *numbers_type; /* set with the module */

typedef struct {
    PyObject_HEAD unsigned long long stream;
    long long number, index, episode;
} numbers;

/* Where an array of bytes has a head with room for `room` bytes after it; NULL: an exception is set. */
static uint8_t *head_in(PyObject *array, size_t room)
{
    if (PyArray_CheckExact(array) && PyArray_IS_C_CONTIGUOUS((PyArrayObject *)array) &&
        (size_t)PyArray_NBYTES((PyArrayObject *)array) >= sizeof(es_inbox_head) + room)
        return PyArray_DATA((PyArrayObject *)array);
    PyErr_SetString(PyExc_TypeError, "a head is a contiguous array of its size");
    return NULL;
}

static PyObject *numbers_write(numbers *self, PyObject *array)
{
    uint8_t *to = head_in(array, 0);
    es_inbox_head head = {
        .stream = self->stream,
        .number = (uint64_t)self->number,
        .index = (uint32_t)self->index,
        .episode = (uint32_t)self->episode,
    };
    if (to == NULL)
        return NULL;
    memcpy(to, &head, sizeof head);
    Py_RETURN_NONE;
}

static PyObject *numbers_count_one(numbers *self, PyObject *nothing)
{
    (void)nothing;
    self->number++;
    self->index++;
    Py_RETURN_NONE;
}

static PyMemberDef numbers_members[] = {
    {"stream", T_ULONGLONG, offsetof(numbers, stream), 0, NULL},
    {"number", T_LONGLONG, offsetof(numbers, number), 0, NULL},
    {"index", T_LONGLONG, offsetof(numbers, index), 0, NULL},
    {"episode", T_LONGLONG, offsetof(numbers, episode), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef numbers_methods[] = {
    {"write_head", (PyCFunction)numbers_write, METH_O, "Writes the next step's head, without flags and priorities."},
    {"count_one", (PyCFunction)numbers_count_one, METH_NOARGS, "Notes that a step was sent that ends no episode."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot numbers_slots[] = {
    {Py_tp_members, numbers_members},
    {Py_tp_methods, numbers_methods},
    {Py_tp_doc, "The numbers of one stream's next step."},
    {0, NULL},
};

static PyType_Spec numbers_spec = {
    "echo_shm._history.Numbers", sizeof(numbers), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, numbers_slots,
};

#endif
