// SPDX-License-Identifier: Apache-2.0
// The backend of communicators over oneCCL, for host memory, as a table of comm_v1.h.
#pragma once

#include "vendor/oneccl/library.hpp"

#include <headrace/plugin/comm_v1.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace headrace {
class Options;
}  // namespace headrace

namespace headrace::oneccl {

inline constexpr const char* backend_name = "oneccl";

/// What a backend is made of; tests supply their own.
struct Source {
  std::function<Result<Library>()> library;
  std::function<std::string()> process;  ///< tells the process of a rank apart from all others
};

/// One backend. Lives to the end of the process, as its table does.
class Backend {
 public:
  Backend(std::string name, Source source) : name_(std::move(name)), source_(std::move(source)) {}
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// Loads the library.
  ///   errors  those of load_library
  [[nodiscard]] Result<headrace_comm_backend_v1> table();
  [[nodiscard]] Result<Library> library();
  [[nodiscard]] std::string process() const { return source_.process(); }

 private:
  const std::string name_;
  const Source source_;
  std::mutex mutex_;
  std::optional<Library> library_;
};

/// The one over the installed library.
[[nodiscard]] Backend& installed_backend();

/// Its options: `library`, its path.
[[nodiscard]] Result<Options> backend_options();

}  // namespace headrace::oneccl
