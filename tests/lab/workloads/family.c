// A program that makes others: fork, exec of itself with other arguments, vfork, pipes, waits; one address space after
// another at the same addresses. Its output depends on nothing but its argument (children).
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) static unsigned weigh(unsigned n) {
    unsigned sum = 0;
    for (unsigned at = 1; at <= n; at++) sum = n % at == 0 ? sum + at : sum ^ at;
    return sum & 0x7f;
}

static int ended(pid_t child) {
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "child") == 0) return (int)weigh((unsigned)atoi(argv[2]));
    unsigned children = argc > 1 ? (unsigned)atoi(argv[1]) : 3, sum = 0;
    for (unsigned n = 1; n <= children; n++) {
        int ends[2];
        if (pipe(ends) != 0) return 2;
        pid_t forked = fork();
        if (forked == 0) {
            unsigned weight = weigh(n * 50);
            _exit(write(ends[1], &weight, sizeof weight) == sizeof weight ? 0 : 1);
        }
        unsigned weight = 0;
        if (forked < 0 || read(ends[0], &weight, sizeof weight) != sizeof weight || ended(forked) != 0) return 3;
        close(ends[0]), close(ends[1]);
        char number[16];
        snprintf(number, sizeof number, "%u", n * 30);
        pid_t executed = vfork();
        if (executed == 0) {
            execl("/proc/self/exe", argv[0], "child", number, (char *)0);
            _exit(127);
        }
        sum += weight * 1000 + (unsigned)ended(executed);
    }
    printf("family %u %u\n", children, sum);
    return 0;
}
