#define _GNU_SOURCE /* preadv, pwritev */

#include "replay/es_chunk.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x6b6e7568632d7365) /* "es-chunk" */
#define VERSION 1u
#define FIRST_ENTRY ES_PAGE
#define LANES 4
/* Rows that follow each other are read together (bytes). */
#define AHEAD ((uint64_t)1 << 18)

/* --- checks ---------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static uint64_t word_at(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* Several words at a time, so that the processor need not wait for each product. Never 0. */
static uint64_t check_of(const uint8_t *bytes, uint64_t size, uint64_t seed)
{
    uint64_t lanes[LANES] = {seed, seed + 1, seed + 2, seed + 3}, h = mix(seed, size), last = 0, at = 0;
    for (; size - at >= LANES * sizeof(uint64_t); at += LANES * sizeof(uint64_t))
        for (int i = 0; i < LANES; i++)
            lanes[i] = mix(lanes[i], word_at(bytes + at + (uint64_t)i * sizeof(uint64_t)));
    for (; size - at >= sizeof(uint64_t); at += sizeof(uint64_t))
        h = mix(h, word_at(bytes + at));
    memcpy(&last, bytes + at, size - at);
    h = mix(h, last);
    for (int i = 0; i < LANES; i++)
        h = mix(h, lanes[i]);
    return h == 0 ? 1 : h;
}

static uint64_t row_check(const es_chunk_form *form, const uint64_t *writer, uint64_t arrival, const uint8_t *row)
{
    return check_of(row, form->row_size, mix(mix(mix(0, writer[0]), writer[1]), arrival));
}

static uint64_t header_check(const es_chunk_header *header)
{
    return check_of((const uint8_t *)header, offsetof(es_chunk_header, check), MAGIC);
}

/* --- files ------------------------------------------------------------------------------- */

