// One thread: direct, indirect and recursive calls, loops, a jump table, string instructions, system calls.
// Its output depends on nothing but its argument (the number of rounds).
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t (*step)(uint64_t);

__attribute__((noinline)) static uint64_t odd(uint64_t x) { return x * 3 + 1; }
__attribute__((noinline)) static uint64_t even(uint64_t x) { return x / 2; }
__attribute__((noinline)) static uint64_t fibonacci(unsigned n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

__attribute__((noinline)) static uint64_t choose(unsigned n, uint64_t x) {
    switch (n % 7) {
    case 0: return x + 11;
    case 1: return x ^ 0x5555;
    case 2: return x << 3;
    case 3: return x >> 2;
    case 4: return ~x;
    case 5: return x - 7;
    default: return x * 31;
    }
}

__attribute__((noinline)) static int deep(int n) { return n == 0 ? 0 : 1 + deep(n - 1) * 1; }

int main(int argc, char **argv) {
    unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], 0, 10) : 200;
    step steps[2] = {even, odd};
    char text[256], copy[256];
    uint64_t sum = 0;
    for (unsigned round = 1; round <= rounds; round++) {
        uint64_t x = round;
        while (x != 1) x = steps[x & 1](x), sum += x;
        sum += fibonacci(8 + round % 4);
        sum = choose(round, sum);
        memset(text, 'a' + round % 26, sizeof text);
        memcpy(copy, text, sizeof copy);
        sum += (unsigned char)copy[round % 256];
        if (round % 16 == 0) sum += (uint64_t)(write(-1, "", 1) == -1);
        if (round % 32 == 0) sum += (uint64_t)deep(100);
    }
    printf("single %u %016llx\n", rounds, (unsigned long long)sum);
    return 0;
}
