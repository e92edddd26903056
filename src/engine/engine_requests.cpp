// SPDX-License-Identifier: Apache-2.0
// Making requests: which path carries one, and why.
#include "engine/engine.hpp"
#include "memory/page_list.hpp"

#include <algorithm>

namespace headrace::engine {
namespace {

struct Candidate {
  BackendInstance* backend;
  double guess_ns;
  std::string method;  // of the guess
};

std::string human_time(double ns) {
  if (ns < 1e4) return fmt::format("{:.1f} us", ns / 1e3);
  if (ns < 1e7) return fmt::format("{:.0f} us", ns / 1e3);
  return fmt::format("{:.1f} ms", ns / 1e6);
}

/// The first page of the request that lies in that region of the list.
std::uint64_t first_page_in(const PageList::State& list, const std::vector<std::uint32_t>& index,
                            std::uint64_t count, std::uint32_t region) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t k = index.empty() ? i : index[i];
    if (list.region_ids[list.region_of.empty() ? 0 : list.region_of[k]] == region) return i;
  }
  return no_page;
}

/// Whether the side that the bytes come to may be written.
Result<void> check_writable(const RequestPlan& plan) {
  const PageList::State& target = plan.op == Op::read ? *plan.local : *plan.remote;
  for (const std::uint32_t region : target.read_only_ids) {
    const std::uint64_t page =
        first_page_in(target, plan.op == Op::read ? plan.local_index : plan.remote_index, plan.count, region);
    if (page == no_page) continue;
    Error error = make_error(Code::invalid_argument, "page {}: region {} of {} is registered read-only: {}",
                             page, region, target.life ? "peer " + target.peer : "this agent",
                             target.life ? "only its owner can make it writable, when it registers it"
                                         : "register its memory as writable to have it written");
    error.page = page;
    return error;
  }
  return {};
}

}  // namespace

double expected_ns(const headrace_cost_v1& cost, const RequestPlan& plan) {
  // What a page costs is to find its place, and each run of a view costs that, too.
  const double stretches =
      static_cast<double>(plan.count) * static_cast<double>(plan.grid ? plan.grid->runs : 1);
  return cost.fixed_ns + cost.ns_per_page * stretches +
         static_cast<double>(plan.bytes) * 1e9 / cost.bytes_per_second;
}

Result<std::shared_ptr<RequestCore>> Engine::make_request(RequestPlan plan) {
  HEADRACE_TRY_VOID(usable());
  for (const PageListState* list : {&plan.local, &plan.remote}) {
    if (Status valid = still_valid(**list); !valid.ok()) {
      if ((*list)->life && (*list)->life->fate.load() != Fate::alive) {
        return make_error(Code::peer_lost,
                          "peer {} is gone or has restarted: import its metadata and prepare its pages again",
                          (*list)->peer);
      }
      return make_error(Code::not_found,
                        "a region of the {} page list is registered no longer: prepare the list again",
                        (*list)->life ? "remote" : "local");
    }
  }
  HEADRACE_TRY_VOID(check_writable(plan));
  auto core = RequestCore::make(shared_from_this(), std::move(plan), next_request_.fetch_add(1));
  HEADRACE_TRY_VOID(core->bind());
  const std::lock_guard lock(requests_mutex_);
  requests_.insert(core.get());
  return core;
}

void Engine::forget_request(RequestCore& core) {
  const std::lock_guard lock(requests_mutex_);
  requests_.erase(&core);
}

