/* Waits of known kinds, counted by the thread itself: each line is TID KIND WAITS RUN_DELAY_NS SWITCHES TIME_NS.
 * WAITS are the thread's voluntary switches (getrusage) within the operations; for page faults its major faults. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int pipes[2], sockets[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t held, free_;
static const char *file;

static void nap(long us) { struct timespec t = {0, us * 1000}; nanosleep(&t, 0); }
static long waits(void) { struct rusage u; getrusage(RUSAGE_THREAD, &u); return u.ru_nvcsw; }
static long faults(void) { struct rusage u; getrusage(RUSAGE_THREAD, &u); return u.ru_majflt; }

static void tell(const char *kind, long n) {
    char path[64]; unsigned long long on, delay, slices;
    int tid = syscall(SYS_gettid);
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", tid);
    FILE *f = fopen(path, "r");
    if (!f || fscanf(f, "%llu %llu %llu", &on, &delay, &slices) != 3) abort();
    fclose(f);
    struct rusage u; getrusage(RUSAGE_THREAD, &u);
    struct timespec now; clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%d %s %ld %llu %ld %lld\n", tid, kind, n, delay, u.ru_nvcsw + u.ru_nivcsw, now.tv_sec * 1000000000LL + now.tv_nsec);
}

#define COUNTED(op) do { long before = waits(); op; n += waits() - before; } while (0)
#define THREAD(name, kind, op) \
    static void *name(void *arg) { \
        (void)arg; char c = 0; long n = 0; \
        for (int i = 0; i < 40; i++) { op; } \
        tell(kind, n); \
        (void)c; return 0; \
    }
THREAD(sleeper, "sleep", COUNTED(nap(1000)))
THREAD(poller, "poll", COUNTED(poll(0, 0, 2)))
THREAD(piper, "pipe", COUNTED(if (read(pipes[0], &c, 1) != 1) abort()))
THREAD(netter, "net", COUNTED(if (recv(sockets[0], &c, 1, 0) != 1) abort()))
THREAD(locker, "sync", COUNTED(pthread_barrier_wait(&held); pthread_mutex_lock(&lock); pthread_mutex_unlock(&lock); pthread_barrier_wait(&free_)))
THREAD(parent, "child", COUNTED(pid_t p = vfork(); if (p == 0) { usleep(2000); _exit(0); } waitpid(p, 0, 0)))
THREAD(syncer, "fsync", int fd = open(file, O_WRONLY); if (pwrite(fd, "x", 1, i * 4096) != 1) abort(); COUNTED(fsync(fd)); close(fd))
THREAD(reader, "disk", int fd = open(file, O_RDONLY); posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); COUNTED(if (pread(fd, &c, 1, i * 65536) != 1) abort()); close(fd))

static void *feeder(void *arg) {
    (void)arg;
    for (int i = 0; i < 40; i++) {
        nap(4000);
        if (write(pipes[1], "x", 1) != 1 || send(sockets[1], "x", 1, 0) != 1) abort();
    }
    return 0;
}
static void *holder(void *arg) {
    (void)arg;
    for (int i = 0; i < 40; i++) { pthread_mutex_lock(&lock); pthread_barrier_wait(&held); nap(500); pthread_mutex_unlock(&lock); pthread_barrier_wait(&free_); }
    return 0;
}
static void *faulter(void *arg) {
    (void)arg;
    int fd = open(file, O_RDWR); size_t n = 8 << 20;
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    char *m = mmap(0, n, PROT_READ, MAP_SHARED, fd, 0);
    madvise(m, n, MADV_RANDOM);
    long before = faults(); volatile char sum = 0;
    for (size_t i = 0; i < n; i += 128 << 10) sum += m[i];
    tell("page_fault", faults() - before);
    return 0;
}
static volatile double burnt;
static void *burner(void *arg) {
    (void)arg;
    struct timespec a, b; clock_gettime(CLOCK_MONOTONIC, &a);
    do { burnt += 1; clock_gettime(CLOCK_MONOTONIC, &b); } while ((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000 < 400);
    struct rusage u; getrusage(RUSAGE_THREAD, &u);
    tell("preempted", u.ru_nivcsw);
    return 0;
}
static void run(int n, void *(**start)(void *)) {
    pthread_t t[8];
    for (int i = 0; i < n; i++) pthread_create(&t[i], 0, start[i], 0);
    for (int i = 0; i < n; i++) pthread_join(t[i], 0);
}
#define RUN(...) do { void *(*s[])(void *) = {__VA_ARGS__}; run(sizeof s / sizeof *s, s); } while (0)

int main(int argc, char **argv) {
    file = argv[argc - 1];
    int fd = open(file, O_RDWR | O_CREAT, 0600); static char block[1 << 20]; memset(block, 7, sizeof block);
    for (int i = 0; i < 8; i++) if (write(fd, block, sizeof block) != sizeof block) abort();
    fsync(fd); close(fd);
    if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) abort();
    RUN(sleeper); RUN(poller); RUN(feeder, piper, netter); RUN(parent); RUN(syncer); RUN(reader); RUN(faulter);
    pthread_barrier_init(&held, 0, 2); pthread_barrier_init(&free_, 0, 2);
    RUN(holder, locker);
    RUN(burner, burner, burner, burner);
    return 0;
}
