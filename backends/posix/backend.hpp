// SPDX-License-Identifier: Apache-2.0
// Moves pages between host memory and files of this agent, with threads that read and write. README.md says
// how.
#pragma once

#include "backends/posix/file_calls.hpp"
#include "backends/posix/region.hpp"
#include "backends/posix/settings.hpp"
#include "base/worker_pool.hpp"

#include <headrace/plugin/backend.hpp>

#include <memory>
#include <mutex>
#include <span>
#include <string>

namespace headrace::posix {

class Job;

struct Request {
  std::shared_ptr<Job> job;
};

class PosixBackend final : public plugin::Backend<Handles> {
 public:
  static constexpr const char* name = "posix";
  static constexpr const char* version = "1.0";
  static constexpr std::uint32_t memory_kinds =
      HEADRACE_KIND_BIT(HEADRACE_DRAM) | HEADRACE_KIND_BIT(HEADRACE_FILE);
  static constexpr bool maps = false;
  [[nodiscard]] static std::span<const headrace_option_v1> options() { return option_rows(); }

  [[nodiscard]] static Result<std::unique_ptr<PosixBackend>> open(plugin::Host host,
                                                                  const plugin::CreateArgs& args);
  /// With other system calls, for tests; `calls` must outlive the instance.
  [[nodiscard]] static Result<std::unique_ptr<PosixBackend>> open(plugin::Host host,
                                                                  const plugin::CreateArgs& args,
                                                                  const FileCalls& calls);

  [[nodiscard]] headrace_info_v1 info() override;
  Result<Region*> register_region(const headrace_region_v1& region) override;
  void deregister_region(Region& region) override;
  Result<Remote*> load_local(Region& region) override;
  void unload(Remote& remote) override;

  Result<Request*> prepare(Link* link, const headrace_prepare_v1& args) override;
  Status post(Request& request, const headrace_post_v1& args) override;
  void cancel(Request& request) override;
  void release(Request& request) override;

  Result<std::string> query(const headrace_query_v1& args) override;
  headrace_cost_v1 cost(const headrace_prepare_v1& args) override;

 private:
  PosixBackend(plugin::Host host, Settings settings, const FileCalls& calls)
      : host_(host), settings_(settings), calls_(calls) {}
  Result<WorkerPool*> workers();

  const plugin::Host host_;
  const Settings settings_;
  const FileCalls& calls_;
  std::mutex workers_mutex_;
  std::unique_ptr<WorkerPool> workers_;  // made by the first post
};

}  // namespace headrace::posix
