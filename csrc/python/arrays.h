/* Numpy arrays over memory of ours, and arrays of users: what the extension modules share. */
#ifndef ES_PYTHON_ARRAYS_H
#define ES_PYTHON_ARRAYS_H

#include <Python.h>
#include <numpy/arrayobject.h>
#include <stdint.h>

/* Whether a value is an array of exactly that dtype and shape, C-contiguous: 1 or 0; -1: an exception is set. */
static inline int is_exact(PyObject *value, PyObject *dtype, int ndim, const npy_intp *shape)
{
    if (!PyArray_CheckExact(value))
        return 0;
    PyArrayObject *array = (PyArrayObject *)value;
    if (PyArray_NDIM(array) != ndim || !PyArray_IS_C_CONTIGUOUS(array))
        return 0;
    for (int d = 0; d < ndim; d++)
        if (PyArray_DIM(array, d) != shape[d])
            return 0;
    PyObject *theirs = (PyObject *)PyArray_DESCR(array);
    return theirs == dtype ? 1 : PyObject_RichCompareBool(theirs, dtype, Py_EQ);
}

/* One leaf of every batch, or of every slot: here "item". */
typedef struct {
    PyObject *dtype;
    npy_intp *shape; /* of an item */
    int ndim;
    char *data;        /* of item 0 */
    npy_intp distance; /* from one item to the next, in bytes */
    int flags;
} leaf;

/* Reads (dtype, shape of an item, address of item 0, bytes of an item, flags). */
static inline int read_leaf(leaf *to, PyObject *from)
{
    PyObject *dtype, *shape;
    unsigned long long address;
    Py_ssize_t distance;
    if (!PyArg_ParseTuple(from, "OO!Kni", &dtype, &PyTuple_Type, &shape, &address, &distance, &to->flags))
        return -1;
    if (!PyArray_DescrCheck(dtype)) {
        PyErr_SetString(PyExc_TypeError, "a leaf begins with its dtype");
        return -1;
    }
    to->ndim = (int)PyTuple_Size(shape);
    to->shape = PyMem_Malloc((size_t)to->ndim * sizeof *to->shape + 1);
    if (to->shape == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int d = 0; d < to->ndim; d++) {
        to->shape[d] = (npy_intp)PyLong_AsSsize_t(PyTuple_GetItem(shape, d));
        if (PyErr_Occurred())
            return -1;
    }
    to->data = (char *)(uintptr_t)address;
    to->distance = (npy_intp)distance;
    Py_INCREF(dtype);
    to->dtype = dtype;
    return 0;
}

static inline void free_leaves(leaf *leaves, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; leaves != NULL && i < n; i++) {
        Py_XDECREF(leaves[i].dtype);
        PyMem_Free(leaves[i].shape);
    }
    PyMem_Free(leaves);
}

/* Reads a tuple of them. NULL: an exception is set. */
static inline leaf *read_leaves(PyObject *from)
{
    Py_ssize_t n = PyTuple_Size(from);
    leaf *leaves = PyMem_Calloc((size_t)n + 1, sizeof *leaves);
    if (leaves == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (read_leaf(&leaves[i], PyTuple_GetItem(from, i)) != 0) {
            free_leaves(leaves, n);
            return NULL;
        }
    return leaves;
}

static inline PyObject *array_over(const leaf *l, uint64_t item, PyObject *base)
{
    Py_INCREF(l->dtype); /* the array takes it over */
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, (PyArray_Descr *)l->dtype, l->ndim, l->shape, NULL,
                                           l->data + l->distance * (npy_intp)item, l->flags, NULL);
    if (array == NULL)
        return NULL;
    Py_INCREF(base); /* the array takes it over, also when this fails */
    if (PyArray_SetBaseObject((PyArrayObject *)array, base) != 0) {
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

/* The arrays of a whole item, one for each leaf. */
static inline PyObject *arrays_over(const leaf *leaves, Py_ssize_t n, uint64_t item, PyObject *base)
{
    PyObject *arrays = PyTuple_New(n);
    for (Py_ssize_t i = 0; arrays != NULL && i < n; i++) {
        PyObject *array = array_over(&leaves[i], item, base);
        if (array == NULL || PyTuple_SetItem(arrays, i, array) != 0) {
            Py_DECREF(arrays);
            return NULL;
        }
    }
    return arrays;
}

#endif
