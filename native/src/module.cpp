// The door for Python: maps memory, builds plans from flat arrays of numbers, fires them without
// the interpreter's lock.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/mman.h>

#include <cerrno>
#include <memory>
#include <stdexcept>

#include "plans.hpp"

namespace py = pybind11;
using namespace busbar;

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// A shared mapping of a file, where the kernel grants it in huge pages; unmapped when freed.
class Mapping {
public:
    // `fresh`: the file is new; its pages are taken here and now.
    Mapping(int fd, std::size_t nbytes, bool fresh) : nbytes_(nbytes) {
        // Huge pages need an address at their multiple: reserve more, then map inside.
        const std::size_t room = nbytes + kHugePage;
        void* reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (reserved == MAP_FAILED) fail();
        const auto base = reinterpret_cast<std::uintptr_t>(reserved);
        const auto aligned = (base + kHugePage - 1) / kHugePage * kHugePage;
        at_ = mmap(reinterpret_cast<void*>(aligned), nbytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED, fd, 0);
        const int error = errno;
        const std::uintptr_t end = (aligned + nbytes + 4095) / 4096 * 4096;
        if (aligned > base) munmap(reserved, aligned - base);
        if (base + room > end) munmap(reinterpret_cast<void*>(end), base + room - end);
        if (at_ == MAP_FAILED) {
            errno = error;
            fail();
        }
        // Wishes; where they are refused, the pages are ordinary ones.
        madvise(at_, nbytes, MADV_HUGEPAGE);
        if (fresh) take();
    }
    ~Mapping() { munmap(at_, nbytes_); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    py::buffer_info buffer() {
        return {at_, 1, py::format_descriptor<unsigned char>::format(), 1, {nbytes_}, {1}};
    }

private:
    // Touches every page from here, so that it lies near; in huge pages where possible. A page
    // touched in each tells the kernel which NUMA node to collapse it on. MADV_COLLAPSE (Linux
    // 6.1) gives huge pages also where the system does not hand them out for shared memory.
    void take() {
        auto* p = static_cast<volatile char*>(at_);
        for (std::size_t i = 0; i < nbytes_; i += kHugePage) p[i] = 0;
        if (nbytes_ >= kHugePage) madvise(at_, nbytes_, kCollapse);
        for (std::size_t i = 0; i < nbytes_; i += 4096) p[i] = 0;
    }
    static constexpr int kCollapse = 25;  // newer than many a system's headers

    [[noreturn]] static void fail() {
        PyErr_SetFromErrno(PyExc_OSError);
        throw py::error_already_set();
    }
    void* at_;
    std::size_t nbytes_;
};

// Reads numbers one after the other and refuses to go past the end.
class Numbers {
public:
    explicit Numbers(const py::array_t<std::int64_t>& a) : at_(a.data()), end_(at_ + a.size()) {}
    std::int64_t next() {
        if (at_ == end_) throw std::invalid_argument("the description of a plan ends too early");
        return *at_++;
    }
    template <class T, class F>
    std::vector<T> list(F one) {
        std::vector<T> found;
        for (std::int64_t n = next(); n > 0; --n) found.push_back(one());
        return found;
    }
    std::byte* address() { return reinterpret_cast<std::byte*>(next()); }
    std::size_t size() { return static_cast<std::size_t>(next()); }
    int small() { return static_cast<int>(next()); }

private:
    const std::int64_t *at_, *end_;
};

Wait read_wait(Numbers& n) {
    const int peer = n.small();
    const std::int64_t task = n.next();
    return {peer, task, n.next()};
}

Place read_place(Numbers& n) {
    std::byte* at = n.address();
    const int rank = n.small();
    const std::int64_t flags = n.next();
    return {at, (flags & 1) != 0, (flags & 2) != 0, rank};
}

Task read_task(Numbers& n) {
    Task t{};
    t.reduce = n.next() != 0;
    t.publish = n.next() != 0;
    t.count = n.size();
    t.targets = n.list<Place>([&] { return read_place(n); });
    t.sources = n.list<Place>([&] { return read_place(n); });
    t.waits = n.list<Wait>([&] { return read_wait(n); });
    t.stage = n.next();
    return t;
}

Copy read_copy(Numbers& n) {
    std::byte *target = n.address(), *source = n.address();
    const std::size_t count = n.size();
    return {target, source, count, n.next() != 0};
}

Letter read_letter(Numbers& n) {
    const int peer = n.small();
    std::byte* mailbox = n.address();
    const std::size_t stride = n.size();
    std::byte *span = n.address(), *other = n.address();
    return {peer, mailbox, stride, span, other, n.size()};
}

Exchange read_exchange(Numbers& n) {
    Exchange e;
    e.before = n.list<Copy>([&] { return read_copy(n); });
    e.sends = n.list<Letter>([&] { return read_letter(n); });
    e.receives = n.list<Letter>([&] { return read_letter(n); });
    e.after = n.list<Copy>([&] { return read_copy(n); });
    return e;
}

Line* lines_at(std::uintptr_t address) { return reinterpret_cast<Line*>(address); }

std::unique_ptr<Plan> direct(
    Watch& watch, std::uintptr_t lines, int type, int op, const py::array_t<std::int64_t>& numbers,
    std::vector<std::int64_t> ntasks, std::size_t window, std::int64_t nwindows, std::int64_t depth,
    bool gates, bool enter_all, bool exit_all) {
    Numbers n(numbers);
    auto tasks = n.list<Task>([&] { return read_task(n); });
    auto exits = n.list<Wait>([&] { return read_wait(n); });
    return std::make_unique<Direct>(
        watch, lines_at(lines), Type(type), Op(op), std::move(tasks), std::move(exits),
        std::move(ntasks), window, nwindows, depth, gates, enter_all, exit_all);
}

std::unique_ptr<Plan> worksharing(
    Watch& watch, std::uintptr_t lines, int type, int op,
    const py::array_t<std::int64_t>& numbers) {
    Numbers n(numbers);
    auto parts = n.list<Part>([&] { return n.list<Task>([&] { return read_task(n); }); });
    if (static_cast<int>(parts.size()) != watch.size())
        throw std::invalid_argument("work sharing needs as many parts as ranks");
    return std::make_unique<WorkSharing>(watch, lines_at(lines), Type(type), Op(op), std::move(parts));
}

std::unique_ptr<Plan> eager(
    Watch& watch, std::uintptr_t lines, int type, int op,
    const py::array_t<std::int64_t>& numbers) {
    Numbers n(numbers);
    auto steps = n.list<Exchange>([&] { return read_exchange(n); });
    return std::make_unique<Eager>(watch, lines_at(lines), Type(type), Op(op), std::move(steps));
}

std::unique_ptr<Plan> sweep(
    Watch& watch, std::uintptr_t lines, int kind, std::uintptr_t source, std::uintptr_t target,
    std::size_t nbytes, bool stream) {
    return std::make_unique<Sweep>(
        watch, lines_at(lines), Sweep::Kind(kind), reinterpret_cast<std::byte*>(source),
        reinterpret_cast<std::byte*>(target), nbytes, stream);
}

// Asked while waiting: lets Python's signal handlers run, and says whether one of them raised.
bool interrupted() {
    const py::gil_scoped_acquire lock;
    return PyErr_CheckSignals() != 0;
}

void reduce(
    int type, int op, const std::vector<std::uintptr_t>& targets,
    const std::vector<std::uintptr_t>& sources, std::size_t count, bool stream,
    const std::string& isa) {
    const Kernels* found = isa.empty() ? &kernels() : kernels(isa.c_str());
    if (!found) throw std::invalid_argument("no kernels named " + isa + " on this CPU");
    std::vector<Target> to;
    std::vector<const void*> from;
    for (const auto t : targets) to.push_back({reinterpret_cast<void*>(t), stream});
    for (const auto s : sources) from.push_back(reinterpret_cast<const void*>(s));
    const Pass pass{to.data(), static_cast<int>(to.size()), from.data(),
                    static_cast<int>(from.size()), count};
    if (sources.size() > 1) found->reduce[type][op](pass);
    else found->copy({pass.targets, pass.ntargets, pass.sources, 1, count * size_of(Type(type))});
}

}  // namespace

