/* echo_shm._send: the common case of a send, and of publishing and copying weights. There cffi's conversions would
 * cost more than the copy.
 *
 * A plan holds what one attachment's samples look like. send(plan, leaf0, leaf1,
 * ...) tests that each leaf is an array of exactly that dtype and shape,
 * contiguous, or a usual scalar, and calls es_api_send(). Everything else (strided
 * arrays, other types, a full ring, errors) makes it return False with nothing
 * sent, and is Python's to deal with. call() does the same with arrays alone, and
 * with a function whose result counts: es_weights_publish(), es_weights_copy(). It
 * returns None where nothing was called. send_vector() sends a step of each of several
 * environments: see environments.h.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#include <stdint.h>

/* From this size on a copy is worth giving up the GIL (bytes). */
#define RELEASE_GIL_FROM (64 * 1024)

#include "python/arrays.h"
#include "python/environments.h"
#include "python/scalars.h"

#define PLAN "echo_shm.plan"
#define MAX_DIMS 64 /* numpy 2's own limit */

typedef int (*send_function)(void *ring, void **leaves);
typedef int64_t (*call_function)(void *ring, void **leaves);

typedef struct {
    PyObject *dtype;
    int ndim;
    npy_intp shape[MAX_DIMS];
} leaf_plan;

typedef struct {
    uintptr_t function; /* what it is: send() and call() know */
    void *ring;
    int release_gil;
    int writes; /* into the leaves: they must be writable */
    Py_ssize_t n;
    leaf_plan leaves[];
} plan;

static void free_plan(PyObject *capsule)
{
    plan *p = PyCapsule_GetPointer(capsule, PLAN);
    for (Py_ssize_t i = 0; i < p->n; i++)
        Py_XDECREF(p->leaves[i].dtype);
    PyMem_Free(p);
}

static int read_plan(leaf_plan *leaf, PyObject *dtype, PyObject *shape)
{
    Py_ssize_t ndim = PyTuple_Size(shape);
    if (ndim < 0)
        return -1;
    if (ndim > MAX_DIMS || !PyArray_DescrCheck(dtype)) {
        PyErr_SetString(PyExc_TypeError, "a leaf is (dtype, shape) with at most 64 dimensions");
        return -1;
    }
    leaf->ndim = (int)ndim;
    for (Py_ssize_t d = 0; d < ndim; d++) {
        leaf->shape[d] = (npy_intp)PyLong_AsSsize_t(PyTuple_GetItem(shape, d));
        if (leaf->shape[d] < 0)
            return -1;
    }
    Py_INCREF(dtype);
    leaf->dtype = dtype;
    return 0;
}

/* make_plan(address of the function, address of the es_ring, bytes per sample, ((dtype, shape), ...), whether it writes
 * into the leaves) */
static PyObject *make_plan(PyObject *module, PyObject *args)
{
    unsigned long long function, ring;
    Py_ssize_t nbytes;
    PyObject *leaves;
    int writes = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKnO!|p", &function, &ring, &nbytes, &PyTuple_Type, &leaves, &writes))
        return NULL;
    Py_ssize_t n = PyTuple_Size(leaves);
    plan *p = PyMem_Calloc(1, sizeof *p + (size_t)n * sizeof *p->leaves);
    if (p == NULL)
        return PyErr_NoMemory();
    p->function = (uintptr_t)function;
    p->ring = (void *)(uintptr_t)ring;
    p->release_gil = nbytes >= RELEASE_GIL_FROM;
    p->writes = writes;
    p->n = n;
    PyObject *capsule = PyCapsule_New(p, PLAN, free_plan);
    if (capsule == NULL) {
        PyMem_Free(p);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *dtype, *shape;
        if (!PyArg_ParseTuple(PyTuple_GetItem(leaves, i), "OO!", &dtype, &PyTuple_Type, &shape) ||
            read_plan(&p->leaves[i], dtype, shape) != 0) {
            Py_DECREF(capsule);
            return NULL;
        }
    }
    return capsule;
}

