// The attribution's worst case: many threads of one binary in one loop, each in system calls of microseconds, each
// waking the next. At a switch, the thread that goes and the one that comes stand at the same addresses.
// Its output depends on nothing but its arguments (threads, turns).
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_uint turns[64];
static unsigned threads = 20, rounds = 50;
static unsigned long sums[64];

static void *work(void *argument) {
    unsigned me = (unsigned)(unsigned long)argument, next = (me + 1) % threads;
    for (unsigned round = 1; round <= rounds; round++) {
        unsigned seen;
        while ((seen = atomic_load(&turns[me])) < round) syscall(SYS_futex, &turns[me], FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
        sums[me] += (unsigned long)(getppid() > 0) * round;
        atomic_fetch_add(&turns[next], 1);
        syscall(SYS_futex, &turns[next], FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) threads = (unsigned)strtoul(argv[1], 0, 10);
    if (argc > 2) rounds = (unsigned)strtoul(argv[2], 0, 10);
    if (threads < 2 || threads > 64) return 2;
    pthread_t ids[64];
    for (unsigned id = 0; id < threads; id++) pthread_create(&ids[id], 0, work, (void *)(unsigned long)id);
    atomic_fetch_add(&turns[0], 1);
    syscall(SYS_futex, &turns[0], FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
    unsigned long sum = 0;
    for (unsigned id = 0; id < threads; id++) pthread_join(ids[id], 0), sum += sums[id];
    printf("wakers %u %u %lu\n", threads, rounds, sum);
    return 0;
}
