/* echo_shm._batch: takes batches, and makes the arrays over their memory.
 *
 * A Lease stands for one batch that this process has taken. Every array over the batch
 * has the Lease as its base, and numpy gives each view the same base. So the Lease lives
 * as long as anything refers to the batch's memory. When it dies, it ends the lease in the
 * ring: it releases the batch, or gives it back if nobody has seen it yet.
 *
 * A Reader is one attachment as seen from here: the C functions' addresses, and what the
 * leaves look like. Each Lease refers to its Reader, which refers to whatever keeps the
 * attachment and the mapping.
 *
 * The GIL protects the fields of both. After a fork the child's copies do nothing: the
 * C core refuses the attachment there.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/es_types.h"
#include "python/arrays.h"

typedef int64_t (*take_function)(void *ring, uint32_t flags, uint64_t timeout_ns, es_snapshot *snap);
typedef int (*end_function)(void *ring, uint64_t batch, uint64_t round);

typedef struct {
    PyObject_HEAD take_function take;
    end_function release, give_back;
    void *ring;
    PyObject *keep;
    uint64_t batch_size;
    Py_ssize_t held; /* leases that have not ended */
    uint64_t num_batches;
    uint64_t *leased; /* for each batch, the lap of such a lease, or 0 */
    Py_ssize_t num_leaves;
    leaf *leaves;
    leaf *versions; /* of the samples of a batch */
} reader;

typedef struct {
    PyObject_HEAD reader *reader;
    uint64_t batch, round;
    char ended;
    char delivered; /* somebody may have read it, so its end is a release */
    char shared;    /* other learners take batches, too */
} lease;

static PyTypeObject *lease_type;

/* --- leases ------------------------------------------------------------------ */

static void end(lease *self, end_function how)
{
    if (self->ended)
        return;
    self->ended = 1;
    self->reader->held--;
    self->reader->leased[self->batch] = 0;
    how(self->reader->ring, self->batch, self->round);
}

