#include "timed.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "watch.hpp"

namespace busbar {

Timed::Spans Timed::spans(int n, const std::vector<double>& starts, double slower) {
    const auto size = static_cast<std::size_t>(n);
    if (!starts.empty() && starts.size() != size)
        throw std::invalid_argument("a start for each iteration, or none");
    Spans found{std::vector<double>(size), std::vector<double>(size)};
    for (std::size_t i = 0; i < size; ++i) {
        look();
        count();
        if (starts.empty()) barrier();
        else until(starts[i]);
        const double begin = now();
        run();
        double end = now();
        if (slower > 0) {
            const double later = end + slower * (end - begin);
            while (end < later) end = now();
        }
        found.first[i] = begin;
        found.second[i] = end;
    }
    return found;
}

std::vector<double> Timed::each(int n) {
    auto [begins, ends] = spans(n, {}, 0);
    for (std::size_t i = 0; i < ends.size(); ++i) ends[i] -= begins[i];
    return ends;
}

double Timed::loop(int n) {
    constexpr int kSeldom = 64;  // so that looking costs the loop nothing
    barrier();
    const double start = now();
    for (int i = 0; i < n; ++i) {
        if (i % kSeldom == 0) look();
        count();
        run();
    }
    return now() - start;
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
            // Of registers: some processors do additions of constants ahead, for nothing.
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
