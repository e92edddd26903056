// SPDX-License-Identifier: Apache-2.0
#include "engine/range_check.hpp"

#include "base/errors.hpp"
#include "base/names.hpp"
#include "base/utf8.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace headrace::engine {
namespace {

constexpr std::size_t longest_name = 255;
constexpr std::size_t longest_note = 65536;

Result<void> check_range(const MemoryRange& range, std::size_t index) {
  const auto bad = [&](const char* what) {
    Error error = make_error(Code::invalid_argument, "range {} {}", index, what);
    error.page = index;
    return error;
  };
  switch (range.kind) {
    case MemoryKind::dram:
    case MemoryKind::vram:
      if (range.address == nullptr) return bad("has no address");
      if (range.length_bytes == 0) return bad("is empty: a region has at least one byte");
      if (reinterpret_cast<std::uint64_t>(range.address) + range.length_bytes < range.length_bytes)
        return bad("runs over the end of the address space");
      if (range.kind == MemoryKind::vram && range.device < 0) return bad("is GPU memory and names no device");
      return {};
    case MemoryKind::block:
    case MemoryKind::file:
      if (range.file_descriptor < 0 && range.path.empty())
        return bad("names neither a path nor a descriptor");
      return {};
    case MemoryKind::object:
      if (range.path.empty()) return bad("names no object");
      return {};
  }
  return bad("is of an unknown kind");
}

/// Whether all of it is mapped: since Linux 2.6.19 msync with MS_ASYNC only looks for gaps (msync(2)).
bool is_mapped(std::uint64_t begin, std::uint64_t end) {
  static const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t first = begin / page * page;
  return ::msync(reinterpret_cast<void*>(first), end - first, MS_ASYNC) == 0 || errno != ENOMEM;
}

/// Refuses host addresses without memory. Ranges that follow one another cost one system call.
Result<void> check_mapped(std::span<const MemoryRange> ranges) {
  const auto begin_of = [&](std::size_t i) { return reinterpret_cast<std::uint64_t>(ranges[i].address); };
  for (std::size_t i = 0; i < ranges.size();) {
    const std::size_t first = i;
    std::uint64_t end = begin_of(i) + ranges[i].length_bytes;
    const bool host = ranges[i].kind == MemoryKind::dram;
    for (++i; host && i < ranges.size() && ranges[i].kind == MemoryKind::dram && begin_of(i) == end; ++i)
      end += ranges[i].length_bytes;
    if (!host || is_mapped(begin_of(first), end)) continue;
    std::size_t bad = first;
    while (bad + 1 < i && is_mapped(begin_of(bad), begin_of(bad) + ranges[bad].length_bytes)) ++bad;
    Error error = make_error(Code::invalid_argument,
                             "range {}: {} bytes at {:#x} are not all memory of this process: was it freed, "
                             "or is the length wrong?",
                             bad, ranges[bad].length_bytes, begin_of(bad));
    error.page = bad;
    return error;
  }
  return {};
}

}  // namespace

Result<void> check_ranges(std::span<const MemoryRange> ranges) {
  if (ranges.empty())
    return make_error(Code::invalid_argument, "there is nothing to register: the list is empty");
  for (std::size_t i = 0; i < ranges.size(); ++i) HEADRACE_TRY_VOID(check_range(ranges[i], i));
  return check_mapped(ranges);
}

Result<void> check_names(const RegisterOptions& options) {
  if (options.name.size() > longest_name)
    return make_error(Code::invalid_argument, "a region's name has at most {} bytes, this one {}",
                      longest_name, options.name.size());
  if (!is_utf8(options.name))
    return make_error(Code::invalid_argument, "a region's name is UTF-8, and this one is not");
  if (has_control_character(options.name))
    return make_error(Code::invalid_argument, "a region's name has no control characters, and {} has one",
                      name_text(options.name));
  if (options.note.size() > longest_note)
    return make_error(Code::invalid_argument, "a region's note has at most {} bytes, this one {}",
                      longest_note, options.note.size());
  return {};
}

}  // namespace headrace::engine
