#define _GNU_SOURCE
#include "base/es_memory.h"

#include <stdlib.h>
#include <sys/mman.h>

/* From this size on (bytes) there is a huge page in it on most machines. */
#define LARGE (UINT64_C(4) << 20)

void *es_memory_new(uint64_t count, uint64_t size)
{
    uint8_t *memory = calloc(count, size);
    if (memory != NULL && count * size >= LARGE) {
        /* Only pages that are all in it: nobody else's memory is asked for. If it fails, the pages are small. */
        uintptr_t begin = ((uintptr_t)memory + ES_PAGE - 1) & -(uintptr_t)ES_PAGE;
        uintptr_t end = ((uintptr_t)memory + count * size) & -(uintptr_t)ES_PAGE;
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
    }
    return memory;
}
