/* Trees of arrays: echo_shm._slot builds them, and sees whether they were changed. echo_shm._replay takes them apart.
 *
 * A form is a tree with the leaves' numbers at its leaves. Its containers are dicts, lists, tuples, named tuples and
 * None. Python makes it (ring/fast_path.py), and never changes it.
 */
#ifndef ES_PYTHON_TREES_H
#define ES_PYTHON_TREES_H

#include <Python.h>
#include <stdbool.h>

static inline PyObject *build(PyObject *form, PyObject *arrays);

static inline PyObject *build_dict(PyObject *form, PyObject *arrays)
{
    PyObject *made = PyDict_New(), *key, *child;
    Py_ssize_t at = 0;
    while (made != NULL && PyDict_Next(form, &at, &key, &child)) {
        PyObject *value = build(child, arrays);
        int failed = value == NULL || PyDict_SetItem(made, key, value) != 0;
        Py_XDECREF(value);
        if (failed)
            Py_CLEAR(made);
    }
    return made;
}

static inline PyObject *build_list(PyObject *form, PyObject *arrays)
{
    Py_ssize_t n = PyList_Size(form);
    PyObject *made = PyList_New(n);
    for (Py_ssize_t i = 0; made != NULL && i < n; i++) {
        PyObject *value = build(PyList_GetItem(form, i), arrays);
        if (value == NULL || PyList_SetItem(made, i, value) != 0)
            Py_CLEAR(made);
    }
    return made;
}

static inline PyObject *build_tuple(PyObject *form, PyObject *arrays)
{
    Py_ssize_t n = PyTuple_Size(form);
    PyObject *made = PyTuple_New(n);
    for (Py_ssize_t i = 0; made != NULL && i < n; i++) {
        PyObject *value = build(PyTuple_GetItem(form, i), arrays);
        if (value == NULL || PyTuple_SetItem(made, i, value) != 0)
            Py_CLEAR(made);
    }
    if (made == NULL || PyTuple_CheckExact(form))
        return made;
    PyObject *named = PyObject_Call((PyObject *)Py_TYPE(form), made, NULL);
    Py_DECREF(made);
    return named;
}

/* The tree of that form, with the arrays for their numbers. */
static inline PyObject *build(PyObject *form, PyObject *arrays)
{
    if (PyDict_CheckExact(form))
        return build_dict(form, arrays);
    if (PyList_CheckExact(form))
        return build_list(form, arrays);
    if (PyTuple_Check(form))
        return build_tuple(form, arrays);
    PyObject *leaf = form == Py_None ? Py_None : PyTuple_GetItem(arrays, PyLong_AsSsize_t(form));
    Py_XINCREF(leaf);
    return leaf;
}

/* Whether the tree surely has that form still, and these arrays in it. Of two equal dicts in another order it does not
 * say so: a walk through both is cheaper than a search for each key. */
static inline bool holds(PyObject *tree, PyObject *form, PyObject *arrays)
{
    if (PyLong_CheckExact(form))
        return tree == PyTuple_GetItem(arrays, PyLong_AsSsize_t(form));
    if (form == Py_None || Py_TYPE(tree) != Py_TYPE(form))
        return tree == form;
    if (PyDict_CheckExact(form)) {
        PyObject *key, *child, *my_key, *my_child;
        Py_ssize_t at = 0, my_at = 0;
        if (PyDict_Size(tree) != PyDict_Size(form))
            return false;
        while (PyDict_Next(form, &at, &key, &child) && PyDict_Next(tree, &my_at, &my_key, &my_child))
            if (my_key != key || !holds(my_child, child, arrays))
                return false;
        return true;
    }
    bool list = PyList_CheckExact(form);
    Py_ssize_t n = list ? PyList_Size(form) : PyTuple_Size(form);
    if (n != (list ? PyList_Size(tree) : PyTuple_Size(tree)))
        return false;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!(list ? holds(PyList_GetItem(tree, i), PyList_GetItem(form, i), arrays)
                   : holds(PyTuple_GetItem(tree, i), PyTuple_GetItem(form, i), arrays)))
            return false;
    return true;
}

static inline bool take_apart(PyObject *tree, PyObject *form, PyObject **leaves);

/* Most dicts have the form's own keys in its order, so both are walked at once. From the first other key on, each is
 * looked up. */
static inline bool take_dict_apart(PyObject *tree, PyObject *form, PyObject **leaves)
{
    PyObject *key, *child, *my_key, *my_child = NULL;
    Py_ssize_t at = 0, my_at = 0;
    bool same = true;
    if (PyDict_Size(tree) != PyDict_Size(form))
        return false;
    while (PyDict_Next(form, &at, &key, &child)) {
        same = same && PyDict_Next(tree, &my_at, &my_key, &my_child) && my_key == key;
        if (!same)
            my_child = PyDict_GetItemWithError(tree, key);
        if (my_child == NULL || !take_apart(my_child, child, leaves))
            return false;
    }
    return true;
}

/* Whether a tree has that form. Then its leaves are in *leaves by their numbers, new references; otherwise some
 * may be there, and an exception may be set. */
static inline bool take_apart(PyObject *tree, PyObject *form, PyObject **leaves)
{
    if (PyLong_CheckExact(form)) {
        Py_INCREF(tree);
        leaves[PyLong_AsSsize_t(form)] = tree;
        return true;
    }
    if (form == Py_None || Py_TYPE(tree) != Py_TYPE(form))
        return tree == form;
    if (PyDict_CheckExact(form))
        return take_dict_apart(tree, form, leaves);
    bool list = PyList_CheckExact(form);
    Py_ssize_t n = list ? PyList_Size(form) : PyTuple_Size(form);
    if (n != (list ? PyList_Size(tree) : PyTuple_Size(tree)))
        return false;
    for (Py_ssize_t i = 0; i < n; i++) /* a lookup above may have changed the list */
        if (list ? i >= PyList_Size(tree) || !take_apart(PyList_GetItem(tree, i), PyList_GetItem(form, i), leaves)
                 : !take_apart(PyTuple_GetItem(tree, i), PyTuple_GetItem(form, i), leaves))
            return false;
    return true;
}

/* The same of a tree that has a part of the form: each dict some of its keys. Leaves that are not there stay as they
 * are. */
static inline bool take_part_apart(PyObject *tree, PyObject *form, PyObject **leaves)
{
    PyObject *key, *child;
    Py_ssize_t at = 0;
    if (!PyDict_CheckExact(tree) || !PyDict_CheckExact(form))
        return take_apart(tree, form, leaves);
    while (PyDict_Next(tree, &at, &key, &child)) {
        /* No code of such keys runs, which could change the tree. */
        if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key))
            return false;
        PyObject *below = PyDict_GetItemWithError(form, key);
        if (below == NULL || !take_part_apart(child, below, leaves))
            return false;
    }
    return true;
}

#endif
