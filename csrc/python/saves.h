/* Checkpoints: save_begin(), save_some() and save_end() of a Core, with which one thread writes one while others use the
 * replay, and restore(). */
#ifndef ES_PYTHON_SAVES_H
#define ES_PYTHON_SAVES_H

#include "python/core.h"

/* The bytes of an es_environment for each, while the lock is held; NULL: an exception is set. */
static PyObject *read_environments(core *self)
{
    uint64_t n = self->call.environments(self->replay, NULL, 0);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * sizeof(es_environment)));
    if (bytes != NULL)
        self->call.environments(self->replay, (es_environment *)PyBytes_AsString(bytes), n);
    return bytes;
}

/* save_begin(directory, records, drawn, first, rows): see _replay.pyi. */
static PyObject *core_save_begin(core *self, PyObject *args)
{
    es_save_config config = {.zero = 0};
    es_save_state state;
    unsigned long long first, rows;
    es_save *save = NULL;
    if (!PyArg_ParseTuple(args, "iiiKK", &config.directory, &config.records, &config.drawn, &first, &rows))
        return NULL;
    if (rows == 0 || first % rows != 0) {
        PyErr_SetString(PyExc_ValueError, "first is a multiple of rows");
        return NULL;
    }
    config.first = first;
    config.rows = rows;
    int code = enter(self);
    if (code != ES_OK)
        return PyLong_FromLong(code);
    Py_BEGIN_ALLOW_THREADS
    save = self->call.begin(self->replay, &config, &state, &code);
    Py_END_ALLOW_THREADS
    PyObject *environments = code == ES_OK ? read_environments(self) : NULL;
    if (code == ES_OK && environments == NULL)
        self->call.end(self->replay, save);
    leave(self);
    if (code != ES_OK)
        return PyLong_FromLong(code);
    if (environments == NULL)
        return NULL;
    return Py_BuildValue("(Ky#N)", (unsigned long long)(uintptr_t)save, (const char *)&state, (Py_ssize_t)sizeof state,
                         environments);
}

/* save_some(save): see _replay.pyi. The lock is held while rows are copied, but not while they are written. */
static PyObject *core_save_some(core *self, PyObject *address)
{
    es_save *save = (es_save *)(uintptr_t)PyLong_AsUnsignedLongLong(address);
    int some = 0;
    int64_t done = 0;
    if (PyErr_Occurred())
        return NULL;
    int code = enter(self);
    if (code != ES_OK)
        return PyLong_FromLong(code);
    Py_BEGIN_ALLOW_THREADS
    some = self->call.take(self->replay, save);
    leave(self);
    if (some)
        done = self->call.write(save);
    Py_END_ALLOW_THREADS
    if (!some)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(done);
}

/* save_end(save): see _replay.pyi. */
static PyObject *core_save_end(core *self, PyObject *address)
{
    es_save *save = (es_save *)(uintptr_t)PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred())
        return NULL;
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, 0, code = self->call.end(self->replay, save));
    else
        self->call.end(NULL, save);
    return PyLong_FromLong(code);
}

/* restore(drawn, stream, environments): see _replay.pyi. */
static PyObject *core_restore(core *self, PyObject *args)
{
    const char *drawn, *environments;
    Py_ssize_t size, bytes;
    unsigned long long stream;
    if (!PyArg_ParseTuple(args, "y#Ky#", &drawn, &size, &stream, &environments, &bytes))
        return NULL;
    int code = enter(self);
    if (code != ES_OK)
        return PyLong_FromLong(code);
    if (size > 0)
        code = self->call.drawn(self->replay, (const uint8_t *)drawn, (uint64_t)size);
    if (code == ES_OK)
        code = self->call.go_on(self->replay, stream, (const es_environment *)environments,
                                (uint64_t)bytes / sizeof(es_environment));
    leave(self);
    return PyLong_FromLong(code);
}

#endif
