// SPDX-License-Identifier: Apache-2.0
#include "engine/path_choice.hpp"

#include "base/errors.hpp"
#include "engine/can_carry.hpp"
#include "engine/plugin_host.hpp"

#include <algorithm>
#include <utility>

namespace headrace::engine {
namespace {

std::string human_time(double ns) {
  if (ns < 1e4) return fmt::format("{:.1f} us", ns / 1e3);
  if (ns < 1e7) return fmt::format("{:.0f} us", ns / 1e3);
  return fmt::format("{:.1f} ms", ns / 1e6);
}

headrace_prepare_v1 prepare_args(const RequestPlan& plan, const Sides& sides) {
  headrace_prepare_v1 args{};
  args.struct_size = sizeof args;
  args.op = static_cast<std::int32_t>(plan.op);
  args.count = plan.count;
  args.bytes = plan.bytes;
  args.local = &sides.local;
  args.remote = &sides.remote;
  args.grid = plan.grid ? &*plan.grid : nullptr;
  return args;
}

void set_sides(Sides& sides, const RequestPlan& plan, const Path& path) {
  sides.local = plan.local->side(path.local_handles, plan.local_index);
  sides.remote = plan.remote->side(path.remote_handles, plan.remote_index);
}

std::string explained(const RequestPlan& plan, const BackendInstance& backend, const headrace_cost_v1& cost,
                      std::string_view why) {
  return fmt::format("{} of {} page{}, {} bytes: {} (about {}, {}; {})",
                     plan.op == Op::read ? "read" : "write", plan.count, plan.count == 1 ? "" : "s",
                     plan.bytes, backend.name(), human_time(expected_ns(cost, plan)), why,
                     cost.method != nullptr ? cost.method : "no method");
}

// ------------------------------------------------------------------ handles of regions

/// Of our own regions. `index`: the backend's.
Result<PageList::State::Handles> own_handles(const PageList::State& list, BackendInstance& backend,
                                             std::size_t index) {
  const std::uint64_t key = reinterpret_cast<std::uint64_t>(&backend);
  if (auto known = list.remembered(key)) return known;
  std::vector<void*> handles;
  handles.reserve(list.local_regions.size());
  for (const auto& region : list.local_regions) {
    if (!list.far_side) {
      handles.push_back(region->handles.local(index));
      continue;
    }
    const std::lock_guard lock(region->far_mutex);  // of one region, held so that it is loaded once
    if (region->handles.far(index) == nullptr) {
      HEADRACE_TRY(loaded, backend.load_local(region->handles.local(index)));
      region->handles.set_far(index, loaded);
    }
    handles.push_back(region->handles.far(index));
  }
  return list.remember(key, std::move(handles));
}

/// Of a peer's regions, loaded for this link.
Result<PageList::State::Handles> remote_handles(const PageList::State& list, BackendInstance& backend,
                                                Link& link) {
  if (auto known = list.remembered(link.token())) return known;
  const PeerLife& life = *list.life;
  std::vector<void*> handles;
  handles.reserve(list.columns.region_ids.size());
  for (const std::uint32_t id : list.columns.region_ids) {
    RemoteRegion row;
    {
      const std::shared_lock lock(life.mutex);
      const RemoteRegion* const region = life.regions.find(id);
      if (region == nullptr)
        return make_error(Code::not_found, "peer {} has no region {} any more", life.name, id);
      row = *region;
    }
    const std::string public_data = life.public_data_of(id, backend);
    HEADRACE_TRY(handle, link.load(id, row.to_c(id, public_data)));
    handles.push_back(handle);
  }
  return list.remember(link.token(), std::move(handles));
}

}  // namespace

struct PathChoice::Candidate {
  BackendInstance* backend;
  bool unasked;  ///< `local`, for a request inside the agent whose caller named others
  double guess_ns;
};

/// A request on a path, and the estimate with what is known by now of the memory at its two ends.
struct PathChoice::Prepared {
  Path path;
  headrace_cost_v1 cost;
};

/// A line for each backend that does not carry the request, and what the caller can do if none does.
class PathChoice::Reasons {
 public:
  void add(const BackendInstance& backend, std::string_view why) {
    text_ += fmt::format("\n  not {}: {}", backend.name(), why);
  }
  void add(const BackendInstance& backend, const Error& error) {
    if (error.code == Code::peer_lost || error.code == Code::not_found || error.code == Code::exhausted)
      code_ = error.code;
    add(backend, error.message);
  }
  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] Error no_path(const RequestPlan& plan) const {
    const auto& life = plan.remote->life;
    const Code code = life && life->fate.load() != Fate::alive ? Code::peer_lost : code_;
    return make_error(code, "no path {} {}:{}", plan.op == Op::read ? "to read from" : "to write to",
                      life ? "peer " + plan.remote->peer : "this agent itself",
                      text_.empty() ? " no backend is open" : text_);
  }

 private:
  std::string text_;
  Code code_ = Code::not_supported;
};

