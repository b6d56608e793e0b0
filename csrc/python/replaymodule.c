/* echo_shm._replay: the calls of a replay. In the short ones cffi's conversions would cost more than the work.
 *
 * Here are the type and the module. The headers have the calls, a few each.
 *
 * What is wrong is returned as a code, and Python makes exceptions of codes. After a fork the child's copy refuses
 * every call, and leaves the store and the lock alone.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "python/changes.h"
#include "python/core.h"
#include "python/draws.h"
#include "python/inserts.h"
#include "python/lookups.h"
#include "python/rings.h"
#include "python/saves.h"
#include "python/snapshots.h"
#include "python/vectors.h"

/* Waits for a call under way. A forked child has no part in the store. */
static PyObject *core_close(core *self, PyObject *nothing)
{
    (void)nothing;
    if (enter(self) == ES_OK) {
        es_replay *replay = self->replay;
        self->replay = NULL;
        LOCKED_CALL(self, RELEASE_GIL_FROM, self->call.free(replay));
        PyObject *keep = self->keep;
        self->keep = NULL;
        Py_XDECREF(keep);
        for (uint32_t t = 0; t < self->num_tables; t++) {
            pool_close(self->tables[t].pool);
            forget_arrays(self->tables[t].kept);
        }
    }
    Py_RETURN_NONE;
}

static void core_dealloc(core *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->replay != NULL && self->call.fork_generation() == self->generation)
        self->call.free(self->replay);
    for (uint32_t t = 0; self->tables != NULL && t < self->num_tables; t++) {
        pool_close(self->tables[t].pool);
        forget_arrays(self->tables[t].kept);
        pool_drop(self->tables[t].pool);
        Py_DECREF(self->tables[t].tree);
        free_leaves(self->tables[t].arrays, self->tables[t].num_outputs + ES_BATCH_COLUMNS);
    }
    PyMem_Free(self->tables);
    free_leaves(self->steps, self->num_leaves);
    Py_XDECREF(self->keep);
    Py_DECREF(self->form);
    if (self->lock != NULL)
        PyThread_free_lock(self->lock);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* -1: an exception is set. */
static int read_functions(functions *to, PyObject *addresses)
{
    struct {
        const char *name;
        void *function;
    } wanted[] = {
#define ENTRY(name) {"es_replay_" #name, &to->name},
        FUNCTIONS(ENTRY)
#define ENTRY_OF_SAVE(name) {"es_checkpoint_" #name, &to->name},
            SAVE_FUNCTIONS(ENTRY_OF_SAVE){"es_api_fork_generation", &to->fork_generation},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        PyObject *address = PyDict_GetItemString(addresses, wanted[i].name);
        if (address == NULL) {
            PyErr_Format(PyExc_KeyError, "no address of %s", wanted[i].name);
            return -1;
        }
        uintptr_t value = (uintptr_t)PyLong_AsUnsignedLongLong(address);
        if (PyErr_Occurred())
            return -1;
        memcpy(wanted[i].function, &value, sizeof value);
    }
    return 0;
}

static size_t bytes_of(const leaf *leaves, Py_ssize_t n)
{
    size_t bytes = 0;
    for (Py_ssize_t i = 0; i < n; i++)
        bytes += (size_t)leaves[i].distance;
    return bytes;
}

/* -1: an exception is set. */
static int read_form(batch_form *to, PyObject *from)
{
    PyObject *tree, *arrays;
    if (!PyTuple_Check(from) || !PyArg_ParseTuple(from, "OO!", &tree, &PyTuple_Type, &arrays))
        return -1;
    if (PyTuple_Size(arrays) <= ES_BATCH_COLUMNS) {
        PyErr_SetString(PyExc_ValueError, "a batch has leaves and columns");
        return -1;
    }
    Py_INCREF(tree);
    to->tree = tree;
    to->arrays = read_leaves(arrays);
    if (to->arrays == NULL || (to->pool = pool_new()) == NULL)
        return -1;
    to->num_outputs = PyTuple_Size(arrays) - ES_BATCH_COLUMNS;
    to->item_bytes = bytes_of(to->arrays, to->num_outputs);
    return 0;
}

