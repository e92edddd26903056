// SPDX-License-Identifier: Apache-2.0
// Copies the rows of a descriptor list in a short form. A descriptor list must not refer to the array that it
// is made from, because the program may change that array. Most rows have equal columns: then a regular list
// is kept as three numbers, and an irregular one as its addresses only.
#include "bindings/compat_nixl/python.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace headrace::compat_nixl {
namespace {

constexpr Py_ssize_t row_bytes = 24;
/// The number of rows that are compared at a time: most lists that are not regular differ in the first of
/// them.
constexpr Py_ssize_t piece = 1024;

struct Row {
  std::uint64_t address, length, device;
};
static_assert(sizeof(Row) == row_bytes);

/// Rows without alignment, as in a slice of bytes.
class Rows {
 public:
  Rows(const void* first, Py_ssize_t count) : first_(static_cast<const char*>(first)), count_(count) {}
  [[nodiscard]] Py_ssize_t count() const { return count_; }
  Row operator[](Py_ssize_t i) const {
    Row row;
    std::memcpy(&row, first_ + i * row_bytes, sizeof row);
    return row;
  }

 private:
  const char* first_;
  Py_ssize_t count_;
};

/// The distance of neighbouring addresses; 0 if the rows are not regular.
std::uint64_t step_of(const Rows& rows) {
  if (rows.count() < 2) return 0;
  const Row first = rows[0];
  const std::uint64_t step = rows[1].address - first.address;
  if (step == 0 || step > INT64_MAX ||
      (UINT64_MAX - first.address) / step < static_cast<std::uint64_t>(rows.count()))
    return 0;
  for (Py_ssize_t begin = 0; begin < rows.count(); begin += piece) {
    std::uint64_t differs = 0;
    for (Py_ssize_t i = begin; i < std::min(begin + piece, rows.count()); ++i) {
      const Row row = rows[i];
      differs |= (row.address ^ (first.address + static_cast<std::uint64_t>(i) * step)) |
                 (row.length ^ first.length) | (row.device ^ first.device);
    }
    if (differs != 0) return 0;
  }
  return step;
}

struct Differences {
  bool lengths = false, devices = false;
};

/// Copies the addresses, and returns in which other columns the rows differ.
Differences take_addresses(const Rows& rows, char* addresses) {
  const Row first = rows[0];
  std::uint64_t lengths = 0, devices = 0;
  for (Py_ssize_t i = 0; i < rows.count(); ++i) {
    const Row row = rows[i];
    std::memcpy(addresses + i * static_cast<Py_ssize_t>(sizeof row.address), &row.address,
                sizeof row.address);
    lengths |= row.length ^ first.length;
    devices |= row.device ^ first.device;
  }
  return {lengths != 0, devices != 0};
}

void take_lengths(const Rows& rows, char* lengths) {
  for (Py_ssize_t i = 0; i < rows.count(); ++i) {
    const std::uint64_t length = rows[i].length;
    std::memcpy(lengths + i * static_cast<Py_ssize_t>(sizeof length), &length, sizeof length);
  }
}

Reference column(Py_ssize_t count) {
  return Reference(
      PyBytes_FromStringAndSize(nullptr, count * static_cast<Py_ssize_t>(sizeof(std::uint64_t))));
}

PyObject* captured(const Rows& rows, std::uint64_t step, PyObject* addresses, PyObject* lengths) {
  const Row first = rows[0];
  return Py_BuildValue("(nKKKKOO)", rows.count(), static_cast<unsigned long long>(first.device),
                       static_cast<unsigned long long>(first.address), static_cast<unsigned long long>(step),
                       static_cast<unsigned long long>(first.length), addresses, lengths);
}

PyObject* capture(const Rows& rows) {
  if (const std::uint64_t step = step_of(rows); step != 0) return captured(rows, step, Py_None, Py_None);
  const Reference addresses = column(rows.count());
  if (!addresses) return nullptr;
  const Differences differences = take_addresses(rows, PyBytes_AsString(addresses.get()));
  if (differences.devices) Py_RETURN_NONE;
  if (!differences.lengths) return captured(rows, 0, addresses.get(), Py_None);
  const Reference lengths = column(rows.count());
  if (!lengths) return nullptr;
  take_lengths(rows, PyBytes_AsString(lengths.get()));
  return captured(rows, 0, addresses.get(), lengths.get());
}

}  // namespace

PyObject* capture_rows(PyObject* /*module*/, PyObject* rows) {
  Py_buffer view;
  if (PyObject_GetBuffer(rows, &view, PyBUF_C_CONTIGUOUS) != 0) return nullptr;
  PyObject* made = nullptr;
  if (view.len == 0 || view.len % row_bytes != 0) {
    PyErr_Format(PyExc_ValueError,
                 "a buffer of %zd bytes is not a table of rows: a row has %zd bytes, and at least one row is "
                 "needed",
                 view.len, row_bytes);
  } else {
    made = capture(Rows(view.buf, view.len / row_bytes));
  }
  PyBuffer_Release(&view);
  return made;
}

}  // namespace headrace::compat_nixl
