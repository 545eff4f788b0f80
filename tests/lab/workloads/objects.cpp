// Exceptions through many frames, virtual calls, signals that interrupt and return, longjmp, and signals that longjmp.
// Its output depends on nothing but its argument (rounds).
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Shape {
    virtual ~Shape() = default;
    virtual unsigned long area(unsigned long x) const = 0;
};
struct Square final : Shape {
    unsigned long area(unsigned long x) const override { return x * x; }
};
struct Strip final : Shape {
    unsigned long area(unsigned long x) const override { return x * 3; }
};
struct Hole final : Shape {
    unsigned long area(unsigned long x) const override {
        if (x % 3 == 0) throw std::out_of_range("hole " + std::to_string(x));
        return x / 2;
    }
};

volatile sig_atomic_t signals = 0;
sigjmp_buf away;

void count(int) { signals = signals + 1; }
void leave(int) { siglongjmp(away, 1); }

struct Guard {
    unsigned long &sum;
    ~Guard() { sum += 1; }
};

__attribute__((noinline)) unsigned long descend(const Shape &shape, unsigned long x, unsigned depth, unsigned long &sum) {
    Guard guard{sum};
    return depth == 0 ? shape.area(x) : descend(shape, x, depth - 1, sum) + depth;
}

std::jmp_buf back;
__attribute__((noinline)) void jump(unsigned depth) {
    if (depth > 0) jump(depth - 1);
    std::longjmp(back, 1);
}

}  // namespace

int main(int argc, char **argv) {
    unsigned rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 30;
    std::vector<std::unique_ptr<Shape>> shapes;
    shapes.push_back(std::make_unique<Square>());
    shapes.push_back(std::make_unique<Strip>());
    shapes.push_back(std::make_unique<Hole>());
    std::signal(SIGUSR1, count);
    struct sigaction action = {};
    action.sa_handler = leave;
    sigaction(SIGUSR2, &action, nullptr);
    volatile unsigned long sum = 0;
    volatile unsigned long jumps = 0;
    for (volatile unsigned round = 1; round <= rounds; round = round + 1) {
        for (const auto &shape : shapes) {
            unsigned long guards = 0;
            try {
                sum = sum + descend(*shape, round, round % 8, guards);
            } catch (const std::out_of_range &error) {
                sum = sum + std::string(error.what()).size();
            }
            sum = sum + guards;
        }
        if (round % 4 == 0) std::raise(SIGUSR1);
        if (setjmp(back) == 0) jump(round % 5);
        else jumps = jumps + 1;
        if (round % 6 == 0) {
            if (sigsetjmp(away, 1) == 0) std::raise(SIGUSR2);
            else jumps = jumps + 10;
        }
    }
    std::printf("objects %u %lu %d %lu\n", rounds, sum, static_cast<int>(signals), jumps);
    return 0;
}
