/* echo_shm._history: the common case of items that a writer describes. In Python, naming a few steps and packing what
 * was named would cost more than all the rest.
 *
 * Numbers and Reach are the bases of Python's classes (ring/inbox.py and replay/history.py), which say what their
 * fields mean and change them. Appended, one leaf of a history, makes Steps. Columns.write() turns a tree of Steps into
 * the head of an item. Whatever is not common makes it return False with nothing written: a wrong tree, steps that are
 * not there, a step that was appended in part. Python then says what is wrong, or makes the head itself.
 *
 * The GIL protects all fields.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "python/appended.h"
#include "python/arrays.h"
#include "python/numbers.h"
#include "python/trees.h"
#include "replay/es_replay_types.h"

/* Columns of an item whose parts are kept on the stack. */
#define FEW 16
/* The table's highest priority so far. */
#define HIGHEST (-1.0)

typedef struct {
    Py_ssize_t leaf, length;
} column;

typedef struct {
    PyObject_HEAD unsigned int table, num_tables;
    long long keep;
    double most; /* a priority up to this one is possible, whatever the table's selectors make of it */
    PyObject *form;
    Py_ssize_t n;
    column *columns;
} columns;

static void columns_dealloc(columns *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->form);
    PyMem_Free(self->columns);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Columns(table, num_tables, keep, most, form, ((leaf, length or -1), ...)) */
static PyObject *columns_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    unsigned int table, num_tables;
    long long keep;
    double most;
    PyObject *form, *given;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "IILdOO!", &table, &num_tables, &keep, &most, &form, &PyTuple_Type, &given))
        return NULL;
    columns *self = PyObject_New(columns, type);
    if (self == NULL)
        return NULL;
    self->table = table;
    self->num_tables = num_tables;
    self->keep = keep;
    self->most = most;
    Py_INCREF(form);
    self->form = form;
    self->n = PyTuple_Size(given);
    self->columns = PyMem_Calloc((size_t)self->n + 1, sizeof *self->columns);
    if (self->columns == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < self->n; i++)
        PyArg_ParseTuple(PyTuple_GetItem(given, i), "nn", &self->columns[i].leaf, &self->columns[i].length);
    if (PyErr_Occurred()) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* What an item's head says of its steps. */
typedef struct {
    long long first, last;
} range;

/* Whether the parts are the signature's, and steps that are there. */
static bool are_possible(const columns *self, PyObject *const *parts, const reach *history, const numbers *heads,
                         range *all)
{
    long long end = heads->number;
    *all = (range){end, -1};
    for (Py_ssize_t i = 0; i < self->n; i++) {
        if (Py_TYPE(parts[i]) != steps_type)
            return false;
        const steps *s = (const steps *)parts[i];
        if (s->leaf != self->columns[i].leaf || s->length != self->columns[i].length || s->stride > UINT32_MAX)
            return false;
        long long begin = s->length < 0 ? s->last : s->last - (s->length - 1) * s->stride;
        all->last = s->last > all->last ? s->last : all->last;
        all->first = begin < all->first ? begin : all->first;
    }
    return all->first >= history->first && all->last < end && end - all->first <= self->keep;
}

static void write_item(const columns *self, PyObject *const *parts, const numbers *heads, range all, double priority,
                       uint8_t *to)
{
    es_inbox_head head = {
        .stream = heads->stream,
        .number = (uint64_t)all.last,
        .index = (uint32_t)(all.last - all.first + 1),
        .episode = self->table,
        .flags = ES_HEAD_ITEM,
    };
    memcpy(to, &head, sizeof head);
    to += sizeof head;
    for (unsigned int i = 0; i < self->num_tables; i++, to += sizeof priority)
        memcpy(to, &priority, sizeof priority);
    for (Py_ssize_t i = 0; i < self->n; i++, to += sizeof(es_item_column)) {
        const steps *s = (const steps *)parts[i];
        es_item_column c = {.back = (uint32_t)(all.last - s->last), .stride = (uint32_t)s->stride};
        memcpy(to, &c, sizeof c);
    }
}

/* write(history, heads, tree, priority, array) */
static PyObject *columns_write(columns *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyObject_TypeCheck(args[0], reach_type) || !PyObject_TypeCheck(args[1], numbers_type)) {
        PyErr_SetString(PyExc_TypeError, "write(history, heads, tree, priority, array)");
        return NULL;
    }
    const reach *history = (const reach *)args[0];
    const numbers *heads = (const numbers *)args[1];
    uint8_t *to = head_in(args[4], self->num_tables * sizeof(double) + (size_t)self->n * sizeof(es_item_column));
    if (to == NULL)
        return NULL;
    double priority = args[3] == Py_None ? HIGHEST : PyFloat_CheckExact(args[3]) ? PyFloat_AsDouble(args[3]) : NAN;
    bool is_plain = priority == HIGHEST ? args[3] == Py_None : priority >= 0 && priority <= self->most;
    if (history->is_partial || history->has_gaps || !is_plain)
        Py_RETURN_FALSE;
    PyObject *few[FEW] = {NULL}, **parts = self->n <= FEW ? few : PyMem_Calloc((size_t)self->n, sizeof *parts);
    range all;
    if (parts == NULL)
        return PyErr_NoMemory();
    bool fits = take_apart(args[2], self->form, parts) && are_possible(self, parts, history, heads, &all);
    if (fits)
        write_item(self, parts, heads, all, priority, to);
    for (Py_ssize_t i = 0; i < self->n; i++)
        Py_XDECREF(parts[i]);
    if (parts != few)
        PyMem_Free(parts);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(fits);
}

static PyMethodDef columns_methods[] = {
    {"write", (PyCFunction)(void (*)(void))columns_write, METH_FASTCALL,
     "write(history, heads, tree, priority, array) -> whether the item's head was written"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot columns_slots[] = {
    {Py_tp_new, (void *)columns_new},
    {Py_tp_dealloc, (void *)columns_dealloc},
    {Py_tp_methods, columns_methods},
    {Py_tp_doc, "What the items of a table refer to."},
    {0, NULL},
};

static PyType_Spec columns_spec = {
    "echo_shm._history.Columns", sizeof(columns), 0, Py_TPFLAGS_DEFAULT, columns_slots,
};

/* --- the module -------------------------------------------------------------- */

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    "_history",
    "The common case of items that a writer describes.",
    -1,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
};

/* Adds a type to the module, for the life of the process. */
static PyTypeObject *add_type(PyObject *to, const char *name, PyType_Spec *spec)
{
    PyObject *type = to == NULL ? NULL : PyType_FromSpec(spec);
    if (type == NULL)
        return NULL;
    Py_INCREF(type);
    return PyModule_AddObject(to, name, type) == 0 ? (PyTypeObject *)type : NULL;
}

PyMODINIT_FUNC PyInit__history(void)
{
    if (PyArray_ImportNumPyAPI() < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    numbers_type = add_type(made, "Numbers", &numbers_spec);
    reach_type = add_type(made, "Reach", &reach_spec);
    steps_type = add_type(made, "Steps", &steps_spec);
    if (numbers_type == NULL || reach_type == NULL || steps_type == NULL ||
        add_type(made, "Appended", &appended_spec) == NULL || add_type(made, "Columns", &columns_spec) == NULL)
        return NULL;
    return made;
}
