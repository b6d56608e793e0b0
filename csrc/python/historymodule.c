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
#include <stddef.h>
#include <structmember.h>

#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "python/arrays.h"
#include "python/trees.h"
#include "replay/es_replay_types.h"

/* Columns of an item whose parts are kept on the stack. */
#define FEW 16
/* The table's highest priority so far. */
#define HIGHEST (-1.0)

static PyTypeObject *numbers_type, *reach_type, *steps_type;

/* --- numbers ----------------------------------------------------------------- */

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

/* --- items ------------------------------------------------------------------------ */

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
