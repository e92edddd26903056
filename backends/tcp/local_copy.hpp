// SPDX-License-Identifier: Apache-2.0
// A request from this agent to itself: no socket, a copy. Small ones on the thread that posts, large ones in
// pieces on the host's pool and on whatever thread polls.
#pragma once

#include "backends/tcp/context.hpp"
#include "backends/tcp/request.hpp"

#include <memory>
#include <mutex>

namespace headrace::tcp {

class LocalRequest final : public Request {
 public:
  LocalRequest(const headrace_prepare_v1& prepared, Context& context);

  Status post(const headrace_post_v1& how) override;
  bool poll() override;
  void cancel() override;

 private:
  // Outlives the request: pool tasks that find nothing left may come late.
  struct Job;
  static void run(std::shared_ptr<Job>* given);

  const std::shared_ptr<Job> job_;
  Context& context_;
};

}  // namespace headrace::tcp
