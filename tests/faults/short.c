/* Preloaded into a process: reads and writes of more than one byte do half of it, and every third one is interrupted
 * before it has done anything. Both are what POSIX allows at any time, and what a disk almost never does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static _Thread_local unsigned n_calls;

static int interrupted(int fd) {
    struct stat info;
    if (fstat(fd, &info) || !S_ISREG(info.st_mode) || ++n_calls % 3) return 0;
    errno = EINTR;
    return 1;
}

static size_t half(int fd, size_t n) {
    struct stat info;
    return n > 1 && !fstat(fd, &info) && S_ISREG(info.st_mode) ? n - n / 2 : n;
}

#define REAL(name, ...) ((ssize_t (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

ssize_t write(int fd, const void *data, size_t n) {
    return interrupted(fd) ? -1 : REAL("write", int, const void *, size_t)(fd, data, half(fd, n));
}

ssize_t read(int fd, void *data, size_t n) {
    return interrupted(fd) ? -1 : REAL("read", int, void *, size_t)(fd, data, half(fd, n));
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    return interrupted(fd) ? -1 : REAL("pwrite", int, const void *, size_t, off_t)(fd, data, half(fd, n), at);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) { return pwrite(fd, data, n, at); }

ssize_t pread(int fd, void *data, size_t n, off_t at) {
    return interrupted(fd) ? -1 : REAL("pread", int, void *, size_t, off_t)(fd, data, half(fd, n), at);
}

ssize_t pread64(int fd, void *data, size_t n, off_t at) { return pread(fd, data, n, at); }

/* Of several pieces, the first alone, and half of that. */
ssize_t preadv2(int fd, const struct iovec *pieces, int n, off_t at, int flags) {
    (void)flags;
    return n ? pread(fd, pieces[0].iov_base, pieces[0].iov_len, at) : 0;
}

ssize_t preadv(int fd, const struct iovec *pieces, int n, off_t at) { return preadv2(fd, pieces, n, at, 0); }
ssize_t preadv64(int fd, const struct iovec *pieces, int n, off_t at) { return preadv2(fd, pieces, n, at, 0); }
ssize_t preadv64v2(int fd, const struct iovec *pieces, int n, off_t at, int flags) { return preadv2(fd, pieces, n, at, flags); }

ssize_t writev(int fd, const struct iovec *pieces, int n) {
    return n ? write(fd, pieces[0].iov_base, pieces[0].iov_len) : 0;
}

ssize_t pwritev(int fd, const struct iovec *pieces, int n, off_t at) {
    return n ? pwrite(fd, pieces[0].iov_base, pieces[0].iov_len, at) : 0;
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int n, off_t at) { return pwritev(fd, pieces, n, at); }
