// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/settings.hpp"

#include "base/backend_options.hpp"
#include "base/errors.hpp"

#include <array>

namespace headrace::fake {
namespace {

constexpr std::array<headrace_option_v1, 4> option_rows{{
    {"completion", "progress", "text",
     "who does the work: inline (the caller that causes it), progress (whoever calls progress), thread (one "
     "of its own)",
     0, 0},
    {"queue_depth", "1024", "count", "posts in flight of one instance, beyond which post answers would_block",
     0, 0},
    {"faults", "", "text",
     "what goes wrong: drop, delay:TIME, duplicate, reorder, kill:PAGE, partial:BYTES, deny; with @N, @N..M "
     "or @N.. for the N-th to the M-th time",
     0, 0},
    {"objects", "", "list", "the objects that a query finds: KEY=BYTES, several with commas", 0, 0},
}};

}  // namespace

std::span<const headrace_option_v1> FakeSettings::options() { return option_rows; }

Result<FakeSettings> FakeSettings::read(const plugin::CreateArgs& args) {
  BackendOptions options("fake", option_rows, args);
  constexpr std::array completions{Completion::caller, Completion::progress, Completion::thread};
  FakeSettings settings;
  settings.completion = completions.at(options.choice("completion", {"inline", "progress", "thread"}));
  settings.queue_depth = options.count("queue_depth", 1, UINT64_MAX);
  HEADRACE_TRY(faults, FaultScript::parse(options.text("faults")));
  HEADRACE_TRY(objects, Objects::parse(options.text("objects")));
  settings.faults = std::move(faults);
  settings.objects = std::move(objects);
  return options.checked(std::move(settings));
}

}  // namespace headrace::fake
