// SPDX-License-Identifier: Apache-2.0
// Hints of a communicator, and of a call, as the configurations that NCCL takes.
#pragma once

#include "vendor/nccl/library.hpp"

#include <map>
#include <string>
#include <vector>

namespace headrace::nccl {

using Hints = std::map<std::string, std::string>;

/// The hints that CommConfig takes, and those that CallConfig takes.
[[nodiscard]] std::vector<std::string> config_names();
[[nodiscard]] std::vector<std::string> call_config_names();

/// Hints have the names of ncclConfig_t's fields: "minCTAs", "netName". CTAPolicy is a number, or "default",
/// "efficiency" or "zero".
class CommConfig {
 public:
  /// `blocking` is 1 if it is not given: else each call of the library starts a thread of its own.
  ///   errors  invalid_argument (unknown: the nearest; not a number), not_supported (a field of a later
  ///           version: both versions)
  [[nodiscard]] static Result<CommConfig> make(const Library& library, Hints hints);
  /// Valid as long as this object.
  [[nodiscard]] Config get() const;
  [[nodiscard]] bool has(const std::string& hint) const { return hints_.contains(hint); }

 private:
  CommConfig(int version, Hints hints) : version_(version), hints_(std::move(hints)) {}

  int version_;
  Hints hints_;
};

/// Hints have the names of ncclCollConfig_t's fields.
class CallConfig {
 public:
  ///   errors  as those of CommConfig
  [[nodiscard]] static Result<CallConfig> make(const Library& library, Hints hints);
  /// Valid as long as this object.
  [[nodiscard]] CollConfig get() const;

 private:
  CallConfig(int version, Hints hints) : version_(version), hints_(std::move(hints)) {}

  int version_;
  Hints hints_;
};

}  // namespace headrace::nccl
