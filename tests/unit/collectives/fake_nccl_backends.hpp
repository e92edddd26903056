// SPDX-License-Identifier: Apache-2.0
// Backends of communicators over the fakes of NCCL and of the CUDA driver.
#pragma once

#include "ranks.hpp"

#include "support/fake_hip.hpp"
#include "support/fake_nccl.hpp"

#include <headrace/comm_backend.hpp>

#include <functional>
#include <map>
#include <string>
#include <utility>

namespace headrace::test {

/// The GPU of the test that runs.
inline cuda::FakeCuda* current_gpu = nullptr;

/// A backend over one of the fake libraries, registered once.
struct FakeNcclBackend {
  /// `registers`: whether the library has ncclCommRegister. `on_hip`: its streams are those of HIP, as
  /// RCCL's.
  FakeNcclBackend(const std::string& name, const std::string& which, bool registers = true,
                  bool on_hip = false)
      : library(which),
        backend(name, {[on_hip] {
                         return on_hip ? hip::bind_runtime(hip_lookup())
                                       : cuda::bind_driver(cuda::FakeCuda::lookup());
                       },
                       [this, registers] {
                         auto loaded = library.load();
                         if (loaded && !registers)
                           loaded->table.comm_register = nullptr, loaded->table.comm_deregister = nullptr;
                         return loaded;
                       }}) {
    library.run_on(
        [](cuda::Stream stream, std::function<bool()> work) { current_gpu->queue(stream, std::move(work)); });
    const headrace_comm_backend_v1 table = must(backend.table());
    must(register_comm_backend(&table));
  }
  const FakeNccl library;
  nccl::Backend backend;
};

inline const FakeNccl& library_of(const std::string& backend) {
  static auto& newest = *new FakeNcclBackend("nccl_newest", "");
  static auto& old = *new FakeNcclBackend("nccl_old", "_old");
  static auto& bare = *new FakeNcclBackend("nccl_bare", "", false);
  static auto& on_hip = *new FakeNcclBackend("rccl_newest", "", true, true);
  const std::map<std::string, const FakeNcclBackend*> others{
      {"nccl_old", &old}, {"nccl_bare", &bare}, {"rccl_newest", &on_hip}};
  const auto other = others.find(backend);
  return (other == others.end() ? newest : *other->second).library;
}

}  // namespace headrace::test
