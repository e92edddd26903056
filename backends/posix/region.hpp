// SPDX-License-Identifier: Apache-2.0
// A registered region: host memory, or a file.
#pragma once

#include "backends/posix/file.hpp"

#include <headrace/plugin/backend.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace headrace::posix {

class Region;
struct Request;
/// A file of this agent is the remote side of a request as it was registered.
using Handles = plugin::Handles<Region, plugin::NoLink, Region, Request>;

class Region {
 public:
  ///   errors   not_supported (another kind of memory), those of File::open
  [[nodiscard]] static Result<std::unique_ptr<Region>> make(const headrace_region_v1& args,
                                                            const FileCalls& calls);

  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  [[nodiscard]] bool read_only() const noexcept { return read_only_; }
  /// Null for host memory.
  [[nodiscard]] const File* file() const noexcept { return file_.get(); }
  /// The first byte of host memory.
  [[nodiscard]] std::byte* base() const noexcept { return base_; }

 private:
  Region(const headrace_region_v1& args, std::unique_ptr<const File> file);

  // Small: an agent has one for each region of host memory, even if it moves no files.
  std::uint32_t id_;
  bool read_only_;
  std::byte* base_;
  std::unique_ptr<const File> file_;
};

}  // namespace headrace::posix