static void lease_dealloc(lease *self)
{
    PyTypeObject *type = Py_TYPE(self);
    end(self, self->delivered ? self->reader->release : self->reader->give_back);
    Py_DECREF(self->reader);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *lease_release(lease *self, PyObject *nothing)
{
    (void)nothing;
    end(self, self->reader->release);
    Py_RETURN_NONE;
}

static PyObject *lease_give_back(lease *self, PyObject *nothing)
{
    (void)nothing;
    end(self, self->reader->give_back);
    Py_RETURN_NONE;
}

static PyMethodDef lease_methods[] = {
    {"release", (PyCFunction)lease_release, METH_NOARGS, "Producers may use the batch's space again. Idempotent."},
    {"give_back", (PyCFunction)lease_give_back, METH_NOARGS, "The batch is delivered again. Idempotent."},
    {NULL, NULL, 0, NULL},
};

static PyObject *lease_versions(lease *self, void *nothing)
{
    (void)nothing;
    return array_over(self->reader->versions, self->batch, (PyObject *)self);
}

static PyGetSetDef lease_getters[] = {
    {"versions", (getter)lease_versions, NULL, "The version of each sample of the batch: a view.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef lease_members[] = {
    {"batch", T_ULONGLONG, offsetof(lease, batch), READONLY, "The batch's physical index."},
    {"round", T_ULONGLONG, offsetof(lease, round), READONLY, "The batch's round."},
    {"ended", T_BOOL, offsetof(lease, ended), READONLY, "Whether it was released or given back."},
    {"shared", T_BOOL, offsetof(lease, shared), READONLY, "Whether other learners have been attached, too."},
    {"delivered", T_BOOL, offsetof(lease, delivered), 0, "Whether the user may have seen the batch."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot lease_slots[] = {
    {Py_tp_dealloc, (void *)lease_dealloc},
    {Py_tp_methods, lease_methods},
    {Py_tp_members, lease_members},
    {Py_tp_getset, lease_getters},
    {Py_tp_doc, "One batch that this process has taken. It ends with the last reference."},
    {0, NULL},
};

static PyType_Spec lease_spec = {
    "echo_shm._batch.Lease", sizeof(lease), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, lease_slots,
};

/* --- readers ----------------------------------------------------------------- */

static void reader_dealloc(reader *self)
{
    PyTypeObject *type = Py_TYPE(self);
    free_leaves(self->leaves, self->num_leaves);
    free_leaves(self->versions, 1);
    PyMem_Free(self->leased);
    Py_XDECREF(self->keep);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Reader(addresses of es_api_take, es_api_release, es_api_give_back and the es_ring, batch size, batches, leaves,
 * versions, keep) */
static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    unsigned long long take, release, give_back, ring, batch_size, num_batches;
    PyObject *leaves, *versions, *keep;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "KKKKKKO!O!O", &take, &release, &give_back, &ring, &batch_size, &num_batches,
                          &PyTuple_Type, &leaves, &PyTuple_Type, &versions, &keep))
        return NULL;
    reader *self = PyObject_New(reader, type);
    if (self == NULL)
        return NULL;
    self->take = (take_function)(uintptr_t)take;
    self->release = (end_function)(uintptr_t)release;
    self->give_back = (end_function)(uintptr_t)give_back;
    self->ring = (void *)(uintptr_t)ring;
    Py_INCREF(keep);
    self->keep = keep;
    self->batch_size = batch_size;
    self->num_batches = num_batches;
    self->leased = PyMem_Calloc((size_t)num_batches, sizeof *self->leased);
    self->held = 0;
    self->num_leaves = PyTuple_Size(leaves);
    self->leaves = read_leaves(leaves);
    self->versions = self->leaves == NULL ? NULL : read_leaves(versions);
    if (self->leased == NULL)
        PyErr_NoMemory();
    if (self->versions == NULL || self->leased == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static lease *new_lease(reader *self, const es_snapshot *snap)
{
    lease *made = PyObject_New(lease, lease_type);
    if (made == NULL) {
        self->give_back(self->ring, snap->batch, snap->round);
        return NULL;
    }
    Py_INCREF(self);
    made->reader = self;
    made->batch = snap->batch;
    made->round = snap->round;
    made->ended = made->delivered = 0;
    made->shared = snap->shared != 0;
    self->held++;
    self->leased[snap->batch] = snap->round + 1;
    return made;
}

/* A tuple of five. Takes the references over; the first two may be NULL for None. */
static PyObject *pack(PyObject *arrays, PyObject *taken, PyObject *code, PyObject *sweep_due, PyObject *snap)
{
    PyObject *items[] = {arrays, taken, code, sweep_due, snap};
    PyObject *result = PyTuple_New(5);
    int failed = result == NULL || code == NULL || sweep_due == NULL || snap == NULL;
    for (Py_ssize_t i = 0; i < 5; i++) {
        if (items[i] == NULL) {
            Py_INCREF(Py_None);
            items[i] = Py_None;
        }
        if (result != NULL)
            PyTuple_SetItem(result, i, items[i]); /* takes it over, also when it fails */
        else
            Py_DECREF(items[i]);
    }
    if (!failed)
        return result;
    Py_XDECREF(result);
    return PyErr_NoMemory();
}

/* take(flags, timeout_ns): see _batch.pyi. From the C call on, a batch that was taken has an owner here:
 * no exception can come between. */
static PyObject *reader_take(reader *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "take(flags, timeout_ns)");
        return NULL;
    }
    unsigned long flags = PyLong_AsUnsignedLong(args[0]);
    unsigned long long timeout_ns = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    es_snapshot snap;
    memset(&snap, 0, sizeof snap);
    int64_t code;
    if (timeout_ns == 0) { /* it does not sleep: giving up the GIL and getting it back costs as much */
        code = self->take(self->ring, (uint32_t)flags, 0, &snap);
    } else {
        Py_BEGIN_ALLOW_THREADS
        code = self->take(self->ring, (uint32_t)flags, timeout_ns, &snap);
        Py_END_ALLOW_THREADS
    }
    PyObject *taken = NULL, *arrays = NULL;
    if (code >= 0) {
        taken = (PyObject *)new_lease(self, &snap);
        if (taken == NULL)
            return NULL;
        code = 0;
        if (snap.length == self->batch_size) {
            arrays = arrays_over(self->leaves, self->num_leaves, ((lease *)taken)->batch, taken);
            if (arrays == NULL) {
                Py_DECREF(taken);
                return NULL;
            }
        }
    }
    return pack(arrays, taken, PyLong_FromLongLong(code), PyBool_FromLong(snap.sweep_due != 0),
                PyBytes_FromStringAndSize((const char *)&snap, sizeof snap));
}

static PyObject *reader_leased(reader *self, PyObject *batch)
{
    unsigned long long j = PyLong_AsUnsignedLongLong(batch);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromUnsignedLongLong(j < self->num_batches ? self->leased[j] : 0);
}

static PyMethodDef reader_methods[] = {
    {"leased", (PyCFunction)reader_leased, METH_O, "leased(batch) -> the lap of its lease that has not ended, or 0"},
    {"take", (PyCFunction)(void (*)(void))reader_take, METH_FASTCALL,
     "take(flags, timeout_ns) -> arrays, lease, code, sweep_due, snap"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef reader_members[] = {
    {"held", T_PYSSIZET, offsetof(reader, held), READONLY, "Leases that have not ended."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_new, (void *)reader_new}, {Py_tp_dealloc, (void *)reader_dealloc},          {Py_tp_methods, reader_methods},
    {Py_tp_members, reader_members}, {Py_tp_doc, "An attachment that takes batches."}, {0, NULL},
};

static PyType_Spec reader_spec = {
    "echo_shm._batch.Reader", sizeof(reader), 0, Py_TPFLAGS_DEFAULT, reader_slots,
};

/* --- copies ------------------------------------------------------------------ */

/* over(array, owner, writable): see _batch.pyi. */
static PyObject *over(PyObject *module, PyObject *args)
{
    PyArrayObject *array;
    PyObject *owner;
    int writable;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!Op", &PyArray_Type, &array, &owner, &writable))
        return NULL;
    if (!PyArray_IS_C_CONTIGUOUS(array)) {
        PyErr_SetString(PyExc_ValueError, "over() takes a C-contiguous array");
        return NULL;
    }
    leaf l = {
        .dtype = (PyObject *)PyArray_DESCR(array),
        .shape = PyArray_DIMS(array),
        .ndim = PyArray_NDIM(array),
        .data = PyArray_BYTES(array),
        .flags = (PyArray_FLAGS(array) & NPY_ARRAY_ALIGNED) | (writable ? NPY_ARRAY_WRITEABLE : 0),
    };
    return array_over(&l, 0, owner);
}

static PyMethodDef functions[] = {
    {"over", over, METH_VARARGS, "over(array, owner, writable) -> a view that refers to owner"},
    {NULL, NULL, 0, NULL},
};

/* --- the module -------------------------------------------------------------- */

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_batch", "Takes batches.", -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__batch(void)
{
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError,
                        "echo_shm cannot be imported in a subinterpreter: numpy and cffi do not support "
                        "them. Use a process: Server.spawn(), or multiprocessing");
        return NULL;
    }
    if (PyArray_ImportNumPyAPI() < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    PyObject *reader_object = PyType_FromSpec(&reader_spec), *lease_object = PyType_FromSpec(&lease_spec);
    if (made == NULL || reader_object == NULL || lease_object == NULL)
        return NULL;
    lease_type = (PyTypeObject *)lease_object; /* for the life of the process */
    Py_INCREF(lease_object);
    if (PyModule_AddObject(made, "Reader", reader_object) != 0 || PyModule_AddObject(made, "Lease", lease_object) != 0)
        return NULL;
    return made;
}
