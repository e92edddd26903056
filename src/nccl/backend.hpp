// SPDX-License-Identifier: Apache-2.0
// The backends of communicators whose library has NCCL's interface, as tables of comm_v1.h.
#pragma once

#include "vendor/cuda/driver.hpp"
#include "vendor/nccl/library.hpp"

#include <headrace/plugin/comm_v1.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {
class Options;
}  // namespace headrace

namespace headrace::nccl {

/// Loads driver and library; tests supply their own. What is loaded stays. The driver may be the HIP runtime.
struct Source {
  std::function<Result<cuda::DriverTable>()> driver;
  std::function<Result<Library>()> library;
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
  /// Loads the driver.
  ///   errors  those of cuda::load_driver
  [[nodiscard]] Result<cuda::DriverTable> driver();
  [[nodiscard]] Result<Library> library();

 private:
  const std::string name_;
  const Source source_;
  std::mutex mutex_;
  std::optional<Library> library_;
  std::optional<cuda::DriverTable> driver_;
  std::string version_;
};

/// The names of the backends over installed libraries.
[[nodiscard]] std::vector<std::string_view> backend_names();
/// The table of one of them.
///   errors  those of load_library
[[nodiscard]] Result<headrace_comm_backend_v1> table_of(std::string_view name);

/// One of them.
[[nodiscard]] Backend& installed_backend(std::string_view name);

/// The hints of their communicators, and of their calls.
[[nodiscard]] std::vector<std::string> hint_names();
[[nodiscard]] std::vector<std::string> call_hint_names();

/// The options of one of them: `library`, its path.
[[nodiscard]] Result<Options> backend_options(std::string_view name);

}  // namespace headrace::nccl
