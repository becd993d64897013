// The Python module: maps memory, builds plans from tables (tables.hpp), and runs them without the
// interpreter's lock.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <stdexcept>

#include "tables.hpp"

using namespace busbar;

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// A shared mapping of a file, in huge pages if the kernel grants them; unmapped when freed.
class Mapping {
public:
    // `fresh`: the file is new; its pages are allocated here.
    Mapping(int fd, std::size_t nbytes, bool fresh) : nbytes_(nbytes) {
        // Huge pages need an aligned address: reserve more, then map inside.
        const std::size_t room = nbytes + kHugePage;
        void* reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (reserved == MAP_FAILED) fail();
        const auto base = reinterpret_cast<std::uintptr_t>(reserved);
        const auto aligned = (base + kHugePage - 1) / kHugePage * kHugePage;
        at_ = mmap(reinterpret_cast<void*>(aligned), nbytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED, fd, 0);
        const int error = errno;
        if (at_ == MAP_FAILED) {
            munmap(reserved, room);
            errno = error;
            fail();
        }
        const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
        const std::uintptr_t end = (aligned + nbytes + page - 1) / page * page;
        if (aligned > base) munmap(reserved, aligned - base);
        if (base + room > end) munmap(reinterpret_cast<void*>(end), base + room - end);
        // Only a request: if it fails, the pages are ordinary ones.
        madvise(at_, nbytes, MADV_HUGEPAGE);
        if (fresh) {
            const py::gil_scoped_release released;  // for seconds, where memory is large
            take();
        }
    }
    ~Mapping() { munmap(at_, nbytes_); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    py::buffer_info buffer() {
        return {at_, 1, py::format_descriptor<unsigned char>::format(), 1, {nbytes_}, {1}};
    }

private:
    // Touches every page, so that it is allocated on this NUMA node; in huge pages if possible: one
    // touched page in each tells the kernel the node for the whole. MADV_COLLAPSE (Linux 6.1) makes
    // huge pages even if the system does not allocate them for shared memory.
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

std::unique_ptr<Plan> direct(
    Watch& watch, std::uintptr_t lines, int type, int op, const py::object& rounds,
    const py::object& tasks, const py::object& places, const py::object& waits,
    std::vector<std::int64_t> ntasks) {
    const Rounds how = Rows<Rounds>(rounds).next();
    Rows<TaskRow> rows(tasks);
    Rows<PlaceRow> at(places);
    Rows<Wait> all(waits);
    auto mine = rows.list<Task>(
        rows.left(), [&](const TaskRow& r) { return task_of(r, at, all); });
    // Waits that belong to no task are done at the end.
    auto exits = all.list<Wait>(all.left());
    return std::make_unique<Direct>(
        watch, lines_at(lines), Type(type), Op(op), std::move(mine), std::move(exits),
        std::move(ntasks), how);
}

std::unique_ptr<Plan> worksharing(
    Watch& watch, std::uintptr_t lines, int type, int op, const py::object& tasks,
    const py::object& places, const std::vector<std::int64_t>& ntasks) {
    if (static_cast<int>(ntasks.size()) != watch.size())
        throw std::invalid_argument("work sharing needs as many parts as ranks");
    Rows<TaskRow> rows(tasks);
    Rows<PlaceRow> at(places);
    Rows<Wait> none;
    std::vector<Part> parts;
    for (const std::int64_t n : ntasks)
        parts.push_back(
            rows.list<Task>(n, [&](const TaskRow& r) { return task_of(r, at, none); }));
    return std::make_unique<WorkSharing>(watch, lines_at(lines), Type(type), Op(op), std::move(parts));
}

std::unique_ptr<Plan> eager(
    Watch& watch, std::uintptr_t lines, int type, int op, const py::object& steps,
    const py::object& copies, const py::object& messages) {
    Rows<CopyRow> local(copies);
    Rows<MessageRow> mail(messages);
    Rows<ExchangeRow> rows(steps);
    auto found = rows.list<Exchange>(rows.left(), [&](const ExchangeRow& r) {
        return Exchange{local.list<Copy>(r.before, copy_of),
                        mail.list<EagerMessage>(r.sends, message_of),
                        mail.list<EagerMessage>(r.receives, message_of),
                        local.list<Copy>(r.after, copy_of)};
    });
    return std::make_unique<Eager>(watch, lines_at(lines), Type(type), Op(op), std::move(found));
}

// Called during waits: runs Python's pending signal handlers; returns whether one of them raised.
bool interrupted() {
    const py::gil_scoped_acquire lock;
    return PyErr_CheckSignals() != 0;
}

std::unique_ptr<Calls> calls_of(
    const py::object& table, const std::vector<int>& parts, std::uintptr_t barrier,
    std::uint64_t comm, bool wide, const Watch* watch) {
    Rows<CallRow> rows(table);
    auto list = rows.list<MpiCall>(rows.left(), [&](const CallRow& r) {
        return MpiCall{Shape(r.shape), r.to, address(r.function), address(r.source),
                       address(r.target), r.sends, r.receives, r.type, r.op, address(r.other),
                       r.from};
    });
    return calls(std::move(list), parts, address(barrier), comm, wide, watch, interrupted);
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
    found->carry_out(
        Type(type), Op(op),
        {to.data(), static_cast<int>(to.size()), from.data(), static_cast<int>(from.size()), count});
}

// A Python exception for a struct that C++ throws; `raise` sets it.
template <class Thrown, void (*raise)(PyObject*, const Thrown&)>
void offer_exception(py::module_& m, const char* name) {
    static PyObject* kind =
        PyErr_NewException((std::string("native._core.") + name).c_str(), nullptr, nullptr);
    m.attr(name) = py::handle(kind);
    py::register_exception_translator([](std::exception_ptr p) {
        try {
            if (p) std::rethrow_exception(p);
        } catch (const Thrown& thrown) {
            raise(kind, thrown);
        }
    });
}

void raise_failure(PyObject* kind, const Failure& f) {
    if (f.reason == Reason::interrupted && PyErr_Occurred()) return;
    PyErr_SetObject(kind, py::make_tuple(f.rank, static_cast<int>(f.reason)).ptr());
}

void raise_call(PyObject* kind, const CallFailed& f) { PyErr_SetObject(kind, py::make_tuple(f.code, f.peer).ptr()); }

// The result of `Timed::spans` as two arrays.
py::tuple spans(
    Timed& timed, int n, const std::vector<double>& at, bool loop, double slower) {
    Timed::Spans result;
    {
        const py::gil_scoped_release released;
        result = timed.spans(n, at, loop, slower);
    }
    const auto array = [](const std::vector<double>& times) {
        return py::array_t<double>(static_cast<py::ssize_t>(times.size()), times.data());
    };
    return py::make_tuple(array(result.first), array(result.second));
}

// The result of `Plan::traced` as tuples: load, peer, bytes, step, begin, end.
py::list traced(Plan& plan) {
    std::vector<Access> found;
    {
        const py::gil_scoped_release released;
        found = plan.traced();
    }
    py::list told;
    for (const Access& a : found)
        told.append(py::make_tuple(a.load, a.peer, a.nbytes, a.step, a.begin, a.end));
    return told;
}

}  // namespace

PYBIND11_MODULE(_core, m) {
    m.doc() = "Kernels and plans over shared memory; see native/src.";

    offer_exception<Failure, raise_failure>(m, "PeerFailure");
    offer_exception<CallFailed, raise_call>(m, "CallFailed");

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
            py::arg("deadline"))
        .def("leave", &Watch::leave);

