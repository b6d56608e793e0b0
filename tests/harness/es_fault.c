/* A library to preload: one of a process's calls that change files does not happen, because the process is killed before
 * it, or because it fails. Or somebody is told of each of them. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long left = -1, calls;
static int fails_with;
static void (*told)(int fd);
static _Thread_local int inside;

/* The call number `at` from now on, counted from 0, fails with that error; 0: the process is killed. */
void es_fault_arm(long at, int error)
{
    left = at;
    calls = 0;
    fails_with = error;
}

/* How many there were since, and from now on none is counted. */
long es_fault_disarm(void)
{
    left = -1;
    return calls;
}

/* After each call that has changed something, tell(-1) is called; after an fsync, tell(its descriptor). Calls that it
 * makes itself do not count. */
void es_fault_watch(void (*tell)(int fd))
{
    told = tell;
}

static long after(long result, int fd)
{
    int saved = errno;
    if (result >= 0 && told != NULL && !inside) {
        inside = 1;
        told(fd);
        inside = 0;
    }
    errno = saved;
    return result;
}

/* Whether the call about to be made fails. */
static int fault(void)
{
    if (left < 0)
        return 0;
    calls++;
    if (left-- > 0)
        return 0;
    if (fails_with == 0)
        raise(SIGKILL);
    errno = fails_with;
    return 1;
}

static int is_file(int fd)
{
    struct stat status;
    return (left >= 0 || (told != NULL && !inside)) && fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define WRAP_TELLING(type, name, parameters, arguments, counts, fd)  \
    type name parameters                                             \
    {                                                                \
        if (!(counts))                                               \
            return NEXT(name) arguments;                             \
        return fault() ? -1 : (type)after(NEXT(name) arguments, fd); \
    }
#define WRAP(type, name, parameters, arguments, counts) WRAP_TELLING(type, name, parameters, arguments, counts, -1)

WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), 1)
WRAP(int, rmdir, (const char *path), (path), 1)
WRAP(int, unlink, (const char *path), (path), 1)
WRAP(int, unlinkat, (int at, const char *path, int flags), (at, path, flags), 1)
WRAP(int, rename, (const char *from, const char *to), (from, to), 1)
WRAP(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), 1)
WRAP(int, link, (const char *from, const char *to), (from, to), 1)
WRAP(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), 1)
WRAP_TELLING(int, fsync, (int fd), (fd), 1, fd)
WRAP_TELLING(int, fdatasync, (int fd), (fd), 1, fd)
WRAP(int, ftruncate, (int fd, off_t size), (fd, size), 1)
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size), 1)
WRAP(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), is_file(fd))
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), is_file(fd))
WRAP(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), is_file(fd))
WRAP(ssize_t, pwritev, (int fd, const struct iovec *parts, int n, off_t at), (fd, parts, n, at), is_file(fd))
WRAP(ssize_t, pwritev64, (int fd, const struct iovec *parts, int n, off64_t at), (fd, parts, n, at), is_file(fd))

/* Those that may make a file. */
#define WRAP_OPEN(name, parameters, arguments)                                  \
    int name parameters                                                         \
    {                                                                           \
        va_list list;                                                           \
        va_start(list, flags);                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
        va_end(list);                                                           \
        if (!(flags & O_CREAT))                                                 \
            return NEXT(name) arguments;                                        \
        return fault() ? -1 : (int)after(NEXT(name) arguments, -1);             \
    }

WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
WRAP_OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))
