/* Memory of batches, used again and again: so no page is faulted in anew for each batch.
 *
 * A block stands for the memory of one batch. Every array of the batch has the block as its base,
 * and each view refers to its array. So a block lives as long as anything refers to the batch.
 * When it dies its memory goes to the pool's list of free memory. The GIL protects the list.
 * The pool lives as long as its owner, and as long as any of its blocks.
 */
#ifndef ES_PYTHON_POOL_H
#define ES_PYTHON_POOL_H

#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* What the list keeps at most. The latest is kept whatever its size: a loop that drops one batch
 * for the next needs it. */
#define FREE_BLOCKS 12
#define FREE_BYTES ((size_t)64 << 20)

/* From this size on, memory is the kernel's, and not malloc's (bytes). */
#define MAP_FROM ((size_t)256 << 10)
#define HUGE_FROM ((size_t)4 << 20)

#define BLOCK_ALIGNMENT 64

typedef struct {
    void *memory;
    size_t size;
} free_memory;

typedef struct {
    free_memory free[FREE_BLOCKS + 1]; /* the latest last */
    int count;
    int closed; /* it keeps nothing more */
    size_t bytes;
    Py_ssize_t users; /* the owner and the blocks */
} pool;

/* For an owner. NULL: an exception is set. */
static pool *pool_new(void)
{
    pool *p = PyMem_Calloc(1, sizeof *p);
    if (p == NULL)
        PyErr_NoMemory();
    else
        p->users = 1;
    return p;
}

static size_t padded(size_t size)
{
    return (size + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
}

static void *memory_new(size_t size)
{
    void *memory = NULL;
    if (size < MAP_FROM)
        return posix_memalign(&memory, BLOCK_ALIGNMENT, size > 0 ? size : 1) == 0 ? memory : NULL;
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    if (size >= HUGE_FROM)
        madvise(memory, size, MADV_HUGEPAGE);
    return memory;
}

static void memory_free(void *memory, size_t size)
{
    if (size < MAP_FROM)
        free(memory);
    else
        munmap(memory, size);
}

static void *pool_remove(pool *p, int i)
{
    void *memory = p->free[i].memory;
    p->bytes -= p->free[i].size;
    p->count--;
    memmove(&p->free[i], &p->free[i + 1], (size_t)(p->count - i) * sizeof p->free[0]);
    return memory;
}

/* Memory of that size, aligned, with anything in it. NULL: there is none. */
static void *pool_take(pool *p, size_t size)
{
    for (int i = p->count - 1; i >= 0; i--)
        if (p->free[i].size == size)
            return pool_remove(p, i);
    return memory_new(size);
}

static void pool_drop_oldest(pool *p)
{
    size_t size = p->free[0].size;
    memory_free(pool_remove(p, 0), size);
}

static void pool_give(pool *p, void *memory, size_t size)
{
    if (p->closed) {
        memory_free(memory, size);
        return;
    }
    p->free[p->count++] = (free_memory){memory, size};
    p->bytes += size;
    while (p->count > 1 && (p->count > FREE_BLOCKS || p->bytes > FREE_BYTES))
        pool_drop_oldest(p);
}

/* Frees what is free, and from now on whatever becomes free. */
static void pool_close(pool *p)
{
    p->closed = 1;
    while (p->count > 0)
        pool_drop_oldest(p);
}

/* One user less. */
static void pool_drop(pool *p)
{
    if (--p->users > 0)
        return;
    pool_close(p);
    PyMem_Free(p);
}

/* --- blocks ------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD pool *pool;
    void *memory;
    size_t size;
} block;

static PyTypeObject *block_type;

static void block_dealloc(block *self)
{
    PyTypeObject *type = Py_TYPE(self);
    pool_give(self->pool, self->memory, self->size);
    pool_drop(self->pool);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot block_slots[] = {
    {Py_tp_dealloc, (void *)block_dealloc},
    {Py_tp_doc, "The memory of one batch. It is used again after the last reference."},
    {0, NULL},
};

static PyType_Spec block_spec = {
    "echo_shm._replay.Block", sizeof(block), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, block_slots,
};

/* NULL: an exception is set. */
static block *block_new(pool *p, size_t size)
{
    void *memory = pool_take(p, size);
    if (memory == NULL) {
        PyErr_Format(PyExc_MemoryError, "a batch of %zu bytes does not fit into memory", size);
        return NULL;
    }
    block *made = PyObject_New(block, block_type);
    if (made == NULL) {
        pool_give(p, memory, size);
        return NULL;
    }
    p->users++;
    made->pool = p;
    made->memory = memory;
    made->size = size;
    return made;
}

#endif