/// While it lives no handle of a region that is still registered goes away, and the link is not closed
/// between loading, preparing and handing out.
class PathChoice::Held {
 public:
  Held(const LocalRegions& regions, Link* link) : local_(regions.hold_handles()) {
    if (link == nullptr) return;
    pass_.emplace(link->gate());
    remote_ = std::shared_lock(link->handles_mutex());
  }
  /// Whether the link, if there is one, may be used.
  [[nodiscard]] bool open() const { return !pass_ || static_cast<bool>(*pass_); }

 private:
  std::optional<GatePass> pass_;
  std::shared_lock<std::shared_mutex> local_, remote_;
};

// ------------------------------------------------------------------ choosing

Result<PathChoice::Choice> PathChoice::choose(const RequestPlan& plan, std::span<const FailedPath> without,
                                              Sides& sides) const {
  Reasons reasons;
  set_sides(sides, plan, {});
  headrace_prepare_v1 args = prepare_args(plan, sides);
  const auto candidates = ranked(plan, without, args, reasons);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    BackendInstance& backend = *candidates[i].backend;
    auto prepared = prepare_over(backend, plan, args, sides);
    if (!prepared) {
      reasons.add(backend, prepared.error());
      continue;
    }
    for (std::size_t j = i + 1; j < candidates.size(); ++j)
      reasons.add(*candidates[j].backend,
                  fmt::format("slower, about {}", human_time(candidates[j].guess_ns)));
    const std::string_view why = candidates.size() == 1 ? "the only path"
                                 : i == 0               ? "the cheapest by estimate"
                                                        : "those before it refused";
    return Choice{std::move(prepared->path), explained(plan, backend, prepared->cost, why) + reasons.text()};
  }
  return reasons.no_path(plan);
}

Result<PathChoice::Prepared> PathChoice::prepare_over(BackendInstance& backend, const RequestPlan& plan,
                                                      headrace_prepare_v1& args, Sides& sides) const {
  Path empty;
  empty.backend = &backend;
  if (plan.remote->life) {
    HEADRACE_TRY(found, links_.to(plan.remote->life, backend));
    empty.link = std::move(found);
  }
  const std::shared_ptr<Link> link = empty.link;  // outlives the hold also where it fails and the path goes
  const Held held(regions_, link.get());
  HEADRACE_TRY(path, prepare_on(std::move(empty), held, plan, args, sides));
  return Prepared{std::move(path), backend.cost(args)};
}

/// The backends that can carry the plan: those asked for first, then the cheapest by estimate. Makes no link.
std::vector<PathChoice::Candidate> PathChoice::ranked(const RequestPlan& plan,
                                                      std::span<const FailedPath> without,
                                                      const headrace_prepare_v1& args,
                                                      Reasons& reasons) const {
  std::vector<Candidate> candidates;
  for (BackendInstance* backend : backends_.all()) {
    // Nobody asked for it, and it reaches no peer: a line about it would only cost time in every request.
    if (plan.remote->life && backend->name() == local_backend) continue;
    if (const auto failed = std::ranges::find(without, backend->name(), &FailedPath::backend);
        failed != without.end()) {
      reasons.add(*backend, "it failed this post: " + failed->why);
    } else if (auto can = can_carry(*backend, backends_.index(*backend), plan); !can) {
      reasons.add(*backend, can.error());
    } else {
      candidates.push_back({backend, !is_asked_for(*backend, plan), expected_ns(backend->cost(args), plan)});
    }
  }
  std::ranges::stable_sort(candidates, {}, [](const Candidate& candidate) {
    return std::pair(candidate.unasked, candidate.guess_ns);
  });
  return candidates;
}

/// Loads the handles of all regions and has the backend prepare. `path` has its backend and link.
Result<Path> PathChoice::prepare_on(Path path, const Held& held, const RequestPlan& plan,
                                    headrace_prepare_v1& args, Sides& sides) const {
  if (!held.open()) return Error{path.link->lost_code(), path.link->lost_text()};
  if (!lists_.still_valid(*plan.local).ok() || !lists_.still_valid(*plan.remote).ok())
    return Error{Code::not_found, "a region of the page lists is registered no longer"};
  const std::size_t index = backends_.index(*path.backend);
  HEADRACE_TRY(local, own_handles(*plan.local, *path.backend, index));
  path.local_handles = std::move(local);
  HEADRACE_TRY(remote, path.link ? remote_handles(*plan.remote, *path.backend, *path.link)
                                 : own_handles(*plan.remote, *path.backend, index));
  path.remote_handles = std::move(remote);
  set_sides(sides, plan, path);
  args.connection = path.link ? path.link->connection() : nullptr;
  HEADRACE_TRY(request, path.backend->prepare(args));
  path.request = request;
  return path;
}

headrace_cost_v1 PathChoice::cost_on(const Path& path, const RequestPlan& plan, Sides sides) const {
  const Held held(regions_, path.link.get());
  if (!held.open() || !lists_.still_valid(*plan.local).ok() || !lists_.still_valid(*plan.remote).ok())
    sides.local.regions = sides.remote.regions = nullptr;
  headrace_prepare_v1 args = prepare_args(plan, sides);
  args.connection = held.open() && path.link ? path.link->connection() : nullptr;
  return path.backend->cost(args);
}

}  // namespace headrace::engine
