#include "timed.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "watch.hpp"

namespace busbar {

Timed::Spans Timed::spans(int n, const std::vector<double>& at, bool loop, double slower) {
    constexpr int kSeldom = 64;  // seldom, so that it does not slow the loop
    const std::size_t size = loop ? 1 : static_cast<std::size_t>(n);
    if (!at.empty() && at.size() != size)
        throw std::invalid_argument("a time for each begin, or none");
    Spans spans{std::vector<double>(size), std::vector<double>(size)};
    for (std::size_t i = 0; i < size; ++i) {
        look();
        if (!loop) count();
        if (at.empty()) barrier();
        else until(at[i]);
        double begin, end;
        if (loop) {
            begin = now();
            for (int j = 1; j <= n; ++j) {
                if (j % kSeldom == 0) look();
                count();
                run();
            }
            end = now();
        } else {
            begin = now();
            run();
            end = now();
        }
        if (slower > 0) {
            const double later = end + slower * (end - begin);
            while (end < later) end = now();
        }
        spans.first[i] = begin;
        spans.second[i] = end;
    }
    return spans;
}

double core_hz() {
#if defined(__x86_64__) || defined(__aarch64__)
    constexpr int kTries = 5, kRounds = 1000, kAdditions = 10;
    double best = std::numeric_limits<double>::infinity();
    unsigned long sum = 0;
    const unsigned long one = 1;
    for (int attempt = 0; attempt < kTries; ++attempt) {
        const double begin = now();
        for (int i = 0; i < kRounds; ++i) {
            // Adds registers: some processors do additions of constants early, at no cost.
#if defined(__x86_64__)
            asm volatile(".rept 10\n\tadd %1, %0\n\t.endr" : "+r"(sum) : "r"(one) : "cc");
#else
            asm volatile(".rept 10\n\tadd %0, %0, %1\n\t.endr" : "+r"(sum) : "r"(one));
#endif
        }
        best = std::min(best, now() - begin);
    }
    return kRounds * kAdditions / best;
#else
    return 0;
#endif
}

}  // namespace busbar
