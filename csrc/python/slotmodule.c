/* echo_shm._slot: reserves slots, and makes the arrays over their memory.
 *
 * Slots is one attachment's slots as seen from here: the C functions' addresses, and what
 * the samples look like. The base of every array over a slot is what keeps the mapping,
 * which is not the attachment. So a client that is forgotten leaves the ring although
 * somebody still refers to a slot's arrays.
 *
 * A Reservation is the context manager that ShmClient.reserve() returns. While it is
 * entered it owns a claim, and refers to the tree that it has handed out and to the arrays
 * in it. It refers to the writer (client.py), which keeps the attachment and does all
 * that is not common: it waits on a full ring, and says what went wrong.
 *
 * No exception can come between a claim and the note of its position, or between a commit
 * and the end of that note. At the block's end the arrays become read-only before the slot
 * becomes another's. numpy refuses to undo this, because their base has no buffer. A view
 * that was made of one stays as it was, and refers to it.
 *
 * Making arrays costs as much as all the rest. So those of the last two reservations are
 * kept, and pointed at the next slot once nothing else refers to them. There are two,
 * because a loop's variable still refers to the last tree when the next block is entered.
 *
 * The GIL protects the fields of both types.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#include <stdbool.h>
#include <stdint.h>

#include "python/arrays.h"
#include "python/trees.h"

typedef int (*reserve_function)(void *ring, uint64_t timeout_ns, int64_t *position);
typedef int (*end_function)(void *ring, int64_t position);

typedef struct {
    PyObject_HEAD reserve_function reserve;
    end_function commit, abort;
    void *ring;
    uint64_t capacity;
    PyObject *form;      /* a tree with the leaves' numbers, of containers that are built here; or None */
    PyObject *unflatten; /* builds any tree of a tuple of arrays */
    PyObject *keep;      /* the mapping */
    Py_ssize_t num_leaves;
    leaf *leaves;
    PyObject *spare[2]; /* tuples of arrays that were handed back, or NULL */
    int oldest;         /* of the two */
} slots;

typedef struct {
    PyObject_HEAD slots *slots;
    PyObject *writer, *timeout;
    bool entered;
    int64_t position;        /* of the claim; -1: none */
    PyObject *arrays, *tree; /* while entered */
} reservation;

static PyTypeObject *reservation_type;

/* --- arrays ------------------------------------------------------------------ */

/* Whether nobody else refers to the array, and it still looks as it was made: a user can change that in place. */
static bool is_unused(PyObject *object, const leaf *l, PyObject *base)
{
    PyArrayObject *array = (PyArrayObject *)object;
    if (Py_REFCNT(object) != 1 || ((PyArrayObject_fields *)array)->weakreflist != NULL || PyArray_BASE(array) != base ||
        (PyObject *)PyArray_DESCR(array) != l->dtype || PyArray_NDIM(array) != l->ndim ||
        !PyArray_IS_C_CONTIGUOUS(array))
        return false;
    for (int d = 0; d < l->ndim; d++)
        if (PyArray_DIM(array, d) != l->shape[d])
            return false;
    return true;
}

/* Spare arrays, pointed at a slot; NULL if none are unused. */
static PyObject *recycle(slots *s, uint64_t slot)
{
    for (int k = 0; k < 2; k++) {
        PyObject **spare = &s->spare[s->oldest ^ k], *arrays = *spare;
        bool unused = arrays != NULL && Py_REFCNT(arrays) == 1;
        for (Py_ssize_t i = 0; unused && i < s->num_leaves; i++)
            unused = is_unused(PyTuple_GetItem(arrays, i), &s->leaves[i], s->keep);
        if (!unused)
            continue;
        for (Py_ssize_t i = 0; i < s->num_leaves; i++) {
            PyArrayObject *array = (PyArrayObject *)PyTuple_GetItem(arrays, i);
            ((PyArrayObject_fields *)array)->data = s->leaves[i].data + s->leaves[i].distance * (npy_intp)slot;
            PyArray_ENABLEFLAGS(array, s->leaves[i].flags);
        }
        *spare = NULL;
        return arrays;
    }
    return NULL;
}

/* Keeps arrays in the place of the oldest ones. Takes the reference over. */
static void keep_spare(slots *s, PyObject *arrays)
{
    PyObject *older = s->spare[s->oldest];
    s->spare[s->oldest] = arrays;
    s->oldest ^= 1;
    Py_XDECREF(older);
}

