// A thread on each of the first CPUs, each busy for its share of every 10 ms. Arguments: seconds, then a share in percent for
// CPU 0, CPU 1, …
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, PERIOD_US = 10000 };
static int shares[MOST];
static double seconds = 1;
static volatile unsigned long sink;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void *work(void *argument) {
    unsigned long cpu = (unsigned long)argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
    double end = now() + seconds, busy = PERIOD_US / 1e6 * shares[cpu] / 100;
    while (now() < end) {
        double until = now() + busy;
        while (now() < until)
            for (unsigned i = 0; i < 50; i++) sink += i;
        if (shares[cpu] < 100) usleep((unsigned)(PERIOD_US * (100 - shares[cpu]) / 100));
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) seconds = strtod(argv[1], 0);
    int cpus = argc > 2 ? argc - 2 : 0;
    if (cpus < 1 || cpus > MOST) return 2;
    pthread_t ids[MOST];
    for (int cpu = 0; cpu < cpus; cpu++) shares[cpu] = atoi(argv[cpu + 2]);
    for (long cpu = 0; cpu < cpus; cpu++) pthread_create(&ids[cpu], 0, work, (void *)cpu);
    for (int cpu = 0; cpu < cpus; cpu++) pthread_join(ids[cpu], 0);
    return 0;
}
