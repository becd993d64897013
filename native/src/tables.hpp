// Tables that Python passes in. A table is a NumPy structured array; the type of its rows is declared
// here, and Python gets it as a dtype.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <functional>
#include <stdexcept>

#include "calls.hpp"
#include "plans.hpp"

namespace busbar {

namespace py = pybind11;

// Rows of tables. Addresses are integers. If a row has several places, waits or messages, it has only
// their count: they are the next rows of their own table.
struct TaskRow {
    bool publish;
    std::int64_t count, stage;
    std::int32_t targets, sources, waits;
};
struct PlaceRow {
    std::uint64_t at;
    std::int32_t rank;
    bool fixed, stream;
};
struct ExchangeRow {
    std::int32_t before, sends, receives, after;
};
struct CopyRow {
    std::uint64_t target, source;
    std::int64_t count;
    bool reduce;
};
struct MessageRow {
    std::int32_t peer;
    std::uint64_t mailbox;
    std::int64_t stride;
    std::uint64_t span, other;
    std::int64_t count;
};
struct CallRow {
    std::int32_t shape;
    std::uint64_t function, source, other, target;
    std::int64_t sends, receives;
    std::int32_t to, from;
    std::uint64_t type, op;
};

// Reads the rows of a table one after the other; throws at the end of the table.
template <class Row>
class Rows {
public:
    Rows() = default;
    // Nothing is converted: anything but an array of such rows is an error.
    explicit Rows(const py::object& table) {
        using Table = py::array_t<Row, py::array::c_style>;
        if (!py::isinstance<Table>(table)) throw py::type_error("a table of a plan has other rows");
        const auto rows = py::reinterpret_borrow<Table>(table);
        at_ = rows.data();
        end_ = at_ + rows.size();
    }
    const Row& next() {
        if (at_ == end_) throw std::invalid_argument("a table of a plan ends too early");
        return *at_++;
    }
    std::int64_t left() const { return end_ - at_; }
    template <class T, class F = std::identity>
    std::vector<T> list(std::int64_t n, F one = {}) {
        std::vector<T> found;
        for (; n > 0; --n) found.push_back(one(next()));
        return found;
    }

private:
    const Row *at_ = nullptr, *end_ = nullptr;
};

inline std::byte* address(std::uint64_t at) { return reinterpret_cast<std::byte*>(at); }

inline Place place_of(const PlaceRow& r) { return {address(r.at), r.fixed, r.stream, r.rank}; }

// Braces make C++ evaluate the reads in the order in which they are written.
inline Task task_of(const TaskRow& r, Rows<PlaceRow>& places, Rows<Wait>& waits) {
    return {r.publish, static_cast<std::size_t>(r.count), places.list<Place>(r.targets, place_of),
            places.list<Place>(r.sources, place_of), waits.list<Wait>(r.waits), r.stage};
}

inline Copy copy_of(const CopyRow& r) {
    return {address(r.target), address(r.source), static_cast<std::size_t>(r.count), r.reduce};
}

inline EagerMessage message_of(const MessageRow& r) {
    return {r.peer, address(r.mailbox), static_cast<std::size_t>(r.stride), address(r.span),
            address(r.other), static_cast<std::size_t>(r.count)};
}

inline Line* lines_at(std::uintptr_t address) { return reinterpret_cast<Line*>(address); }

// Adds the dtype of every row type to the module.
inline void offer_dtypes(py::module_& m) {
    PYBIND11_NUMPY_DTYPE(TaskRow, publish, count, stage, targets, sources, waits);
    PYBIND11_NUMPY_DTYPE(PlaceRow, at, rank, fixed, stream);
    PYBIND11_NUMPY_DTYPE(Wait, peer, task, stage);
    PYBIND11_NUMPY_DTYPE(Rounds, window, nwindows, depth, gates, enter_all, exit_all);
    PYBIND11_NUMPY_DTYPE(ExchangeRow, before, sends, receives, after);
    PYBIND11_NUMPY_DTYPE(CopyRow, target, source, count, reduce);
    PYBIND11_NUMPY_DTYPE(MessageRow, peer, mailbox, stride, span, other, count);
    PYBIND11_NUMPY_DTYPE(CallRow, shape, function, source, other, target, sends, receives, to, from, type, op);
    m.attr("TASK") = py::dtype::of<TaskRow>();
    m.attr("PLACE") = py::dtype::of<PlaceRow>();
    m.attr("WAIT") = py::dtype::of<Wait>();
    m.attr("ROUNDS") = py::dtype::of<Rounds>();
    m.attr("EXCHANGE") = py::dtype::of<ExchangeRow>();
    m.attr("COPY") = py::dtype::of<CopyRow>();
    m.attr("EAGER_MESSAGE") = py::dtype::of<MessageRow>();
    m.attr("CALL") = py::dtype::of<CallRow>();
}

}  // namespace busbar