es_chunk_form es_chunk_form_of(uint64_t row_size, uint64_t rows, const uint8_t *writer)
{
    es_chunk_form form = {.row_size = row_size, .rows = rows};
    form.entry_size = (row_size + 2 * sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
    memcpy(form.writer, writer, sizeof form.writer);
    return form;
}

void es_chunk_files_init(es_chunk_files *f, int directory, const es_chunk_form *form)
{
    *f = (es_chunk_files){.form = *form, .directory = directory};
}

void es_chunk_files_close(es_chunk_files *f)
{
    for (int i = 0; i < ES_CHUNK_OPEN; i++)
        if (f->open[i].number != 0)
            close(f->open[i].fd);
    memset(f->open, 0, sizeof f->open);
    free(f->ahead);
    f->ahead = NULL;
}

static int open_chunk(int directory, uint64_t number, int flags)
{
    char name[32];
    snprintf(name, sizeof name, "rows-%016" PRIx64, number);
    int fd = openat(directory, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd >= 0 ? fd : -errno;
}

/* Writes all of it, or reads all of it: ES_OK, -errno, or ES_EDAMAGED at the end of the file. */
static int whole(int fd, struct iovec *parts, int n, uint64_t at, bool writes)
{
    while (n > 0) {
        ssize_t done = writes ? pwritev(fd, parts, n, (off_t)at) : preadv(fd, parts, n, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : writes ? -ENOSPC : ES_EDAMAGED;
        at += (uint64_t)done;
        for (; n > 0 && (uint64_t)done >= parts->iov_len; parts++, n--)
            done -= (ssize_t)parts->iov_len;
        if (n > 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + done;
            parts->iov_len -= (size_t)done;
        }
    }
    return ES_OK;
}

/* Whether a file begins as the chunk of that number does. */
static int check_header(const es_chunk_form *form, struct es_chunk_file *file)
{
    es_chunk_header header;
    struct iovec part = {&header, sizeof header};
    int code = whole(file->fd, &part, 1, 0, false);
    if (code != ES_OK)
        return code;
    memcpy(file->writer, header.writer, sizeof file->writer);
    return header.magic == MAGIC && header.version == VERSION && header.row_size == form->row_size &&
                   header.rows == form->rows && header.number == file->number - 1 &&
                   header.check == header_check(&header)
               ? ES_OK
               : ES_EDAMAGED;
}

/* The open file of that chunk. writes: it may be new. */
static int file_of(es_chunk_files *f, uint64_t number, bool writes, struct es_chunk_file **found)
{
    struct es_chunk_file *file = &f->open[number % ES_CHUNK_OPEN];
    *found = file;
    if (file->number == number + 1)
        return ES_OK;
    if (file->number != 0)
        close(file->fd);
    file->number = 0;
    int fd = open_chunk(f->directory, number, writes ? O_WRONLY | O_CREAT : O_RDONLY | O_NONBLOCK);
    if (fd < 0)
        return fd;
    *file = (struct es_chunk_file){.number = number + 1, .fd = fd};
    int code = writes ? ES_OK : check_header(&f->form, file);
    if (code != ES_OK) {
        close(fd);
        file->number = 0;
    }
    return code;
}

/* Where an entry is in its file. */
static uint64_t place_of(const es_chunk_form *form, uint64_t arrival)
{
    return FIRST_ENTRY + arrival % form->rows * form->entry_size;
}

/* --- writing ----------------------------------------------------------------------------- */

void es_chunk_seal(const es_chunk_form *form, uint64_t arrival, uint8_t *entry)
{
    uint64_t check = row_check(form, form->writer, arrival, entry);
    uint8_t *end = entry + form->entry_size - sizeof check;
    memset(entry + form->row_size, 0, (uint64_t)(end - entry) - form->row_size);
    memcpy(end, &check, sizeof check);
}

int es_chunk_write(es_chunk_files *f, uint64_t arrival, const uint8_t *entries, uint64_t n)
{
    struct es_chunk_file *file;
    struct iovec part = {(void *)(uintptr_t)entries, n * f->form.entry_size};
    int code = file_of(f, arrival / f->form.rows, true, &file);
    return code == ES_OK ? whole(file->fd, &part, 1, place_of(&f->form, arrival), true) : code;
}

int es_chunk_write_row(es_chunk_files *f, uint64_t arrival, const uint8_t *row)
{
    struct es_chunk_file *file;
    const es_chunk_form *form = &f->form;
    uint64_t zero = 0, check = row_check(form, form->writer, arrival, row);
    struct iovec parts[] = {{(void *)(uintptr_t)row, form->row_size},
                            {&zero, form->entry_size - form->row_size - sizeof check},
                            {&check, sizeof check}};
    int code = file_of(f, arrival / form->rows, true, &file);
    return code == ES_OK ? whole(file->fd, parts, 3, place_of(form, arrival), true) : code;
}

int es_chunk_finish(int directory, const es_chunk_form *form, uint64_t number, es_chunk_header *header)
{
    memset(header, 0, sizeof *header);
    header->magic = MAGIC;
    header->version = VERSION;
    header->row_size = form->row_size;
    header->rows = form->rows;
    header->number = number;
    memcpy(header->writer, form->writer, sizeof header->writer);
    header->check = header_check(header);
    struct iovec part = {header, sizeof *header};
    int fd = open_chunk(directory, number, O_WRONLY);
    if (fd < 0)
        return fd;
    es_chunk_header copy = *header;
    part.iov_base = &copy;
    int code = whole(fd, &part, 1, 0, true);
    if (code == ES_OK && (ftruncate(fd, (off_t)(FIRST_ENTRY + form->rows * form->entry_size)) != 0 || fsync(fd) != 0))
        code = -errno;
    close(fd);
    return code;
}

/* --- reading ----------------------------------------------------------------------------- */

/* Copies an entry that was read ahead: false if it was not. */
static bool copy_ahead(const es_chunk_files *f, uint64_t chunk, uint64_t place, uint8_t *row, uint64_t *check)
{
    const es_chunk_form *form = &f->form;
    if (f->ahead == NULL || f->ahead_chunk != chunk || place < f->ahead_from ||
        place + form->entry_size > f->ahead_from + f->ahead_size)
        return false;
    const uint8_t *entry = f->ahead + (place - f->ahead_from);
    memcpy(row, entry, form->row_size);
    memcpy(check, entry + form->entry_size - sizeof *check, sizeof *check);
    return true;
}

/* Reads from that place on as much as fits, in place of one entry. Without memory, or at the end, it is less. */
static void read_ahead(es_chunk_files *f, int fd, uint64_t chunk, uint64_t place)
{
    if (f->ahead == NULL)
        f->ahead = malloc(AHEAD);
    if (f->ahead == NULL)
        return;
    ssize_t n = pread(fd, f->ahead, AHEAD, (off_t)place);
    f->ahead_chunk = chunk;
    f->ahead_from = place;
    f->ahead_size = n > 0 ? (uint64_t)n : 0;
}

int es_chunk_read_row(es_chunk_files *f, uint64_t arrival, uint8_t *row)
{
    struct es_chunk_file *file;
    const es_chunk_form *form = &f->form;
    uint64_t chunk = arrival / form->rows, place = place_of(form, arrival), padding, check;
    struct iovec parts[] = {
        {row, form->row_size}, {&padding, form->entry_size - form->row_size - sizeof check}, {&check, sizeof check}};
    int code = file_of(f, chunk, false, &file);
    if (code != ES_OK)
        return code;
    bool found = copy_ahead(f, chunk, place, row, &check);
    if (!found && arrival == f->last + 1 && form->entry_size < AHEAD / 2) {
        read_ahead(f, file->fd, chunk, place);
        found = copy_ahead(f, chunk, place, row, &check);
    }
    f->last = arrival;
    if (!found)
        code = whole(file->fd, parts, 3, place, false);
    return code == ES_OK && check != row_check(form, file->writer, arrival, row) ? ES_EDAMAGED : code;
}