/// Whether a backend can carry the plan at all; the error says why not. Looks at tables only, makes no link.
Result<void> Engine::eligible(const RequestPlan& plan, const BackendInstance& backend) const {
  const auto no = [](std::string why) { return Error{Code::not_supported, std::move(why)}; };
  if (!plan.backends.empty() &&
      std::find(plan.backends.begin(), plan.backends.end(), backend.name()) == plan.backends.end())
    return no("not among the backends asked for");
  if (plan.grid && !backend.can(HEADRACE_GRID)) return no("does not move pages that are strided views");
  const std::size_t index = backend_index(backend);
  bool vram = false;
  for (const auto& region : plan.local->local_regions) {
    vram = vram || region->info.kind == MemoryKind::vram;
    if (!backend.takes_local(static_cast<int>(region->info.kind)))
      return no(fmt::format("does not move {} here", kind_name(region->info.kind)));
    if (region->handles.local(index) == nullptr)
      return no(fmt::format("local region {} is not registered with it", region->info.id.value));
  }
  const auto has_its_vram = [&]() -> Result<void> {
    if (vram || !backend.can(HEADRACE_NEEDS_VRAM)) return {};
    return no("moves host memory only to and from GPUs");
  };
  if (!plan.remote->life) {
    if (!backend.can(HEADRACE_LOCAL)) return no("does not move between regions of one agent");
    for (const auto& region : plan.remote->local_regions) {
      vram = vram || region->info.kind == MemoryKind::vram;
      if (!backend.takes_remote(static_cast<int>(region->info.kind)))
        return no(fmt::format("does not move to or from {}", kind_name(region->info.kind)));
      if (region->handles.local(index) == nullptr)
        return no(fmt::format("region {} is not registered with it", region->info.id.value));
    }
    return has_its_vram();
  }
  if (!backend.can(HEADRACE_REMOTE)) return no("reaches no peers");
  const PeerLife& life = *plan.remote->life;
  const std::shared_lock lock(life.mutex);
  const int number = life.backend_number(backend.name());
  if (number < 0) return no(fmt::format("peer {} does not have it", life.name));
  for (const std::uint32_t id : plan.remote->region_ids) {
    const RemoteRegion* const region = life.regions.find(id);
    if (region == nullptr)
      return Error{Code::not_found, fmt::format("peer {} has no region {} any more", life.name, id)};
    vram = vram || region->kind == HEADRACE_VRAM;
    if (!backend.takes_remote(region->kind))
      return no(fmt::format("does not move to or from a peer's {}",
                            kind_name(static_cast<MemoryKind>(region->kind))));
    if ((region->backends >> number & 1) == 0)
      return no(fmt::format("peer {} did not register region {} with it", life.name, id));
  }
  return has_its_vram();
}

Result<PageList::State::Handles> Engine::own_handles(const PageList::State& list,
                                                     BackendInstance& backend) const {
  const std::size_t index = backend_index(backend);
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

Result<PageList::State::Handles> Engine::remote_handles(const PageList::State& list, BackendInstance& backend,
                                                        const std::shared_ptr<Link>& link) const {
  if (!link) return own_handles(list, backend);
  if (auto known = list.remembered(link->token())) return known;
  const PeerLife& life = *list.life;
  std::vector<void*> handles;
  handles.reserve(list.region_ids.size());
  for (const std::uint32_t id : list.region_ids) {
    headrace_remote_region_v1 remote{};
    remote.struct_size = sizeof remote;
    remote.region_id = id;
    std::string public_data;
    {
      const std::shared_lock lock(life.mutex);
      const RemoteRegion* const region = life.regions.find(id);
      if (region == nullptr)
        return make_error(Code::not_found, "peer {} has no region {} any more", life.name, id);
      remote.kind = region->kind;
      remote.address = region->address;
      remote.length = region->length;
      public_data =
          life.regions.public_data(id, static_cast<std::uint32_t>(life.backend_number(backend.name())));
    }
    remote.public_data = {public_data.data(), public_data.size()};
    HEADRACE_TRY(handle, link->load(id, remote));
    handles.push_back(handle);
  }
  return list.remember(link->token(), std::move(handles));
}

Result<Engine::Choice> Engine::choose(const RequestPlan& plan, const std::vector<FailedPath>& without,
                                      headrace_side_v1& local_side, headrace_side_v1& remote_side) {
  std::string reasons;  // a line for each backend that does not carry it
  const auto note = [&](const BackendInstance& backend, const std::string& why) {
    reasons += fmt::format("\n  not {}: {}", backend.name(), why);
  };
  Code worst = Code::not_supported;

  headrace_prepare_v1 args{};
  args.struct_size = sizeof args;
  args.op = static_cast<std::int32_t>(plan.op);
  args.count = plan.count;
  args.bytes = plan.bytes;
  args.local = &local_side;
  args.remote = &remote_side;
  args.grid = plan.grid ? &*plan.grid : nullptr;
  local_side = plan.local->side(nullptr, &plan.local_index);
  remote_side = plan.remote->side(nullptr, &plan.remote_index);

  std::vector<Candidate> candidates;
  for (BackendInstance* backend : backends()) {
    if (const auto failed = std::ranges::find(without, backend->name(), &FailedPath::backend);
        failed != without.end()) {
      note(*backend, "it failed this post: " + failed->why);
      continue;
    }
    if (auto can = eligible(plan, *backend); !can) {
      if (can.code() == Code::not_found) worst = Code::not_found;
      note(*backend, can.error().message);
      continue;
    }
    const headrace_cost_v1 cost = backend->cost(args);
    candidates.push_back(
        {backend, expected_ns(cost, plan), cost.method != nullptr ? cost.method : "no method"});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.guess_ns < b.guess_ns; });

  for (std::size_t i = 0; i < candidates.size(); ++i) {
    BackendInstance& backend = *candidates[i].backend;
    const auto refused = [&](const Error& error) {
      if (error.code == Code::peer_lost || error.code == Code::not_found) worst = error.code;
      note(backend, error.message);
    };
    Choice choice;
    choice.path.backend = &backend;
    if (plan.remote->life) {
      auto link = link_to(plan.remote->life, backend);
      if (!link) {
        refused(link.error());
        continue;
      }
      choice.path.link = std::move(*link);
    }
    // Inside the gate the link cannot be closed between loading, preparing and handing out.
    std::optional<GatePass> pass;
    std::shared_lock<std::shared_mutex> remote_handles_stay;
    if (choice.path.link) {
      pass.emplace(choice.path.link->gate());
      if (!*pass) {
        refused({Code::peer_lost, choice.path.link->lost_text()});
        continue;
      }
      args.connection = choice.path.link->connection();
      remote_handles_stay = std::shared_lock(choice.path.link->handles_mutex());
    }
    const std::shared_lock local_handles_stay(local_handles_mutex_);
    if (!still_valid(*plan.local).ok() || !still_valid(*plan.remote).ok()) {
      refused({Code::not_found, "a region of the page lists is registered no longer"});
      continue;
    }
    auto local = own_handles(*plan.local, backend);
    auto remote = local ? remote_handles(*plan.remote, backend, choice.path.link)
                        : Result<PageList::State::Handles>(local.error());
    if (!remote) {
      refused(remote.error());
      continue;
    }
    local_side = plan.local->side(*local, &plan.local_index);
    remote_side = plan.remote->side(*remote, &plan.remote_index);
    auto request = backend.prepare(args);
    if (!request) {
      refused(request.error());
      continue;
    }
    choice.path.request = *request;
    choice.path.local_handles = std::move(*local);
    choice.path.remote_handles = std::move(*remote);
    const headrace_cost_v1 told = backend.cost(args);  // by now it is known what lies at the two ends
    choice.explanation =
        fmt::format("{} of {} page{}, {} bytes: {} (about {}, {}; {})",
                    plan.op == Op::read ? "read" : "write", plan.count, plan.count == 1 ? "" : "s",
                    plan.bytes, backend.name(), human_time(expected_ns(told, plan)),
                    candidates.size() == 1 ? "the only path"
                    : i == 0               ? "the cheapest by estimate"
                                           : "those before it refused",
                    told.method != nullptr ? told.method : "no method");
    for (std::size_t j = i + 1; j < candidates.size(); ++j) {
      note(*candidates[j].backend, fmt::format("slower, about {}", human_time(candidates[j].guess_ns)));
    }
    choice.explanation += reasons;
    return choice;
  }
  if (plan.remote->life && plan.remote->life->fate.load() != Fate::alive) worst = Code::peer_lost;
  return make_error(worst, "no path {} {}:{}", plan.op == Op::read ? "to read from" : "to write to",
                    plan.remote->life ? "peer " + plan.remote->peer : "this agent itself",
                    reasons.empty() ? " no backend is open" : reasons);
}

