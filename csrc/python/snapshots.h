/* Snapshots of a Core's records, for a store in files: snapshot(), snapshot_done(), hold() and room(). */
#ifndef ES_PYTHON_SNAPSHOTS_H
#define ES_PYTHON_SNAPSHOTS_H

#include "python/core.h"

/* snapshot(address): how many bytes of it were changed. */
static PyObject *core_snapshot(core *self, PyObject *address)
{
    void *to = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred())
        return NULL;
    int64_t code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, RELEASE_GIL_FROM, code = (int64_t)self->call.snapshot(self->replay, to));
    return PyLong_FromLongLong(code);
}

static PyObject *core_snapshot_done(core *self, PyObject *nothing)
{
    (void)nothing;
    return call_void(self, RELEASE_GIL_FROM, self->call.snapshot_done);
}

/* hold(address): of the last snapshot; 0: none is of use any more. */
static PyObject *core_hold(core *self, PyObject *address)
{
    const void *snapshot = (const void *)(uintptr_t)PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred())
        return NULL;
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, RELEASE_GIL_FROM, self->call.hold(self->replay, snapshot));
    return PyLong_FromLong(code);
}

static PyObject *core_room(core *self, PyObject *nothing)
{
    (void)nothing;
    return call_number(self, self->call.room);
}

#endif
