// Several shared libraries (libm, libz when built with it, one opened at run time), calls through the PLT and back
// (qsort), lazy binding, and clocks read through the vDSO. Its output depends on nothing but its argument (rounds).
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], 0, 10) : 20, backwards = 0;
    void *opened = dlopen("libm.so.6", RTLD_LAZY);
    double (*root)(double) = 0;
    if (opened) *(void **)&root = dlsym(opened, "cbrt");
    if (!root) return 2;
    double values[64], sum = 0;
    struct timespec last = {0, 0}, now;
    for (unsigned round = 1; round <= rounds; round++) {
        for (unsigned at = 0; at < 64; at++) values[at] = sin(round * 0.1 + at * 1.7) * 100;
        qsort(values, 64, sizeof values[0], order);
        sum += root(values[63]) + pow(values[40], 2) + strlen(argv[0]) * 0.0;
        clock_gettime(CLOCK_MONOTONIC, &now);
        backwards += now.tv_sec < last.tv_sec || (now.tv_sec == last.tv_sec && now.tv_nsec < last.tv_nsec);
        last = now;
    }
    printf("libraries %u %.6f %u\n", rounds, sum, backwards);
    return 0;
}