PYBIND11_MODULE(_core, m) {
    m.doc() = "Kernels and plans over shared memory; see native/src.";

    static PyObject* failure = PyErr_NewException("native._core.PeerFailure", nullptr, nullptr);
    m.attr("PeerFailure") = py::handle(failure);
    py::register_exception_translator([](std::exception_ptr p) {
        try {
            if (p) std::rethrow_exception(p);
        } catch (const Failure& f) {
            if (f.reason == Reason::interrupted && PyErr_Occurred()) return;
            const py::tuple what = py::make_tuple(f.rank, static_cast<int>(f.reason));
            PyErr_SetObject(failure, what.ptr());
        }
    });

    py::class_<Mapping>(m, "Mapping", py::buffer_protocol())
        .def(py::init<int, std::size_t, bool>(), py::arg("fd"), py::arg("nbytes"), py::arg("fresh"))
        .def_buffer(&Mapping::buffer);

    py::class_<Watch>(m, "Watch")
        .def(
            py::init([](int rank, std::uintptr_t life, const std::vector<int>& pids, bool crowded,
                        double deadline) {
                return std::make_unique<Watch>(
                    rank, lines_at(life), pids, crowded, deadline, interrupted);
            }),
            py::arg("rank"), py::arg("life"), py::arg("pids"), py::arg("crowded"),
            py::arg("deadline"));

    const auto released = py::call_guard<py::gil_scoped_release>();
    py::class_<Plan>(m, "Plan")
        .def("fire", &Plan::fire, released)
        .def("spans", &Plan::spans, py::arg("n"), py::arg("starts"), released)
        .def("each", &Plan::each, py::arg("n"), released)
        .def("loop", &Plan::loop, py::arg("n"), released)
        .def("barrier", &Plan::barrier, released);

    m.def("direct", &direct, py::keep_alive<0, 1>());
    m.def("worksharing", &worksharing, py::keep_alive<0, 1>());
    m.def("eager", &eager, py::keep_alive<0, 1>());
    m.def("sweep", &sweep, py::keep_alive<0, 1>());
    m.def("reduce", &reduce);
    m.def("isa", [] { return kernels().name; });
    m.def("isas", [] {
        std::vector<std::string> names;
        for (const char* name : {"avx512", "avx2", "plain"})
            if (kernels(name)) names.emplace_back(name);
        return names;
    });
    m.attr("INTERFACE") = 2;  // what native/__init__.py expects: raised whenever Python needs more
    m.attr("SWEEPS") = py::make_tuple("read", "write", "copy", "update");  // as Sweep::Kind
    m.attr("LINE") = sizeof(Line);
    m.def("plan_lines", &plan_lines);
    m.attr("WORD") = sizeof(Word);
}
