// SPDX-License-Identifier: Apache-2.0
// The options of an instance.
#pragma once

#include "backends/fake/faults.hpp"
#include "backends/fake/objects.hpp"

#include <headrace/plugin/backend.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace headrace::fake {

/// The thread that does an instance's work: the caller who caused it, any that calls `progress`, or one of
/// its own.
enum class Completion : std::uint8_t { caller, progress, thread };

struct FakeSettings {
  Completion completion = Completion::progress;
  std::uint64_t queue_depth = 0;
  std::vector<Fault> faults;
  Objects objects;

  static std::span<const headrace_option_v1> options();
  ///   errors  invalid_argument (the option, its value and what may stand there)
  static Result<FakeSettings> read(const plugin::CreateArgs& args);
};

}  // namespace headrace::fake
