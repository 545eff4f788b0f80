/* A service at ease, and beside it what the first argument names; for 2 s. Prints TID NUMBER of the planted thread, where
 * the number is what it counted itself (the longest fsync in ns; for others 0). The service: four workers with a common
 * lock, held briefly. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *file;
static long long end;

static long long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }
static void nap(long us) { struct timespec t = {us / 1000000, us % 1000000 * 1000}; nanosleep(&t, 0); }
/* Computes until the thread has had the CPU for so long. */
static long long cpu(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }
static void burn(long us) { for (long long until = cpu() + us * 1000LL; cpu() < until;) ; }
static void tell(long long n) { printf("%ld %lld\n", syscall(SYS_gettid), n); fflush(stdout); }

static void *worker(void *arg) {
    prctl(PR_SET_NAME, "worker");
    for (unsigned i = (unsigned)(long)arg; now() < end; i++) {
        burn(100 + i * 37 % 200);
        pthread_mutex_lock(&lock); burn(10); pthread_mutex_unlock(&lock);
        nap(6000 + i * 131 % 4000);
    }
    return 0;
}
static void *locked(void *arg) {
    prctl(PR_SET_NAME, "compact"); tell(0);
    while (now() < end) { pthread_mutex_lock(&lock); burn(arg ? 30000 : 10); pthread_mutex_unlock(&lock); nap(200000); }
    return 0;
}
static void *hungry(void *arg) { (void)arg; prctl(PR_SET_NAME, "render"); tell(0); while (now() < end) { burn(3000); nap(4000); } return 0; }
static void *synced(void *arg) {
    prctl(PR_SET_NAME, "store");
    static char block[1 << 20];
    long long longest = 0;
    memset(block, 'x', sizeof block);
    int fd = open(file, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (fd < 0) abort();
    /* Longer and longer ones, until one took 60 ms; without `arg` short ones. */
    for (int n = 8; now() < end && longest < 60000000; n = n < 256 ? n * 2 : n) {
        for (int i = 0; i < (arg ? n : 0); i++) if (pwrite(fd, block, sizeof block, (off_t)i << 20) < 0) abort();
        if (!arg && pwrite(fd, block, 1, 0) < 0) abort();
        long long from = now(); fsync(fd); from = now() - from;
        if (from > longest) longest = from;
        nap(50000);
    }
    tell(longest);
    return 0;
}
static void *burst(void *arg) {
    prctl(PR_SET_NAME, "handler");
    if ((long)arg == 1) tell(0);
    /* All at the same time, each 400 ms. */
    for (long long at = now() / 400000000 * 400000000; (at += 400000000) < end;) {
        struct timespec t = {at / 1000000000, at % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0);
        burn(10000);
    }
    return 0;
}
static void *nomad(void *arg) {
    prctl(PR_SET_NAME, "nomad"); tell(0);
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    for (int i = 0; now() < end; i = (i + 1) % CPU_SETSIZE) {
        if (!CPU_ISSET(i, &all)) continue;
        if (arg) { CPU_ZERO(&one); CPU_SET(i, &one); sched_setaffinity(0, sizeof one, &one); }
        burn(300); nap(300);
    }
    return 0;
}

int main(int argc, char **argv) {
    (void)argc;
    const char *story = argv[1];
    file = argv[2];
    /* Before whatever else this machine does; a quota, and neighbours, are of the fair scheduler. */
    struct sched_param first = {1};
    if (strcmp(story, "hungry")) sched_setscheduler(0, SCHED_RR, &first);
    end = now() + 2000000000LL;
    void *(*plant)(void *) = 0;
    long threads = 1, arg = 1;
    if (!strcmp(story, "lock")) plant = locked;
    if (!strcmp(story, "lock-control")) plant = locked, arg = 0;
    if (!strcmp(story, "hungry")) plant = hungry;
    if (!strcmp(story, "fsync")) plant = synced;
    if (!strcmp(story, "fsync-control")) plant = synced, arg = 0;
    if (!strcmp(story, "bursts")) plant = burst, threads = 5 * sysconf(_SC_NPROCESSORS_ONLN);
    if (!strcmp(story, "bursts-control")) plant = burst;
    if (!strcmp(story, "nomad")) plant = nomad;
    if (!strcmp(story, "nomad-control")) plant = nomad, arg = 0;
    pthread_t t;
    for (long i = 0; i < 4; i++) pthread_create(&t, 0, worker, (void *)(i * 1000));
    for (long i = 0; plant && i < threads; i++) pthread_create(&t, 0, plant, (void *)(arg ? i + 1 : 0));
    nap(2100000);
    return 0;
}
