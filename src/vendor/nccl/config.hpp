// SPDX-License-Identifier: Apache-2.0
// Hints of a communicator as the configuration that NCCL takes.
#pragma once

#include "vendor/nccl/library.hpp"

#include <map>
#include <string>
#include <vector>

namespace headrace::nccl {

/// The hints that CommConfig takes.
[[nodiscard]] std::vector<std::string> config_names();

/// Hints have the names of ncclConfig_t's fields: "minCTAs", "netName".
class CommConfig {
 public:
  /// `blocking` is 1 if it is not given: else each call of the library starts a thread of its own.
  ///   errors  invalid_argument (unknown: the nearest; not a number), not_supported (a field of a later
  ///           version: both versions)
  [[nodiscard]] static Result<CommConfig> make(const Library& library,
                                               std::map<std::string, std::string> hints);
  /// Valid as long as this object.
  [[nodiscard]] Config get() const;

 private:
  CommConfig(int version, std::map<std::string, std::string> hints)
      : version_(version), hints_(std::move(hints)) {}

  int version_;
  std::map<std::string, std::string> hints_;
};

}  // namespace headrace::nccl
