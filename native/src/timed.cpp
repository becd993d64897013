#include "timed.hpp"

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
        run();
    }
    return now() - start;
}

}  // namespace busbar
