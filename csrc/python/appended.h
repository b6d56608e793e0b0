/* What a writer has appended, leaf by leaf, and the steps that are named of it. */
#ifndef ES_PYTHON_APPENDED_H
#define ES_PYTHON_APPENDED_H

#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#include "python/numbers.h"

static PyTypeObject *reach_type, *steps_type; /* set with the module */

/* --- which steps a history has --------------------------------------------------- */

typedef struct {
    PyObject_HEAD long long first;
    char is_partial, has_gaps;
} reach;

static PyMemberDef reach_members[] = {
    {"first", T_LONGLONG, offsetof(reach, first), 0, NULL},
    {"is_partial", T_BOOL, offsetof(reach, is_partial), 0, NULL},
    {"has_gaps", T_BOOL, offsetof(reach, has_gaps), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot reach_slots[] = {
    {Py_tp_members, reach_members},
    {Py_tp_doc, "Which steps a history has."},
    {0, NULL},
};

static PyType_Spec reach_spec = {
    "echo_shm._history.Reach", sizeof(reach), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, reach_slots,
};

/* --- steps of one leaf ------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD Py_ssize_t leaf, length, stride; /* length: -1 for one step without a dimension for it */
    long long last;
} steps;

static PyObject *make_steps(Py_ssize_t leaf, long long last, Py_ssize_t length, Py_ssize_t stride)
{
    steps *made = PyObject_New(steps, steps_type);
    if (made == NULL)
        return NULL;
    made->leaf = leaf;
    made->last = last;
    made->length = length;
    made->stride = stride;
    return (PyObject *)made;
}

static void steps_dealloc(steps *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *steps_length(steps *self, void *nothing)
{
    (void)nothing;
    if (self->length < 0)
        Py_RETURN_NONE;
    return PyLong_FromSsize_t(self->length);
}

static PyObject *steps_repr(steps *self)
{
    if (self->length < 0)
        return PyUnicode_FromFormat("<step %lld of leaf %zd>", self->last, self->leaf);
    return PyUnicode_FromFormat("<%zd steps of leaf %zd, %zd apart, up to step %lld>", self->length, self->leaf,
                                self->stride, self->last);
}

static PyMemberDef steps_members[] = {
    {"leaf", T_PYSSIZET, offsetof(steps, leaf), READONLY, NULL},
    {"last", T_LONGLONG, offsetof(steps, last), READONLY, NULL},
    {"stride", T_PYSSIZET, offsetof(steps, stride), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef steps_getset[] = {
    {"length", (getter)steps_length, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot steps_slots[] = {
    {Py_tp_dealloc, (void *)steps_dealloc},
    {Py_tp_repr, (void *)steps_repr},
    {Py_tp_members, steps_members},
    {Py_tp_getset, steps_getset},
    {Py_tp_doc, "Steps of one leaf, for an item: history[\"obs\"][-4:]."},
    {0, NULL},
};

static PyType_Spec steps_spec = {
    "echo_shm._history.Steps", sizeof(steps), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, steps_slots,
};

/* --- what was appended of one leaf ---------------------------------------------------- */

typedef struct {
    PyObject_HEAD reach *history;
    numbers *numbers;
    Py_ssize_t leaf;
} appended;

static Py_ssize_t appended_length(appended *self)
{
    return (Py_ssize_t)(self->numbers->number - self->history->first + (self->history->is_partial != 0));
}

/* Has Python say why a key names no steps. */
static PyObject *refuse(appended *self, PyObject *key)
{
    PyObject *done = PyObject_CallMethod((PyObject *)self->history, "refuse", "nO", self->leaf, key);
    if (done != NULL)
        PyErr_SetObject(PyExc_IndexError, key);
    Py_XDECREF(done);
    return NULL;
}

static PyObject *appended_item(appended *self, PyObject *key)
{
    Py_ssize_t count = appended_length(self), start, stop, stride;
    if (!PySlice_Check(key)) {
        Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
        if (index == -1 && PyErr_Occurred())
            return NULL;
        index += index < 0 ? count : 0;
        return index < 0 || index >= count ? refuse(self, key)
                                           : make_steps(self->leaf, self->history->first + index, -1, 1);
    }
    if (PySlice_Unpack(key, &start, &stop, &stride) != 0)
        return NULL;
    Py_ssize_t n = PySlice_AdjustIndices(count, &start, &stop, stride);
    if (stride < 1 || n < 1)
        return refuse(self, key);
    return make_steps(self->leaf, self->history->first + start + (n - 1) * stride, n, stride);
}

static PyObject *appended_repr(appended *self)
{
    PyObject *name = PyObject_CallMethod((PyObject *)self->history, "name", "n", self->leaf);
    PyObject *repr = name == NULL ? NULL : PyUnicode_FromFormat("<%zd steps of %S>", appended_length(self), name);
    Py_XDECREF(name);
    return repr;
}

static int appended_traverse(appended *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->history);
    Py_VISIT(self->numbers);
    return 0;
}

/* The references stay until the end: methods use them without a look. A history breaks the cycle. */
static void appended_dealloc(appended *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->history);
    Py_XDECREF(self->numbers);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *appended_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *history, *heads;
    Py_ssize_t leaf;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "O!O!n", reach_type, &history, numbers_type, &heads, &leaf))
        return NULL;
    appended *self = PyObject_GC_New(appended, type);
    if (self == NULL)
        return NULL;
    Py_INCREF(history);
    self->history = (reach *)history;
    Py_INCREF(heads);
    self->numbers = (numbers *)heads;
    self->leaf = leaf;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyType_Slot appended_slots[] = {
    {Py_tp_new, (void *)appended_new},
    {Py_tp_dealloc, (void *)appended_dealloc},
    {Py_tp_traverse, (void *)appended_traverse},
    {Py_tp_repr, (void *)appended_repr},
    {Py_mp_length, (void *)appended_length},
    {Py_mp_subscript, (void *)appended_item},
    {Py_tp_doc, "What a writer has appended of one leaf: a sequence of steps, the latest last.\n\nAn index gives one "
                "step of it, a slice several: what create_item() takes. A slice may have a stride."},
    {0, NULL},
};

static PyType_Spec appended_spec = {
    "echo_shm._history.Appended", sizeof(appended), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, appended_slots,
};

#endif
