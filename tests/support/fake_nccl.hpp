// SPDX-License-Identifier: Apache-2.0
// The fake NCCL of tests/plugins over the fake CUDA driver, as backends of communicators.
#pragma once

#include "nccl/backend.hpp"
#include "support/fake_cuda.hpp"
#include "vendor/nccl/library.hpp"

#include <dlfcn.h>

#include <functional>
#include <string>
#include <utility>

namespace headrace::test {

/// One of the libraries. They stay loaded.
class FakeNccl {
 public:
  /// "": NCCL 2.32.3; "_old": 2.20.5; "_beside": as the first, for tests that use it beside p2p.
  explicit FakeNccl(const std::string& which)
      : path_(HEADRACE_TEST_BIN_DIR "/plugins/libfake_nccl" + which + ".so"),
        handle_(::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL)) {}

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] Result<nccl::Library> load() const { return nccl::load_library(nccl::flavours[0], path_); }

  using Enqueue = void (*)(cuda::Stream stream, std::function<bool()> work);
  void run_on(Enqueue enqueue) const { symbol<void(Enqueue)>("fake_nccl_run_on")(enqueue); }
  void fail(const char* function, nccl::Outcome outcome, int times = 1) const {
    symbol<void(const char*, nccl::Outcome, int)>("fake_nccl_fail")(function, outcome, times);
  }
  void set_async_error(nccl::Outcome outcome) const {
    symbol<void(nccl::Outcome)>("fake_nccl_set_async_error")(outcome);
  }
  void hold_calls(bool hold) const { symbol<void(bool)>("fake_nccl_hold_calls")(hold); }
  void have_symmetric_memory(bool have) const { symbol<void(bool)>("fake_nccl_have_symmetric_memory")(have); }
  [[nodiscard]] int calls(const char* function) const {
    return symbol<int(const char*)>("fake_nccl_calls")(function);
  }
  /// The configuration of the last communicator. Its texts are the library's.
  [[nodiscard]] nccl::Config last_config() const { return last_configs().first; }
  /// That of the last call that had one.
  [[nodiscard]] nccl::CollConfig last_call_config() const { return last_configs().second; }

 private:
  [[nodiscard]] std::pair<nccl::Config, nccl::CollConfig> last_configs() const {
    std::pair<nccl::Config, nccl::CollConfig> last;
    symbol<void(nccl::Config*, nccl::CollConfig*)>("fake_nccl_last_configs")(&last.first, &last.second);
    return last;
  }
  template <class Function>
  Function* symbol(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

  const std::string path_;
  void* const handle_;
};

}  // namespace headrace::test
