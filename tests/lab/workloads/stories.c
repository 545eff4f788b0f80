// A service of eight threads that call Put, Get, Flush and Scan in random order, with a planted reason why Get is slow:
//   flush    it directly follows a Flush on the same thread; Flush is mostly called while the log is written
//   compact  another thread compacts; mostly the log is written then too
//   move     the thread has just come to another CPU; it mostly does so after a Scan
//   null     none
// What is beside the reason correlates with it and causes nothing. Arguments: story, seed, calls of each thread.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
enum { WORKERS = 8 };

static atomic_int compacting, logging, working = 1, scanned[WORKERS];
static _Atomic pid_t tids[WORKERS];
static char story;
static unsigned seed = 1, calls = 200;
static int cpus = 2;
static volatile unsigned long sink;

// xorshift64
static inline double chance(unsigned long *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return (double)(*state >> 11) / (double)(1ul << 53);
}

static inline void turn(unsigned rounds) {
    for (unsigned i = 0; i < rounds; i++) sink += i;
}

NOINLINE void Refill(unsigned rounds) { turn(rounds); }
NOINLINE void Get(unsigned rounds, int slow) {
    turn(rounds);
    if (slow) Refill(rounds * 400);
}
NOINLINE void Put(unsigned rounds) { turn(rounds); }
NOINLINE void Flush(unsigned rounds) { turn(rounds * 2); }
NOINLINE void Scan(unsigned rounds) { turn(rounds * 3); }
NOINLINE void Pause(unsigned us) { usleep(us); }
// Moves a thread to a CPU from outside of it; one that has ended is not there any more.
NOINLINE void Move(pid_t thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(thread, sizeof set, &set);
}

static void *work(void *argument) {
    unsigned long me = (unsigned long)argument, state = (seed * 64 + me + 1) * 0x9e3779b97f4a7c15ul;
    tids[me] = gettid();
    int cpu = sched_getcpu();
    char before = 0;
    for (unsigned i = 0; i < calls; i++) {
        Pause(300 + (unsigned)(chance(&state) * 600));
        double flush = story == 'f' ? (logging ? 0.4 : 0.04) : 0.25;
        char op = chance(&state) < flush ? 'F' : "PGS"[(int)(chance(&state) * 3)];
        int here = sched_getcpu(), moves = here != cpu;
        cpu = here;
        unsigned rounds = 10 + (unsigned)(chance(&state) * 10);
        int cause = story == 'f' ? before == 'F' : story == 'c' ? compacting : story == 'm' ? moves : 0;
        // A reason works mostly, and there are slow calls without one.
        int slow = (cause && chance(&state) < 0.9) || chance(&state) < 0.003;
        switch (op) {
        case 'G': Get(rounds, slow); break;
        case 'P': Put(rounds); break;
        case 'F': Flush(rounds); break;
        default: Scan(rounds);
        }
        scanned[me] = (before = op) == 'S';
    }
    return 0;
}

NOINLINE void Compact(unsigned us) {
    compacting = 1;
    usleep(us);
    compacting = 0;
}
NOINLINE void WriteLog(unsigned us) {
    logging = 1;
    usleep(us);
    logging = 0;
}

// Moves threads about, in the story of it mostly those that have just scanned.
static void *balance(void *argument) {
    (void)argument;
    unsigned long state = (seed * 64 + 50) * 0x9e3779b97f4a7c15ul;
    int at[WORKERS];
    for (int id = 0; id < WORKERS; id++) at[id] = id % cpus;
    while (working) {
        usleep(1500);
        int id = (int)(chance(&state) * WORKERS);
        if (story == 'm' && !scanned[id] && chance(&state) < 0.8) continue;
        if (tids[id]) Move(tids[id], at[id] = (at[id] + 1) % cpus);
    }
    return 0;
}

static void *background(void *argument) {
    int log = argument != 0;
    unsigned long state = (seed * 64 + 40 + (unsigned)log) * 0x9e3779b97f4a7c15ul;
    while (working) {
        unsigned idle = 6000 + (unsigned)(chance(&state) * 12000), busy = 2000 + (unsigned)(chance(&state) * 2000);
        if (log && story == 'c') {
            // Mostly when the other compacts, and now and then for itself.
            usleep(200);
            if (compacting ? chance(&state) < 0.5 : chance(&state) < 0.02) WriteLog(busy / 2);
            continue;
        }
        usleep(idle);
        if (log) WriteLog(busy);
        else Compact(busy);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) story = argv[1][0];
    if (argc > 2) seed = (unsigned)strtoul(argv[2], 0, 10);
    if (argc > 3) calls = (unsigned)strtoul(argv[3], 0, 10);
    cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t ids[WORKERS + 3];
    for (unsigned long id = 0; id < WORKERS; id++) pthread_create(&ids[id], 0, work, (void *)id);
    pthread_create(&ids[WORKERS], 0, background, 0);
    pthread_create(&ids[WORKERS + 1], 0, background, (void *)1);
    pthread_create(&ids[WORKERS + 2], 0, balance, 0);
    for (int id = 0; id < WORKERS; id++) pthread_join(ids[id], 0);
    working = 0;
    for (int id = WORKERS; id < WORKERS + 3; id++) pthread_join(ids[id], 0);
    printf("stories %c %u %u\n", story, seed, calls);
    return 0;
}
