// SPDX-License-Identifier: Apache-2.0
// Choosing the backend that carries a request: the cheapest of those that can, and why not the others.
#pragma once

#include "engine/backends.hpp"
#include "engine/links.hpp"
#include "engine/local_regions.hpp"
#include "engine/page_lists.hpp"
#include "engine/request_plan.hpp"

#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

namespace headrace::engine {

/// A backend's hold on a request.
struct Path {
  BackendInstance* backend = nullptr;
  std::shared_ptr<Link> link;  ///< null: to ourselves
  void* request = nullptr;
  PageList::State::Handles local_handles, remote_handles;
};

/// A backend that failed a post, and what it said.
struct FailedPath {
  std::string backend, why;
};

/// Both sides of a request as backends take them; they stay in place until the backend has released it.
struct Sides {
  headrace_side_v1 local{}, remote{};
};

class PathChoice {
 public:
  PathChoice(const Backends& backends, const LocalRegions& regions, const PageLists& lists, Links& links)
      : backends_(backends), regions_(regions), lists_(lists), links_(links) {}

  struct Choice {
    Path path;
    std::string explanation;
  };
  /// Ranks the backends that can carry the plan, and prepares on the first that takes it.
  ///   errors  not_supported (none can), not_found (a region has gone), peer_lost; the text has each one's
  ///   reason
  Result<Choice> choose(const RequestPlan& plan, std::span<const FailedPath> without, Sides& sides) const;
  /// What a request that was prepared on this path is expected to cost.
  [[nodiscard]] headrace_cost_v1 cost_on(const Path& path, const RequestPlan& plan, Sides sides) const;

 private:
  struct Candidate;
  struct Prepared;
  class Reasons;
  class Held;
  std::vector<Candidate> ranked(const RequestPlan& plan, std::span<const FailedPath> without,
                                const headrace_prepare_v1& args, Reasons& reasons) const;
  Result<Prepared> prepare_over(BackendInstance& backend, const RequestPlan& plan, headrace_prepare_v1& args,
                                Sides& sides) const;
  Result<Path> prepare_on(Path path, const Held& held, const RequestPlan& plan, headrace_prepare_v1& args,
                          Sides& sides) const;

  const Backends& backends_;
  const LocalRegions& regions_;
  const PageLists& lists_;
  Links& links_;
};

}  // namespace headrace::engine
