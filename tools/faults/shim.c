/* Counts the calls of this process that change files, and ends it at the chosen one.
 *
 * Loaded with LD_PRELOAD. Nothing happens until faults_arm() is called. A boundary is just before
 * such a call; "half" is in the middle of a write. What happens after a call is just before the
 * next one, as far as files can tell. Standard output and what is no regular file do not count.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { MOST = 1 << 20 };
static volatile int armed, in_half;
static long boundary, passed;
static char writes[MOST];

void faults_arm(long at, int half) {
    boundary = at;
    in_half = half;
    passed = 0;
    armed = 1;
}

long faults_passed(void) { return passed; }

int faults_is_write(long call) { return 0 < call && call < MOST && writes[call]; }

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static void pass(void) {
    if (armed && __sync_add_and_fetch(&passed, 1) == boundary) die();
}

static int pass_write(void) {
    long here = __sync_add_and_fetch(&passed, 1);
    if (here < MOST) writes[here] = 1;
    return here == boundary;
}

static int counts(int file) {
    struct stat found;
    return armed && file > 2 && fstat(file, &found) == 0 && S_ISREG(found.st_mode);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

#define OPEN(name)                                                                   \
    int name(const char *path, int flags, ...) {                                     \
        REAL(name);                                                                  \
        mode_t mode = 0;                                                             \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                       \
            va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); \
        }                                                                            \
        if (flags & (O_CREAT | O_TRUNC)) pass();                                     \
        return real(path, flags, mode);                                              \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                 \
    int name(int folder, const char *path, int flags, ...) {                         \
        REAL(name);                                                                  \
        mode_t mode = 0;                                                             \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                       \
            va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); \
        }                                                                            \
        if (flags & (O_CREAT | O_TRUNC)) pass();                                     \
        return real(folder, path, flags, mode);                                      \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *data, size_t size) {
    REAL(write);
    if (counts(file) && pass_write()) {
        if (in_half) real(file, data, size / 2);
        die();
    }
    return real(file, data, size);
}

#define PWRITE(name, offset_type)                                                    \
    ssize_t name(int file, const void *data, size_t size, offset_type offset) {      \
        REAL(name);                                                                  \
        if (counts(file) && pass_write()) {                                          \
            if (in_half) real(file, data, size / 2, offset);                         \
            die();                                                                   \
        }                                                                            \
        return real(file, data, size, offset);                                       \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define OF_FILE(name, parameters, ...)                                               \
    int name parameters { REAL(name); if (counts(file)) pass(); return real(__VA_ARGS__); }
OF_FILE(ftruncate, (int file, off_t size), file, size)
OF_FILE(ftruncate64, (int file, off64_t size), file, size)
OF_FILE(fsync, (int file), file)
OF_FILE(fdatasync, (int file), file)

#define OF_PATH(name, parameters, ...)                                               \
    int name parameters { REAL(name); pass(); return real(__VA_ARGS__); }
OF_PATH(truncate, (const char *path, off_t size), path, size)
OF_PATH(truncate64, (const char *path, off64_t size), path, size)
OF_PATH(rename, (const char *from, const char *to), from, to)
OF_PATH(renameat, (int a, const char *from, int b, const char *to), a, from, b, to)
OF_PATH(link, (const char *from, const char *to), from, to)
OF_PATH(linkat, (int a, const char *from, int b, const char *to, int f), a, from, b, to, f)
OF_PATH(unlink, (const char *path), path)
OF_PATH(unlinkat, (int folder, const char *path, int flags), folder, path, flags)
OF_PATH(mkdir, (const char *path, mode_t mode), path, mode)
OF_PATH(rmdir, (const char *path), path)