/* --- reservations ------------------------------------------------------------ */

/* Ends the claim, if there is one: the slot's memory is no longer this block's to write. Returns what
 * the C function returned. References go last, because that may run any code, which may enter this
 * very reservation. */
static int end(reservation *self, end_function how)
{
    PyObject *arrays = self->arrays, *tree = self->tree;
    int64_t position = self->position;
    self->arrays = self->tree = NULL;
    self->position = -1;
    self->entered = false;
    for (Py_ssize_t i = 0; arrays != NULL && i < self->slots->num_leaves; i++)
        PyArray_CLEARFLAGS((PyArrayObject *)PyTuple_GetItem(arrays, i), NPY_ARRAY_WRITEABLE);
    int code = position < 0 ? 0 : how(self->slots->ring, position);
    if (arrays != NULL)
        keep_spare(self->slots, arrays);
    Py_XDECREF(tree);
    return code;
}

static PyObject *reservation_enter(reservation *self, PyObject *nothing)
{
    slots *s = self->slots;
    (void)nothing;
    if (self->entered) {
        PyErr_SetString(PyExc_RuntimeError, "this reservation is entered already; call reserve() for each sample");
        return NULL;
    }
    self->entered = true;
    int code = s->reserve(s->ring, 0, &self->position);
    if (code != 0) {
        PyObject *done = PyObject_CallMethod(self->writer, "_claim", "OiO", self, code, self->timeout);
        if (done == NULL)
            goto failed;
        Py_DECREF(done);
    }
    uint64_t slot = (uint64_t)self->position % s->capacity;
    self->arrays = recycle(s, slot);
    if (self->arrays == NULL)
        self->arrays = arrays_over(s->leaves, s->num_leaves, slot, s->keep);
    if (self->arrays == NULL)
        goto failed;
    self->tree = s->form == Py_None ? PyObject_CallFunctionObjArgs(s->unflatten, self->arrays, NULL)
                                    : build(s->form, self->arrays);
    if (self->tree == NULL)
        goto failed;
    Py_INCREF(self->tree);
    return self->tree;
failed:
    end(self, s->abort);
    return NULL;
}

/* Goes on with a claim on a full ring: see _slot.pyi. */
static PyObject *reservation_claim(reservation *self, PyObject *timeout_ns)
{
    slots *s = self->slots;
    unsigned long long ns = PyLong_AsUnsignedLongLong(timeout_ns);
    int code;
    if (PyErr_Occurred())
        return NULL;
    if (!self->entered || self->position >= 0) {
        PyErr_SetString(PyExc_RuntimeError, "a reservation claims one slot, when it is entered");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    code = s->reserve(s->ring, ns, &self->position);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(code);
}

/* Raises unless the tree still holds the slot's arrays. What is not clear at once is the writer's to judge. */
static int check_tree(reservation *self)
{
    PyObject *form = self->slots->form;
    if (form != Py_None && holds(self->tree, form, self->arrays))
        return 0;
    PyObject *done = PyObject_CallMethod(self->writer, "_check_slot", "OO", self->tree, self->arrays);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *reservation_exit(reservation *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "__exit__(kind, error, trace)");
        return NULL;
    }
    if (self->tree == NULL) /* not entered, or ended already */
        Py_RETURN_NONE;
    if (args[0] != Py_None) {
        end(self, self->slots->abort); /* not checked: the exception says more than that the ring is closed */
        Py_RETURN_NONE;
    }
    if (check_tree(self) != 0) {
        end(self, self->slots->abort);
        return NULL;
    }
    int code = end(self, self->slots->commit);
    if (code != 0)
        return PyObject_CallMethod(self->writer, "_check", "i", code);
    Py_RETURN_NONE;
}

static int reservation_traverse(reservation *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->writer);
    Py_VISIT(self->timeout);
    Py_VISIT(self->arrays);
    Py_VISIT(self->tree);
    return 0;
}

static int reservation_clear(reservation *self)
{
    Py_CLEAR(self->writer);
    Py_CLEAR(self->timeout);
    Py_CLEAR(self->arrays);
    Py_CLEAR(self->tree);
    return 0;
}