/* The leaves' addresses: 1; 0 where one is not what the plan says; -1: an exception is set. scalars: room for what is
 * given as such, or NULL: nothing may be. */
static int find_leaves(const plan *p, PyObject *const *leaves, void **pointers, scalar *scalars)
{
    int ok = 1;
    for (Py_ssize_t i = 0; i < p->n && ok == 1; i++) {
        ok = is_exact(leaves[i], p->leaves[i].dtype, p->leaves[i].ndim, p->leaves[i].shape);
        if (ok == 1 && p->writes)
            ok = PyArray_ISWRITEABLE((PyArrayObject *)leaves[i]);
        if (ok == 1)
            pointers[i] = PyArray_DATA((PyArrayObject *)leaves[i]);
        else if (ok == 0 && scalars != NULL && p->leaves[i].ndim == 0 &&
                 (ok = read_scalar(leaves[i], p->leaves[i].dtype, &scalars[i])))
            pointers[i] = &scalars[i];
    }
    return ok;
}

static int64_t run(const plan *p, int wide, void **pointers)
{
    return wide ? ((call_function)p->function)(p->ring, pointers) : ((send_function)p->function)(p->ring, pointers);
}

/* Calls the plan's function, whose result is wide or an int: 1; otherwise as find_leaves(). */
static int call_plan(PyObject *const *args, Py_ssize_t nargs, int wide, int64_t *code)
{
    void *few[32], **pointers = few;
    scalar few_scalars[32], *scalars = few_scalars;
    const plan *p = nargs > 0 ? PyCapsule_GetPointer(args[0], PLAN) : NULL;
    if (p == NULL || nargs != p->n + 1) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "expected (plan, leaf0, leaf1, ...): one argument per leaf");
        return -1;
    }
    if (p->n > (Py_ssize_t)(sizeof few / sizeof *few)) {
        pointers = PyMem_Malloc((size_t)p->n * (sizeof *pointers + sizeof *scalars));
        if (pointers == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        scalars = (scalar *)(pointers + p->n);
    }
    int ok = find_leaves(p, args + 1, pointers, wide ? NULL : scalars);
    /* The functions never sleep, so a short copy may keep the GIL: giving it up and
     * getting it back costs as much. The caller's references keep the arrays. */
    if (ok == 1 && p->release_gil) {
        Py_BEGIN_ALLOW_THREADS
        *code = run(p, wide, pointers);
        Py_END_ALLOW_THREADS
    } else if (ok == 1) {
        *code = run(p, wide, pointers);
    }
    if (pointers != few)
        PyMem_Free(pointers);
    return ok;
}

static PyObject *send_leaves(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t code = -1;
    (void)module;
    int ok = call_plan(args, nargs, 0, &code);
    return ok < 0 ? NULL : PyBool_FromLong(ok == 1 && code == 0);
}

static PyObject *call_with_leaves(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t code = 0;
    (void)module;
    int ok = call_plan(args, nargs, 1, &code);
    if (ok == 0)
        Py_RETURN_NONE;
    return ok < 0 ? NULL : PyLong_FromLongLong(code);
}

static PyMethodDef methods[] = {
    {"make_plan", make_plan, METH_VARARGS, "make_plan(function, es_ring, nbytes, leaves, writes=False) -> plan"},
    {"send", (PyCFunction)(void (*)(void))send_leaves, METH_FASTCALL, "send(plan, *leaves) -> whether it was sent"},
    {"call", (PyCFunction)(void (*)(void))call_with_leaves, METH_FASTCALL,
     "call(plan, *leaves) -> the result, or None"},
    {"make_vector_plan", make_vector_plan, METH_VARARGS,
     "make_vector_plan(function, es_ring, keep, leaves, form, needed, stream, environments, num_tables, head_bytes)"},
    {"send_vector", (PyCFunction)(void (*)(void))send_vector, METH_FASTCALL,
     "send_vector(plan, steps, terminated, truncated, autoreset, final) -> None, or how many samples were sent"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_send", "The common case of a send.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__send(void)
{
    if (PyArray_ImportNumPyAPI() < 0)
        return NULL;
    return PyModule_Create(&module);
}
