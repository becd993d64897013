// `Timed::spans` on a stand-in clock: every reading moves it on by a tick, an iteration by 99 and a
// barrier by 10. Built with native/src/timed.cpp by tests/collectives/test_spans.py.
#include <algorithm>
#include <string>
#include <vector>

#include "timed.hpp"
#include "watch.hpp"

namespace {
double ticks;
std::string events;
}  // namespace

double busbar::now() { return ++ticks; }

namespace {

class Ticking final : public busbar::Timed {
public:
    void run() override { ticks += 99, events += 'r'; }
    void barrier() override { ticks += 10, events += 'b'; }

protected:
    void until(double time) override {
        while (busbar::now() < time) {
        }
    }
};

}  // namespace

// Fills `begins` and `ends`; returns barriers and iterations in their order.
extern "C" const char* spans(
    int n, const double* at, int nat, int loop, double slower, double* begins, double* ends) {
    ticks = 0;
    events.clear();
    const auto found = Ticking().spans(n, std::vector<double>(at, at + nat), loop != 0, slower);
    std::copy(found.first.begin(), found.first.end(), begins);
    std::copy(found.second.begin(), found.second.end(), ends);
    return events.c_str();
}
