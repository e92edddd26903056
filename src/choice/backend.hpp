// SPDX-License-Identifier: Apache-2.0
// The backend `auto` of communicators on GPUs, as a table of comm_v1.h over the tables of its candidates.
#pragma once

#include "choice/communicator.hpp"

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headrace::choice {

inline constexpr const char* backend_name = "auto";

/// Where all comes from; tests supply their own.
struct Source {
  std::function<Result<cuda::DriverTable>()> driver;
  std::vector<Candidate> candidates;
  std::function<Result<CommTuning>(const std::string& path)> read_tuning;
};

/// Lives to the end of the process, as its table does.
class Backend {
 public:
  Backend(std::string name, Source source) : name_(std::move(name)), source_(std::move(source)) {}
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// Loads nothing.
  [[nodiscard]] headrace_comm_backend_v1 table();
  /// Loads the driver.
  ///   errors  those of Source and of gpu::Device::open
  [[nodiscard]] Result<Parts> parts_for(int device);

 private:
  const std::string name_;
  const Source source_;
  std::mutex mutex_;
  std::optional<cuda::DriverTable> driver_;
};

}  // namespace headrace::choice