/* -1: an exception is set. */
static int read_forms(core *self, PyObject *steps, PyObject *tables)
{
    const Py_ssize_t num_tables = PyTuple_Size(tables);
    self->num_leaves = PyTuple_Size(steps);
    if (self->num_leaves < 1 || num_tables < 1 || num_tables > ES_MAX_TABLES) {
        PyErr_SetString(PyExc_ValueError, "a replay has leaves, and 1 to 64 tables");
        return -1;
    }
    self->steps = read_leaves(steps);
    if (self->steps == NULL)
        return -1;
    self->step_bytes = bytes_of(self->steps, self->num_leaves);
    self->tables = PyMem_Calloc((size_t)num_tables, sizeof *self->tables);
    if (self->tables == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (self->num_tables = 0; self->num_tables < (uint32_t)num_tables; self->num_tables++)
        if (read_form(&self->tables[self->num_tables], PyTuple_GetItem(tables, self->num_tables)) != 0) {
            Py_XDECREF(self->tables[self->num_tables].tree);
            return -1;
        }
    return 0;
}

/* Core(addresses, es_replay, arrays of steps, arrays of each table's batches, form of a step, keep): see
 * _replay.pyi. */
static PyObject *core_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *addresses, *steps, *tables, *form, *keep;
    unsigned long long replay;
    functions call;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "O!KO!O!OO", &PyDict_Type, &addresses, &replay, &PyTuple_Type, &steps, &PyTuple_Type,
                          &tables, &form, &keep) ||
        read_functions(&call, addresses) != 0)
        return NULL;
    core *self = PyObject_New(core, type);
    if (self == NULL)
        return NULL;
    self->call = call;
    self->generation = call.fork_generation();
    self->replay = NULL; /* until nothing can fail any more: on failure it stays the caller's */
    self->num_leaves = 0;
    self->steps = NULL;
    self->num_tables = 0;
    self->tables = NULL;
    self->waiting = 0;
    self->owner = 0;
    Py_INCREF(form);
    self->form = form;
    Py_INCREF(keep);
    self->keep = keep;
    self->lock = PyThread_allocate_lock();
    if (self->lock == NULL || read_forms(self, steps, tables) != 0) {
        if (!PyErr_Occurred())
            PyErr_NoMemory();
        Py_DECREF(self);
        return NULL;
    }
    self->replay = (es_replay *)(uintptr_t)replay;
    return (PyObject *)self;
}

static PyObject *core_closed(core *self, void *nothing)
{
    (void)nothing;
    return PyBool_FromLong(self->replay == NULL);
}

/* Batches that nobody refers to any more, and their bytes. */
static long unused_blocks(const core *self, size_t *bytes)
{
    long blocks = 0;
    *bytes = 0;
    for (uint32_t t = 0; t < self->num_tables; t++) {
        const batch_form *form = &self->tables[t];
        blocks += form->pool->count;
        *bytes += form->pool->bytes;
        for (int i = 0; i < KEPT; i++)
            if (all_unused(&form->kept[i], form->arrays, form->num_outputs + ES_BATCH_COLUMNS)) {
                blocks++;
                *bytes += form->kept[i].memory->size;
            }
    }
    return blocks;
}

static PyObject *core_free_blocks(core *self, void *nothing)
{
    (void)nothing;
    size_t bytes;
    return PyLong_FromLong(unused_blocks(self, &bytes));
}

static PyObject *core_free_bytes(core *self, void *nothing)
{
    (void)nothing;
    size_t bytes;
    unused_blocks(self, &bytes);
    return PyLong_FromSize_t(bytes);
}

