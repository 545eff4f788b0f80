// Threads of one program, more than there are CPUs: each counts for itself, they meet at a lock and a barrier.
// Its output depends on nothing but its arguments (threads, rounds).
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t meeting;
static uint64_t total;
static unsigned rounds = 50;

__attribute__((noinline)) static uint64_t collatz(uint64_t x) {
    uint64_t steps = 0;
    for (; x != 1; steps++) x = x & 1 ? x * 3 + 1 : x / 2;
    return steps;
}

__attribute__((noinline)) static uint64_t ackermann(uint64_t m, uint64_t n) {
    if (m == 0) return n + 1;
    return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

static void *work(void *argument) {
    uint64_t id = (uintptr_t)argument;
    for (unsigned round = 1; round <= rounds; round++) {
        uint64_t own = collatz(id * 1000 + round) + ackermann(2, id % 5);
        pthread_mutex_lock(&lock);
        total += own;
        pthread_mutex_unlock(&lock);
        if (round % 10 == 0) pthread_barrier_wait(&meeting);
    }
    return 0;
}

int main(int argc, char **argv) {
    unsigned threads = argc > 1 ? (unsigned)strtoul(argv[1], 0, 10) : 4;
    if (argc > 2) rounds = (unsigned)strtoul(argv[2], 0, 10);
    if (threads < 1 || threads > 64) return 2;
    pthread_t ids[64];
    pthread_barrier_init(&meeting, 0, threads);
    for (uintptr_t id = 0; id < threads; id++) pthread_create(&ids[id], 0, work, (void *)(id + 1));
    for (unsigned id = 0; id < threads; id++) pthread_join(ids[id], 0);
    printf("threads %u %u %llu\n", threads, rounds, (unsigned long long)total);
    return 0;
}