headrace_cost_v1 Engine::cost_on(const Path& path, const RequestPlan& plan, headrace_side_v1 local_side,
                                 headrace_side_v1 remote_side) {
  // As in `choose`: while these are held no handle of a region that is still registered goes away.
  std::optional<GatePass> pass;
  std::shared_lock<std::shared_mutex> remote_handles_stay;
  if (path.link) {
    pass.emplace(path.link->gate());
    remote_handles_stay = std::shared_lock(path.link->handles_mutex());
  }
  const std::shared_lock local_handles_stay(local_handles_mutex_);
  const bool open = !pass || static_cast<bool>(*pass);
  if (!open || !still_valid(*plan.local).ok() || !still_valid(*plan.remote).ok())
    local_side.regions = remote_side.regions = nullptr;
  headrace_prepare_v1 args{};
  args.struct_size = sizeof args;
  args.op = static_cast<std::int32_t>(plan.op);
  args.count = plan.count;
  args.bytes = plan.bytes;
  args.connection = open && path.link ? path.link->connection() : nullptr;
  args.local = &local_side;
  args.remote = &remote_side;
  args.grid = plan.grid ? &*plan.grid : nullptr;
  return path.backend->cost(args);
}

void Engine::request_ended(const RequestCore& core, Status status, std::uint64_t took_ns) {
  const RequestPlan& plan = core.plan();
  if (status.ok()) {
    counters_.done.add();
    counters_.request_ns.record(took_ns);
    counters_.pages.add(plan.count);
    (plan.op == Op::read ? counters_.read_bytes : counters_.written_bytes).add(plan.bytes);
  } else {
    (status.code == Code::canceled ? counters_.canceled : counters_.failed).add();
  }
  if (pending_revoke_count_.load() > 0) defer([this] { answer_revokes(); });
}

}  // namespace headrace::engine