static PyMethodDef core_methods[] = {
    {"add", (PyCFunction)(void (*)(void))core_add, METH_FASTCALL,
     "add(step, terminated, truncated, priority, timeout)"},
    {"add_each", (PyCFunction)(void (*)(void))core_add_each, METH_FASTCALL,
     "add_each(terminated, truncated, float64s, *leaves)"},
    {"add_vector", (PyCFunction)(void (*)(void))core_add_vector, METH_FASTCALL,
     "add_vector(steps, terminated, truncated, autoreset, final, priorities, environments, timeout, needed)"},
    {"add_rows", (PyCFunction)core_add_rows, METH_VARARGS,
     "add_rows(first, n, leaves, finals, terminated, truncated, skips_resets, priorities, environments)"},
    {"extend", (PyCFunction)core_extend, METH_VARARGS, "extend(leaves, total, first, n, flags, priorities)"},
    {"sample", (PyCFunction)(void (*)(void))core_sample, METH_FASTCALL, "sample(table, n, beta, out)"},
    {"batch", (PyCFunction)(void (*)(void))core_batch, METH_FASTCALL, "batch(table, type, arrays)"},
    {"weigh", (PyCFunction)(void (*)(void))core_weigh, METH_FASTCALL, "weigh(table, weights)"},
    {"put_back", (PyCFunction)(void (*)(void))core_put_back, METH_FASTCALL, "put_back(table, arrays)"},
    {"get", (PyCFunction)(void (*)(void))core_get, METH_FASTCALL, "get(table, keys)"},
    {"update", (PyCFunction)(void (*)(void))core_update, METH_FASTCALL, "update(table, keys, priorities)"},
    {"delete", (PyCFunction)(void (*)(void))core_delete, METH_FASTCALL, "delete(table, keys)"},
    {"reset", (PyCFunction)core_reset, METH_O, "reset(table)"},
    {"learned", (PyCFunction)core_learned, METH_O, "learned(table) -> a code"},
    {"set_limits", (PyCFunction)core_set_limits, METH_VARARGS, "set_limits(table, min_diff, max_diff) -> a code"},
    {"notes", (PyCFunction)core_notes, METH_O, "notes(array): reads the notes into it -> a code"},
    {"set_notes", (PyCFunction)core_set_notes, METH_O, "set_notes(array) -> a code"},
    {"can_sample", (PyCFunction)core_can_sample, METH_VARARGS, "can_sample(table, n)"},
    {"can_insert", (PyCFunction)core_can_insert, METH_VARARGS, "can_insert(table, n)"},
    {"check_priority", (PyCFunction)core_check_priority, METH_VARARGS, "check_priority(table, priority)"},
    {"info", (PyCFunction)core_info, METH_O, "info(table) -> the bytes of an es_table_info"},
    {"end_episode", (PyCFunction)core_end_episode, METH_O, "end_episode(environments) -> a code"},
    {"set_version", (PyCFunction)core_set_version, METH_VARARGS, "set_version(version, by_hand) -> a code"},
    {"version", (PyCFunction)core_version, METH_NOARGS, "version() -> that of the next step, or a code"},
    {"num_steps", (PyCFunction)core_num_steps, METH_NOARGS, "How many steps are stored."},
    {"list_steps", (PyCFunction)core_list_steps, METH_NOARGS,
     "list_steps() -> the bytes of an es_stored_step for each"},
    {"read_steps", (PyCFunction)core_read_steps, METH_VARARGS, "read_steps(listed, leaves)"},
    {"connect", (PyCFunction)core_connect, METH_VARARGS, "connect(updates, ring, segment, uuid)"},
    {"connect_batches", (PyCFunction)core_connect_batches, METH_VARARGS,
     "connect_batches(table, ring, segment, uuid, rank, world_size)"},
    {"put", (PyCFunction)core_put, METH_VARARGS, "put(number, n, leaves) -> a code"},
    {"disconnect", (PyCFunction)core_disconnect, METH_NOARGS, "Gives back to the rings what was not used."},
    {"turn", (PyCFunction)core_turn, METH_O, "turn(most): stores what the rings have brought."},
    {"snapshot", (PyCFunction)core_snapshot, METH_O, "snapshot(address): brings a copy of the records up to date."},
    {"snapshot_done", (PyCFunction)core_snapshot_done, METH_NOARGS, "That copy is on the disk."},
    {"hold", (PyCFunction)core_hold, METH_O, "hold(address): leaves the rows alone that a snapshot refers to."},
    {"room", (PyCFunction)core_room, METH_NOARGS, "How many steps can be stored before the next snapshot."},
    {"save_begin", (PyCFunction)core_save_begin, METH_VARARGS, "save_begin(directory, records, drawn, first, rows)"},
    {"save_some", (PyCFunction)core_save_some, METH_O, "save_some(save): writes some rows."},
    {"save_end", (PyCFunction)core_save_end, METH_O, "save_end(save): rows are copied no more."},
    {"restore", (PyCFunction)core_restore, METH_VARARGS, "restore(drawn, stream, environments)"},
    {"close", (PyCFunction)core_close, METH_NOARGS, "Lets go of the store. Idempotent."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef core_members[] = {
    {"waiting", T_LONG, offsetof(core, waiting), 0, "Threads that wait for a change."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef core_getters[] = {
    {"closed", (getter)core_closed, NULL, "Whether it has let go of the store.", NULL},
    {"free_blocks", (getter)core_free_blocks, NULL, "Batches whose memory waits for the next.", NULL},
    {"free_bytes", (getter)core_free_bytes, NULL, "Bytes of them.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot core_slots[] = {
    {Py_tp_new, (void *)core_new},
    {Py_tp_dealloc, (void *)core_dealloc},
    {Py_tp_methods, core_methods},
    {Py_tp_members, core_members},
    {Py_tp_getset, core_getters},
    {Py_tp_doc, "A process's hold of a store."},
    {0, NULL},
};

static PyType_Spec core_spec = {"echo_shm._replay.Core", sizeof(core), 0, Py_TPFLAGS_DEFAULT, core_slots};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_replay", "The calls of a replay.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__replay(void)
{
    if (PyArray_ImportNumPyAPI() < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    PyObject *core_object = PyType_FromSpec(&core_spec), *block_object = PyType_FromSpec(&block_spec);
    if (made == NULL || core_object == NULL || block_object == NULL)
        return NULL;
    block_type = (PyTypeObject *)block_object; /* for the life of the process */
    Py_INCREF(block_object);
    if (PyModule_AddObject(made, "Core", core_object) != 0 || PyModule_AddObject(made, "Block", block_object) != 0)
        return NULL;
    return made;
}