    offer_dtypes(m);

    const auto released = py::call_guard<py::gil_scoped_release>();
    py::class_<Timed>(m, "Timed")
        .def("run", &Timed::run, released)
        .def("spans", &spans, py::arg("n"), py::arg("at") = std::vector<double>(),
             py::arg("loop") = false, py::arg("slower") = 0.0)
        .def("begun", &Timed::begun)
        .def("waiting", &Timed::waiting)
        .def("barrier", &Timed::barrier, released);
    py::class_<Plan, Timed>(m, "Plan").def("traced", &traced);
    py::class_<Calls, Timed>(m, "Calls")
        .def("part", &Calls::part, released)
        .def("test", &Calls::test, released)
        .def("end", &Calls::end);

    m.def("direct", &direct, py::keep_alive<0, 1>());
    m.def("worksharing", &worksharing, py::keep_alive<0, 1>());
    m.def("eager", &eager, py::keep_alive<0, 1>());
    m.def("calls", &calls_of, py::keep_alive<0, 6>());
    m.attr("SHAPES") = py::make_tuple(  // as Shape
        "reduction", "rooted_reduction", "broadcast", "exchange", "rooted_exchange", "variable",
        "sendrecv", "barrier", "start", "wait", "one_sided", "flush", "await", "progress", "publish",
        "copy", "reduce");
    m.def("reduce", &reduce);
    m.def("core_hz", &core_hz);
    m.def("isas", [] {
        std::vector<std::string> names;
        for (const char* name : {"avx512", "avx2", "plain"})
            if (kernels(name)) names.emplace_back(name);
        return names;
    });
    m.attr("INTERFACE") = 14;  // checked by native/__init__.py: raise it when Python needs more
    m.attr("LINE") = sizeof(Line);
    m.def("plan_lines", &plan_lines);
}
