// SPDX-License-Identifier: Apache-2.0
// Engines for tests, with backends that are linked in instead of loaded.
#pragma once

#include "engine/engine.hpp"
#include "support/fake_gpus.hpp"
#include "support/plugin_instance.hpp"
#include "support/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace::engine {

/// Adds the backend with the defaults of its options, except for those in `given`.
inline void add_linked(Engine& engine, const headrace_backend_v1& table,
                       const std::map<std::string, std::string>& given = {}) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (std::size_t i = 0; i < table.option_count; ++i) {
    const headrace_option_v1& row = table.options[i];
    const auto found = given.find(row.name);
    settings.emplace_back(row.name, found != given.end() ? found->second : row.default_value);
  }
  EXPECT_TRUE(engine.add_backend({table.name, "linked in", &table, ""}, settings).ok());
}

/// An engine with the backend cuda_ipc over fake GPUs of this process.
inline std::shared_ptr<Engine> open_on_gpus(const std::string& name, const test::TemporaryFolder& folder,
                                            Logger& logger) {
  test::FakeGpus::offer_backends();
  auto engine = Engine::open({.name = name, .runtime_dir = folder.path()}, logger).value();
  add_linked(*engine, *test::load_plugin("cuda_ipc"));
  return engine;
}

/// Keeps the progress thread of an engine in one function until the end of this object. The engine answers no
/// peer meanwhile, unless another thread runs its progress.
class HeldProgress {
 public:
  explicit HeldProgress(Engine& engine) {
    const auto held = std::make_shared<std::latch>(1);
    engine.progress().at(0, [held, released = released_] {
      held->count_down();
      released->wait();
    });
    held->wait();
  }
  ~HeldProgress() { released_->count_down(); }
  HeldProgress(const HeldProgress&) = delete;
  HeldProgress& operator=(const HeldProgress&) = delete;

 private:
  const std::shared_ptr<std::latch> released_ = std::make_shared<std::latch>(1);
};

}  // namespace headrace::engine