/* An open claim stays: somebody may still write to its arrays. It ends with the attachment. */
static void reservation_dealloc(reservation *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    reservation_clear(self);
    Py_DECREF(self->slots);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef reservation_methods[] = {
    {"__enter__", (PyCFunction)reservation_enter, METH_NOARGS, "Claims a slot. Returns the tree of its arrays."},
    {"__exit__", (PyCFunction)(void (*)(void))reservation_exit, METH_FASTCALL, "Commits or aborts."},
    {"_claim", (PyCFunction)reservation_claim, METH_O, "_claim(timeout_ns) -> what es_api_reserve returned"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reservation_slots[] = {
    {Py_tp_dealloc, (void *)reservation_dealloc},
    {Py_tp_traverse, (void *)reservation_traverse},
    {Py_tp_clear, (void *)reservation_clear},
    {Py_tp_methods, reservation_methods},
    {Py_tp_doc, "A slot that is written in place: a context manager whose value is a pytree of writable arrays over "
                "the slot.\n\nA clean exit commits the sample. An exception aborts it, and the next producer gets "
                "the slot. Then the arrays are\nread-only."},
    {0, NULL},
};

static PyType_Spec reservation_spec = {
    "echo_shm._slot.Reservation",
    sizeof(reservation),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    reservation_slots,
};

/* --- slots ------------------------------------------------------------------- */

static void slots_dealloc(slots *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->spare[0]);
    Py_XDECREF(self->spare[1]);
    free_leaves(self->leaves, self->num_leaves);
    Py_DECREF(self->form);
    Py_DECREF(self->unflatten);
    Py_DECREF(self->keep);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Slots(addresses of es_api_reserve, es_api_commit, es_api_abort and the es_ring, capacity, leaves, form, unflatten,
 * keep) */
static PyObject *slots_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    unsigned long long reserve, commit, abort, ring, capacity;
    PyObject *leaves, *form, *unflatten, *keep;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "KKKKKO!OOO", &reserve, &commit, &abort, &ring, &capacity, &PyTuple_Type, &leaves,
                          &form, &unflatten, &keep))
        return NULL;
    slots *self = PyObject_New(slots, type);
    if (self == NULL)
        return NULL;
    self->reserve = (reserve_function)(uintptr_t)reserve;
    self->commit = (end_function)(uintptr_t)commit;
    self->abort = (end_function)(uintptr_t)abort;
    self->ring = (void *)(uintptr_t)ring;
    self->capacity = capacity;
    Py_INCREF(form);
    self->form = form;
    Py_INCREF(unflatten);
    self->unflatten = unflatten;
    Py_INCREF(keep);
    self->keep = keep;
    self->spare[0] = self->spare[1] = NULL;
    self->oldest = 0;
    self->num_leaves = PyTuple_Size(leaves);
    self->leaves = read_leaves(leaves);
    if (self->leaves == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *slots_reserve(slots *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "reserve(writer, timeout)");
        return NULL;
    }
    reservation *made = PyObject_GC_New(reservation, reservation_type);
    if (made == NULL)
        return NULL;
    Py_INCREF(self);
    made->slots = self;
    Py_INCREF(args[0]);
    made->writer = args[0];
    Py_INCREF(args[1]);
    made->timeout = args[1];
    made->entered = false;
    made->position = -1;
    made->arrays = made->tree = NULL;
    PyObject_GC_Track(made);
    return (PyObject *)made;
}

static PyMethodDef slots_methods[] = {
    {"reserve", (PyCFunction)(void (*)(void))slots_reserve, METH_FASTCALL, "reserve(writer, timeout) -> reservation"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots_slots[] = {
    {Py_tp_new, (void *)slots_new},
    {Py_tp_dealloc, (void *)slots_dealloc},
    {Py_tp_methods, slots_methods},
    {Py_tp_doc, "An attachment's slots, to write in place."},
    {0, NULL},
};

static PyType_Spec slots_spec = {
    "echo_shm._slot.Slots", sizeof(slots), 0, Py_TPFLAGS_DEFAULT, slots_slots,
};

/* --- the module -------------------------------------------------------------- */

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_slot", "Reserves slots.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__slot(void)
{
    if (PyArray_ImportNumPyAPI() < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    PyObject *slots_object = PyType_FromSpec(&slots_spec), *reservation_object = PyType_FromSpec(&reservation_spec);
    if (made == NULL || slots_object == NULL || reservation_object == NULL)
        return NULL;
    reservation_type = (PyTypeObject *)reservation_object; /* for the life of the process */
    Py_INCREF(reservation_object);
    if (PyModule_AddObject(made, "Slots", slots_object) != 0 ||
        PyModule_AddObject(made, "Reservation", reservation_object) != 0)
        return NULL;
    return made;
}
