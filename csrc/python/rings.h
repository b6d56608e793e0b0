/* The rings of a Core: it connects them, lets go of them, and does what they have brought. */
#ifndef ES_PYTHON_RINGS_H
#define ES_PYTHON_RINGS_H

#include "python/core.h"

/* connect(updates, ring, segment, uuid): the ring that brings updates, or the one that brings steps. */
static PyObject *core_connect(core *self, PyObject *args)
{
    int updates;
    unsigned long long ring, segment;
    const char *uuid;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "pKKy#", &updates, &ring, &segment, &uuid, &length))
        return NULL;
    if (length != 16) {
        PyErr_SetString(PyExc_ValueError, "a uuid has 16 bytes");
        return NULL;
    }
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, 0,
                    code = (updates ? self->call.connect_updates : self->call.connect_inbox)(
                        self->replay, (es_ring *)(uintptr_t)ring, (void *)(uintptr_t)segment, (const uint8_t *)uuid));
    return PyLong_FromLong(code);
}

/* connect_batches(table, ring, segment, uuid, rank, world_size): a ring that takes batches to learners. */
static PyObject *core_connect_batches(core *self, PyObject *args)
{
    PyObject *table_number;
    unsigned long long ring, segment;
    unsigned int rank, world_size;
    const char *uuid;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "OKKy#II", &table_number, &ring, &segment, &uuid, &length, &rank, &world_size))
        return NULL;
    int64_t table = length == 16 ? read_table(self, table_number) : -1;
    if (table < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a uuid has 16 bytes");
        return NULL;
    }
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, 0,
                    code = self->call.connect_batches(self->replay, (uint32_t)table, (es_ring *)(uintptr_t)ring,
                                                      (void *)(uintptr_t)segment, (const uint8_t *)uuid, rank,
                                                      world_size));
    return PyLong_FromLong(code);
}

/* put(number, n, leaves): items that come before all draws for that ring; leaves: the address of their addresses. */
static PyObject *core_put(core *self, PyObject *args)
{
    unsigned int number;
    unsigned long long n, leaves;
    if (!PyArg_ParseTuple(args, "IKK", &number, &n, &leaves))
        return NULL;
    int code = enter(self);
    if (code == ES_OK)
        LOCKED_CALL(self, RELEASE_GIL_FROM,
                    code = self->call.put(self->replay, number, n, (const void *const *)(uintptr_t)leaves));
    return PyLong_FromLong(code);
}

static PyObject *core_disconnect(core *self, PyObject *nothing)
{
    (void)nothing;
    return call_void(self, 0, self->call.disconnect);
}

/* Why each ring of batches got no more. */
static PyObject *codes_of(const es_turn *turn)
{
    Py_ssize_t n = 0;
    while (n < ES_MAX_OUTBOXES && turn->batches[n] != ES_EMPTY)
        n++;
    PyObject *codes = PyTuple_New(n);
    for (Py_ssize_t i = 0; codes != NULL && i < n; i++) {
        PyObject *code = PyLong_FromLong(turn->batches[i]);
        if (code == NULL || PyTuple_SetItem(codes, i, code) != 0)
            Py_CLEAR(codes);
    }
    return codes;
}

/* turn(most): see _replay.pyi. Other threads run meanwhile. */
static PyObject *core_turn(core *self, PyObject *most)
{
    unsigned long long limit = PyLong_AsUnsignedLongLong(most), done = 0;
    es_turn turn;
    if (PyErr_Occurred())
        return NULL;
    int code = enter(self);
    if (code != ES_OK)
        return PyLong_FromLong(code);
    LOCKED_CALL(self, RELEASE_GIL_FROM, done = self->call.turn(self->replay, limit, &turn));
    PyObject *codes = codes_of(&turn);
    if (codes == NULL)
        return NULL;
    const es_ask *ask = &turn.ask;
    return Py_BuildValue("(KiiIIKK(IKKK)N)", done, (int)turn.steps, (int)turn.updates, (unsigned int)turn.table,
                         (unsigned int)turn.sweep_due, (unsigned long long)turn.refused,
                         (unsigned long long)turn.parked, (unsigned int)ask->table, (unsigned long long)ask->batch_size,
                         (unsigned long long)ask->num_batches, (unsigned long long)ask->world_size, codes);
}

#endif
