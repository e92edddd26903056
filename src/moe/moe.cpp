// SPDX-License-Identifier: Apache-2.0
// The public face: a window from an agent, the windows of the others mapped by it, and one rank over them, on
// CPUs or on a GPU.
#include "agent/fabric_options.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/fork_guard.hpp"
#include "base/names.hpp"
#include "moe/config.hpp"
#include "moe/device_member.hpp"
#include "moe/network.hpp"
#include "moe/open_moe.hpp"
#include "moe/rank.hpp"
#include "moe/way.hpp"
#include "moe/words.hpp"
#include "telemetry/nvtx.hpp"

#include <headrace/agent.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace {

struct MoERouting::State {
  std::optional<moe::Routing> routing;
  std::optional<moe::DeviceMember::Routing> on_device;  ///< instead of it
  std::shared_ptr<const void> owner;                    ///< of the MoE that made it
};

struct MoE::State {
  State(Agent& of, const MoEConfig& made_with, Region made, std::shared_ptr<std::byte> storage)
      : agent(of), config(made_with), region(std::move(made)), memory(std::move(storage)) {}
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// A way to and from ranks of other nodes, if there are any.
  Result<void> open_network();
  /// join, which leaves its reason in this rank's window if it fails.
  Result<void> join(std::span<const std::string> agents, std::chrono::nanoseconds timeout);
  Result<void> regroup(std::span<const std::string> agents, moe::Mask ranks,
                       std::chrono::nanoseconds timeout);
  /// Runs an operation, or half of one: on_host(Routing&) or on_device(DeviceMember::Routing&).
  template <class OnHost, class OnDevice>
  Result<void> run(std::string_view operation, MoERouting& routing, const OnHost& on_host,
                   const OnDevice& on_device);
  /// Whether the caller or an abort ends the wait of this call.
  [[nodiscard]] bool interrupted() const {
    return aborted.exchange(false) || (config.interrupted && config.interrupted());
  }
  /// The configuration of `rank`, which that interrupts.
  [[nodiscard]] MoEConfig rank_config();
  /// Before any lock: a thread of the parent may have held it when the process forked.
  [[nodiscard]] Result<void> not_forked() const;
  [[nodiscard]] Result<void> usable() const;
  /// The list of the last join or regroup; empty: it has not joined.
  [[nodiscard]] std::vector<std::string> agents() const;
  [[nodiscard]] Error refused(std::string_view operation, Error error) const {
    return std::move(error).within(
        fmt::format("rank {}, {} of {}", config.rank, operation, name_text(config.name)));
  }

  Agent& agent;
  const MoEConfig config;
  const ForkGuard fork_guard;
  const std::shared_ptr<const void> identity = std::make_shared<int>();
  Region region;
  std::shared_ptr<std::byte> memory;
  std::unique_ptr<moe::DeviceMember> device;  // null: on CPUs
  mutable std::atomic<bool> aborted{false};   // and not yet seen by a call
  const moe::Nodes nodes = moe::Nodes::of(config);
  std::optional<Region> way;                     // says where the window is
  std::unique_ptr<moe::Network> network;         // if there are several nodes
  std::vector<std::optional<Mapping>> mappings;  // of each rank; none of this one, and of other nodes
  mutable std::mutex mutex;                      // for all that follows
  std::optional<moe::Rank> rank;                 // on CPUs, once joined

 private:
  [[nodiscard]] Result<void> check_agents(std::span<const std::string> agents) const;
  Result<void> try_join(std::span<const std::string> agents, std::chrono::nanoseconds timeout);
  void tell_reason(const Error& error) const;
  /// Maps the windows of these ranks, those anew that have another one now, or finds the way to them.
  Result<void> map_members(std::span<const std::string> agents, moe::Mask ranks, Deadline deadline);
  Result<void> map_member(int peer, const std::string& name, Deadline deadline);
  [[nodiscard]] Result<void> add_far_again(int peer, const std::string& name, Deadline deadline) const;
  [[nodiscard]] Result<Mapping> map_again(int peer, const std::string& name, Deadline deadline) const;
  [[nodiscard]] bool is_current(int peer, const std::string& name) const;
  [[nodiscard]] std::function<bool(int)> is_lost() {
    return [this](int peer) { return !mappings[static_cast<std::size_t>(peer)]->alive(); };
  }
  [[nodiscard]] Result<Mapping> map_window(int peer, const std::string& name, Deadline deadline) const;
  [[nodiscard]] Result<Region> find_region(const std::string& name, const std::string& region_name,
                                           Deadline deadline) const;
  /// The same for the parts of windows that are on GPUs.
  Result<void> join_on_device(std::span<const std::string> agents, const std::vector<std::byte*>& heads,
                              Deadline deadline);
  /// The window of a rank of another node.
  [[nodiscard]] Result<void> add_far(int peer, const std::string& name, Deadline deadline) const;
  /// One of this node.
  [[nodiscard]] Result<void> add_near(int peer, const std::string& name, Deadline deadline,
                                      std::optional<Mapping>& mapped) const;
  [[nodiscard]] Result<void> check_window(int peer, const Mapping& mapping) const;
  /// Tells the others which list of agents this rank was given.
  void tell_list(const std::vector<std::byte*>& windows, std::uint64_t list) const;
  /// Refuses to go on if another rank was given another list.
  [[nodiscard]] Result<void> compare_lists();
  [[nodiscard]] std::uint64_t list_of(int peer) const;

  std::vector<std::optional<Mapping>> replaced_;  // whose windows the rank may still use
  std::vector<std::string> mapped_agents_;        // whose windows the mappings are
  std::uint64_t list_ = 0;
  bool lists_agree_ = false;  // those of all ranks
};

MoE::State::~State() {
  if (fork_guard.forked()) {
    static_cast<void>(device.release());   // the driver's objects are the parent's
    static_cast<void>(network.release());  // and so are sockets and threads
    return;
  }
  device.reset();
  network.reset();
  if (way) static_cast<void>(agent.deregister(way->id, std::chrono::seconds(1)));
  // A rank that is stopped does not answer; then the window stays until the agent ends.
  static_cast<void>(agent.deregister(region.id, std::chrono::seconds(1)));
}

Result<void> MoE::State::not_forked() const {
  if (!fork_guard.forked()) return {};
  return make_error(Code::invalid_argument,
                    "it was opened before this process was forked: open one of its own in the child");
}

Result<void> MoE::State::usable() const {
  if (!rank && !(device && device->joined()))
    return make_error(Code::invalid_argument, "it has not joined the other ranks: call join first");
  return {};
}

std::vector<std::string> MoE::State::agents() const {
  if (!usable()) return {};
  std::vector<std::string> names = mapped_agents_;
  names[static_cast<std::size_t>(config.rank)] = agent.name();  // regroup maps those of others alone
  return names;
}

MoEConfig MoE::State::rank_config() {
  MoEConfig made = config;
  made.interrupted = [this] { return interrupted(); };
  return made;
}

Result<void> MoE::State::check_agents(std::span<const std::string> agents) const {
  if (agents.size() != static_cast<std::size_t>(config.ranks))
    return make_error(Code::invalid_argument, "{} agents are given, expected one for each of {} ranks",
                      agents.size(), config.ranks);
  if (const std::string& own = agents[static_cast<std::size_t>(config.rank)]; own != agent.name())
    return make_error(
        Code::invalid_argument,
        "agents[{}] is {}, expected {}, the agent of this rank: give the agents in the order of "
        "the ranks, the same list on all ranks",
        config.rank, name_text(own), name_text(agent.name()));
  return {};
}

Result<void> MoE::State::join(std::span<const std::string> agents, std::chrono::nanoseconds timeout) {
  HEADRACE_TRY_VOID(not_forked());
  const std::scoped_lock lock(mutex);
  if (rank || (device && device->joined())) return make_error(Code::invalid_argument, "it has joined before");
  Result<void> joined = try_join(agents, timeout);
  const moe::Window own(memory.get(), moe::window_layout(config));
  joined ? own.tell(moe::WindowLayout::refused_at, 0) : tell_reason(joined.error());
  return joined;
}

/// The first one: others may read it now.
void MoE::State::tell_reason(const Error& error) const {
  const moe::Window own(memory.get(), moe::window_layout(config));
  char* const at = reinterpret_cast<char*>(own.at(moe::WindowLayout::reason_at));
  if (*at == '\0') error.message.copy(at, moe::WindowLayout::reason_bytes - 1);
  own.tell(moe::WindowLayout::refused_at, 1);
}

Result<void> MoE::State::try_join(std::span<const std::string> agents, std::chrono::nanoseconds timeout) {
  HEADRACE_TRY_VOID(check_agents(agents));
  const Deadline deadline = Deadline::after(timeout);
  std::vector<std::optional<Mapping>> mapped(agents.size());
  std::vector<std::byte*> windows;
  for (int peer = 0; peer < config.ranks; ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    windows.push_back(peer == config.rank ? memory.get() : nullptr);
    if (peer == config.rank) continue;
    const bool is_near =
        nodes.are_near(static_cast<std::uint32_t>(peer), static_cast<std::uint32_t>(config.rank));
    auto added =
        is_near ? add_near(peer, agents[at], deadline, mapped[at]) : add_far(peer, agents[at], deadline);
    if (!added)
      return std::move(added).error().within(fmt::format("rank {} (agent {})", peer, name_text(agents[at])));
    if (mapped[at]) windows.back() = mapped[at]->bytes().data();
  }
  list_ = moe::number_of_list(agents);
  tell_list(windows, list_);
  HEADRACE_TRY_VOID(compare_lists());
  if (device) device->leave_heads();
  mappings = std::move(mapped);
  mapped_agents_.assign(agents.begin(), agents.end());
  if (device) return join_on_device(agents, windows, deadline);
  rank.emplace(rank_config(), windows, is_lost(), network.get());
  std::optional<moe::Window> home;
  if (windows.front() != nullptr) home.emplace(windows.front(), moe::window_layout(config));
  if (network != nullptr)
    network->start({moe::mask_of_all(static_cast<std::uint32_t>(config.ranks)), 0, home, 0, 0});
  return {};
}

Result<void> MoE::State::join_on_device(std::span<const std::string> agents,
                                        const std::vector<std::byte*>& heads, Deadline deadline) {
  const auto interrupts = [this] { return interrupted(); };
  for (int peer = 0; peer < config.ranks; ++peer) {
    if (peer == config.rank) continue;
    const std::string& name = agents[static_cast<std::size_t>(peer)];
    const auto within = [&](Error error) {
      return std::move(error).within(fmt::format("rank {} (agent {})", peer, name_text(name)));
    };
    auto window = find_region(name, moe::DeviceMember::region_name(config), deadline);
    if (!window) return within(std::move(window).error());
    if (auto mapped = device->map(peer, name, window->id, deadline, interrupts); !mapped)
      return within(std::move(mapped).error());
  }
  return device->join(heads, deadline);
}

Result<void> MoE::State::open_network() {
  if (nodes.count() == 1) return {};
  FabricOptions options;
  HEADRACE_TRY(given, FabricOptionsOf::agent(agent));
  options.options = std::move(given);
  if (!config.nics.empty()) options.groups.push_back({.nics = config.nics});
  HEADRACE_TRY(bytes, config.window_bytes());
  HEADRACE_TRY(opened, moe::Network::open(config, {memory.get(), bytes}, options));
  network = std::move(opened);
  AllocateOptions said;
  said.registration.name = moe::way_name(config);
  said.registration.note = moe::way_text(config, network->way());
  HEADRACE_TRY(made, agent.allocate(moe::WindowLayout::page, said));
  way = std::move(made);
  return {};
}

Result<void> MoE::State::add_near(int peer, const std::string& name, Deadline deadline,
                                  std::optional<Mapping>& mapped) const {
  HEADRACE_TRY(mapping, map_window(peer, name, deadline));
  mapped = std::move(mapping);
  return {};
}

Result<void> MoE::State::add_far(int peer, const std::string& name, Deadline deadline) const {
  HEADRACE_TRY(said, find_region(name, moe::way_name(config), deadline));
  HEADRACE_TRY(way_there, moe::way_of(config, peer, said.note));
  const auto far = static_cast<std::uint32_t>(peer);
  HEADRACE_TRY_VOID(network->add(far, way_there));
  return network->reach(far, deadline, [this] { return interrupted(); });
}

Result<void> MoE::State::regroup(std::span<const std::string> agents, moe::Mask ranks,
                                 std::chrono::nanoseconds timeout) {
  HEADRACE_TRY_VOID(check_agents(agents));
  const std::scoped_lock lock(mutex);
  const Deadline deadline = Deadline::after(timeout);
  if (mappings.empty()) mappings.resize(agents.size()), mapped_agents_.resize(agents.size());
  HEADRACE_TRY_VOID(map_members(agents, ranks, deadline));
  std::vector<std::byte*> windows;  // also of ranks that leave, which are told
  for (const auto& mapping : mappings) windows.push_back(mapping ? mapping->bytes().data() : nullptr);
  windows[static_cast<std::size_t>(config.rank)] = memory.get();
  if (!rank) rank.emplace(rank_config(), windows, is_lost(), network.get());
  lists_agree_ = true;  // ranks that regroup have met
  const moe::Window own(memory.get(), moe::window_layout(config));
  own.tell(moe::WindowLayout::refused_at, 0);
  HEADRACE_TRY_VOID(rank->regroup(windows, ranks, deadline));
  replaced_.clear();
  return {};
}

Result<void> MoE::State::map_members(std::span<const std::string> agents, moe::Mask ranks,
                                     Deadline deadline) {
  for (int peer = 0; peer < config.ranks; ++peer) {
    const std::string& name = agents[static_cast<std::size_t>(peer)];
    if (peer == config.rank || (ranks >> peer & 1) == 0) continue;
    const bool is_near =
        nodes.are_near(static_cast<std::uint32_t>(peer), static_cast<std::uint32_t>(config.rank));
    auto found = is_near ? map_member(peer, name, deadline) : add_far_again(peer, name, deadline);
    if (!found)
      return std::move(found).error().within(fmt::format("rank {} (agent {})", peer, name_text(name)));
  }
  return {};
}

Result<void> MoE::State::map_member(int peer, const std::string& name, Deadline deadline) {
  if (is_current(peer, name)) return {};
  const auto at = static_cast<std::size_t>(peer);
  HEADRACE_TRY(mapping, map_again(peer, name, deadline));
  replaced_.push_back(std::exchange(mappings[at], std::move(mapping)));
  mapped_agents_[at] = name;
  return {};
}

/// The rank may be another process than the one that the agent knows: it is asked for until it is reached.
Result<void> MoE::State::add_far_again(int peer, const std::string& name, Deadline deadline) const {
  constexpr auto pause = std::chrono::milliseconds(10);
  const auto remaining = [&] { return std::chrono::nanoseconds(deadline.remaining_ns()); };
  while (true) {
    auto added = add_far(peer, name, Deadline::after(std::min(remaining(), config.wait_limit)));
    const bool is_other = !added && (added.code() == Code::invalid_argument ||
                                     added.code() == Code::corrupt || added.code() == Code::not_supported);
    if (added || is_other || deadline.expired()) return added;
    static_cast<void>(agent.find(name, remaining()));
    std::this_thread::sleep_for(pause);
  }
}

/// Whether the window of a rank is mapped. While a mapping lives, its agent has no other one of this name.
bool MoE::State::is_current(int peer, const std::string& name) const {
  const auto& mapping = mappings[static_cast<std::size_t>(peer)];
  return mapping && mapping->alive() && mapped_agents_[static_cast<std::size_t>(peer)] == name;
}

/// What the agent knows of the rank may be older than that: it is asked for again.
Result<Mapping> MoE::State::map_again(int peer, const std::string& name, Deadline deadline) const {
  constexpr auto pause = std::chrono::milliseconds(10);
  constexpr int looks_between = 10;  // of those whether the caller is interrupted
  for (int look = 1;; ++look) {
    auto mapping = map_window(peer, name, deadline);
    const bool may_come =
        !mapping && (mapping.code() == Code::peer_lost || mapping.code() == Code::not_found ||
                     mapping.code() == Code::timed_out);
    if (!may_come || deadline.expired()) return mapping;
    if (look % looks_between == 0 && interrupted())
      return make_error(Code::canceled, "it was interrupted by its caller");
    static_cast<void>(agent.find(name, std::chrono::nanoseconds(deadline.remaining_ns())));
    std::this_thread::sleep_for(pause);
  }
}

void MoE::State::tell_list(const std::vector<std::byte*>& windows, std::uint64_t list) const {
  const moe::WindowLayout layout = moe::window_layout(config);
  const std::uint64_t at =
      layout.words_at(static_cast<std::uint32_t>(config.rank)) + offsetof(moe::PeerWords, agents);
  for (std::uint32_t peer = 0; peer < windows.size(); ++peer)
    if (windows[peer] != nullptr)
      moe::Window(windows[peer], layout).tell(at, list);
    else
      network->far(peer)->signal(moe::Signal::Kind::list, list);
}

std::uint64_t MoE::State::list_of(int peer) const {
  const moe::WindowLayout layout = moe::window_layout(config);
  const std::uint64_t at =
      layout.words_at(static_cast<std::uint32_t>(peer)) + offsetof(moe::PeerWords, agents);
  return moe::Window(memory.get(), layout).load(at);
}

/// A rank tells before it compares, so of two ranks at least one sees that they differ when it joins.
Result<void> MoE::State::compare_lists() {
  if (lists_agree_) return {};
  bool agree = true;
  for (int peer = 0; peer < config.ranks; ++peer) {
    const std::uint64_t theirs = list_of(peer);
    agree = agree && theirs == list_;
    if (theirs == 0 || theirs == list_) continue;
    return make_error(
        Code::invalid_argument,
        "rank {} was given another list of agents than rank {}: give all ranks the same list in join", peer,
        config.rank);
  }
  lists_agree_ = agree;
  return {};
}

Result<Mapping> MoE::State::map_window(int peer, const std::string& name, Deadline deadline) const {
  HEADRACE_TRY(window, find_region(name, config.name, deadline));
  HEADRACE_TRY(mapping, agent.map(name, window.id, std::chrono::nanoseconds(deadline.remaining_ns()), -1,
                                  [this] { return interrupted(); }));
  HEADRACE_TRY_VOID(check_window(peer, mapping));
  return mapping;
}

/// From the metadata that the agent has, else from its store.
Result<Region> MoE::State::find_region(const std::string& name, const std::string& region_name,
                                       Deadline deadline) const {
  constexpr auto pause = std::chrono::milliseconds(10);
  constexpr int looks_between = 10;  // of those whether the caller is interrupted
  for (int look = 1;; ++look) {
    auto window = agent.peer_region(name, region_name);
    if (window || window.code() != Code::not_found) return window;
    const auto found = agent.find(name, std::chrono::nanoseconds(deadline.remaining_ns()));
    if (found.code() == Code::invalid_argument)  // no store
      return make_error(
          Code::not_found,
          "its window {} is not known: import the metadata of its agent, made after it has opened, "
          "or give the agents a store",
          name_text(region_name));
    if (deadline.expired())
      return make_error(
          Code::timed_out,
          "its window {} is not in the store: has it opened, and published, or has it ended with "
          "an error? Look at what it printed",
          name_text(region_name));
    if (look % looks_between == 0 && interrupted())
      return make_error(Code::canceled, "it was interrupted by its caller");
    std::this_thread::sleep_for(pause);
  }
}

Result<void> MoE::State::check_window(int peer, const Mapping& mapping) const {
  const std::span<std::byte> bytes = mapping.bytes();
  if (bytes.size() < moe::WindowLayout::page)
    return make_error(Code::corrupt, "its window has {} bytes", bytes.size());
  std::string theirs(reinterpret_cast<const char*>(bytes.data()) + moe::WindowLayout::config_at,
                     moe::WindowLayout::config_bytes);
  theirs.resize(std::min(theirs.find('\0'), theirs.size()));
  HEADRACE_TRY_VOID(moe::compare_configs(config.rank, moe::config_text(config), peer, theirs));
  HEADRACE_TRY_VOID(moe::check_window_rank(peer, theirs));
  const std::uint64_t expected = moe::region_bytes(config);
  if (bytes.size() >= expected) return {};
  return make_error(Code::corrupt, "its window has {} bytes, expected {}", bytes.size(), expected);
}

template <class OnHost, class OnDevice>
Result<void> MoE::State::run(std::string_view operation, MoERouting& routing, const OnHost& on_host,
                             const OnDevice& on_device) {
  if (auto here = not_forked(); !here) return refused(operation, std::move(here).error());
  const nvtx::CallRange range("moe", operation);
  const std::scoped_lock lock(mutex);
  Result<void> done = usable();
  if (done && routing.state_->owner != identity)
    done = make_error(Code::invalid_argument,
                      "the routing was made by another MoE: use new_routing of this one");
  if (done) done = compare_lists();
  if (done) done = device ? on_device(*routing.state_->on_device) : on_host(*routing.state_->routing);
  if (done) return done;
  return refused(operation, std::move(done).error());
}

std::int64_t MoERouting::tokens() const {
  return state_->routing ? static_cast<std::int64_t>(state_->routing->tokens()) : given();
}

std::int64_t MoERouting::given() const {
  return static_cast<std::int64_t>(state_->routing ? state_->routing->given
                                                   : state_->on_device->memory.given);
}

MoE::MoE(std::unique_ptr<State> state) : state_(std::move(state)) {}
MoE::~MoE() = default;
MoE::MoE(MoE&&) noexcept = default;
MoE& MoE::operator=(MoE&&) noexcept = default;

Result<MoE> MoE::open(Agent& agent, const MoEConfig& config) {
  static auto& gpus = *new gpu::LoadedKernels(gpu::GpuSource::installed());  // to the end of the process
  return moe::open_moe(agent, config, gpus);
}

Result<MoE> moe::open_moe(Agent& agent, const MoEConfig& config, gpu::LoadedKernels& gpus) {
  HEADRACE_TRY_VOID(config.check());
  nvtx::load();
  std::unique_ptr<DeviceMember> device;
  if (config.device >= 0) {  // before the head: a rank that sees that finds both
    HEADRACE_TRY(member, DeviceMember::open(agent, config, gpus));
    device = std::move(member);
  }
  AllocateOptions options;
  options.registration.name = config.name;
  HEADRACE_TRY(region, agent.allocate(region_bytes(config), options));
  HEADRACE_TRY(memory, agent.storage(region.id));
  const std::string text = window_text(config, device ? device->gpu() : std::string());
  std::memcpy(memory.get() + WindowLayout::config_at, text.c_str(), text.size() + 1);
  auto state = std::make_unique<MoE::State>(agent, config, std::move(region), std::move(memory));
  state->device = std::move(device);
  if (auto opened = state->open_network(); !opened) return state->refused("open", std::move(opened).error());
  return MoE(std::move(state));
}

Result<void> MoE::join(std::span<const std::string> agents, std::chrono::nanoseconds timeout) {
  auto joined = state_->join(agents, timeout);
  if (joined) return joined;
  return state_->refused("join", std::move(joined).error());
}

const MoEConfig& MoE::config() const { return state_->config; }

std::vector<std::string> MoE::agents() const {
  if (state_->fork_guard.forked()) return {};
  const std::scoped_lock lock(state_->mutex);
  return state_->agents();
}

Result<MoERouting> MoE::new_routing() const {
  if (auto here = state_->not_forked(); !here) return state_->refused("new_routing", std::move(here).error());
  const std::scoped_lock lock(state_->mutex);
  if (auto usable = state_->usable(); !usable)
    return state_->refused("new_routing", std::move(usable).error());
  auto made = std::make_shared<MoERouting::State>();
  made->owner = state_->identity;
  if (state_->rank) {
    made->routing.emplace(state_->rank->new_routing());
  } else {
    auto routing = state_->device->new_routing();
    if (!routing) return state_->refused("new_routing", std::move(routing).error());
    made->on_device.emplace(*std::move(routing));
  }
  return MoERouting(std::move(made));
}

Result<Tensor> MoE::new_tensor(DType dtype, const Shape& shape) const {
  return state_->device ? state_->device->new_tensor(dtype, shape) : Tensor::zeros(dtype, shape);
}

Result<Tensor> MoE::new_host_tensor(DType dtype, const Shape& shape) const {
  return state_->device ? state_->device->new_host_tensor(dtype, shape) : Tensor::zeros(dtype, shape);
}

Result<void> MoE::dispatch(const MoETokens& tokens, const MoERows& rows, MoERouting& routing, void* stream) {
  return state_->run(
      "dispatch", routing, [&](moe::Routing& of) { return state_->rank->dispatch(tokens, rows, of); },
      [&](moe::DeviceMember::Routing& of) {
        return state_->device->dispatch(tokens, rows, of, moe::Halves::both,
                                        static_cast<cuda::Stream>(stream));
      });
}

Result<void> MoE::dispatch_send(const MoETokens& tokens, MoERouting& routing, void* stream) {
  return state_->run(
      "dispatch_send", routing, [&](moe::Routing& of) { return state_->rank->dispatch_send(tokens, of); },
      [&](moe::DeviceMember::Routing& of) {
        return state_->device->dispatch(tokens, {}, of, moe::Halves::send, static_cast<cuda::Stream>(stream));
      });
}

Result<void> MoE::dispatch_receive(const MoERows& rows, MoERouting& routing, void* stream) {
  return state_->run(
      "dispatch_receive", routing, [&](moe::Routing& of) { return state_->rank->dispatch_receive(rows, of); },
      [&](moe::DeviceMember::Routing& of) {
        return state_->device->dispatch({}, rows, of, moe::Halves::receive,
                                        static_cast<cuda::Stream>(stream));
      });
}

Result<void> MoE::combine(const MoEResults& results, const MoESums& sums, MoERouting& routing, void* stream) {
  return state_->run(
      "combine", routing, [&](moe::Routing& of) { return state_->rank->combine(results, sums, of); },
      [&](moe::DeviceMember::Routing& of) {
        return state_->device->combine(results, sums, of, moe::Halves::both,
                                       static_cast<cuda::Stream>(stream));
      });
}

Result<void> MoE::combine_send(const MoEResults& results, MoERouting& routing, void* stream) {
  return state_->run(
      "combine_send", routing, [&](moe::Routing& of) { return state_->rank->combine_send(results, of); },
      [&](moe::DeviceMember::Routing& of) {
        return state_->device->combine(results, {}, of, moe::Halves::send, static_cast<cuda::Stream>(stream));
      });
}

Result<void> MoE::combine_receive(const MoESums& sums, MoERouting& routing, void* stream) {
  return state_->run(
      "combine_receive", routing, [&](moe::Routing& of) { return state_->rank->combine_receive(sums, of); },
      [&](moe::DeviceMember::Routing& of) {
        return state_->device->combine({}, sums, of, moe::Halves::receive, static_cast<cuda::Stream>(stream));
      });
}

Result<void> MoE::combine_memory(MoERouting& routing, std::span<MoEWindowRows> of_ranks, void* stream) {
  return state_->run(
      "combine_memory", routing, [&](moe::Routing& of) { return state_->rank->combine_memory(of, of_ranks); },
      [&](moe::DeviceMember::Routing& of) {
        return state_->device->combine_memory(of_ranks, of, static_cast<cuda::Stream>(stream));
      });
}

Result<void> MoE::regroup(std::span<const std::string> agents, std::uint64_t ranks,
                          std::chrono::nanoseconds timeout) {
  if (auto here = state_->not_forked(); !here) return state_->refused("regroup", std::move(here).error());
  const int own = state_->config.rank;
  const std::uint64_t unknown = ranks & ~moe::mask_of_all(static_cast<std::uint32_t>(state_->config.ranks));
  Result<void> done;
  if (state_->device)
    done = make_error(Code::not_supported,
                      "windows in memory of GPUs keep their ranks: open a new MoE on all ranks that go on");
  else if (unknown != 0)
    done = make_error(Code::invalid_argument, "ranks names rank {}, expected 0 to {}",
                      std::countr_zero(unknown), state_->config.ranks - 1);
  else if ((ranks >> own & 1) == 0)
    done =
        make_error(Code::invalid_argument,
                   "ranks leaves out rank {}, which is this one: a rank that leaves does not call it", own);
  else
    done = state_->regroup(agents, ranks, timeout);
  if (done) return done;
  return state_->refused("regroup", std::move(done).error());
}

std::uint64_t MoE::active() const {
  if (state_->fork_guard.forked()) return 0;
  const std::scoped_lock lock(state_->mutex);
  if (state_->device) return state_->device->active();
  if (!state_->rank) return moe::mask_of_all(static_cast<std::uint32_t>(state_->config.ranks));
  return state_->rank->active();
}

Result<void> MoE::set_active(std::uint64_t ranks, void* stream) {
  if (auto here = state_->not_forked(); !here) return state_->refused("set_active", std::move(here).error());
  const std::scoped_lock lock(state_->mutex);
  Result<void> done = state_->usable();
  if (!done) return state_->refused("set_active", std::move(done).error());
  const int own = state_->config.rank;
  const std::uint64_t unknown = ranks & ~moe::mask_of_all(static_cast<std::uint32_t>(state_->config.ranks));
  const std::uint64_t back = ranks & ~(state_->device ? state_->device->active() : state_->rank->active());
  if (unknown != 0)
    return make_error(Code::invalid_argument, "set_active names rank {}, expected 0 to {}",
                      std::countr_zero(unknown), state_->config.ranks - 1);
  if ((ranks >> own & 1) == 0)
    return make_error(Code::invalid_argument, "set_active leaves out rank {}, which is this one", own);
  if (back != 0)
    return make_error(Code::not_supported,
                      "set_active names rank {}, which was left out: all ranks call regroup to take it back",
                      std::countr_zero(back));
  done = state_->device ? state_->device->set_active(ranks, static_cast<cuda::Stream>(stream))
                        : state_->rank->set_active(ranks);
  if (done) return done;
  return state_->refused("set_active", std::move(done).error());
}

std::optional<MoEFailure> MoE::failure() const {
  if (state_->fork_guard.forked()) return std::nullopt;
  const std::scoped_lock lock(state_->mutex);
  if (state_->device) return state_->device->failure();
  return state_->rank ? state_->rank->failure() : std::nullopt;
}

Result<void> MoE::check() {
  if (auto here = state_->not_forked(); !here) return state_->refused("check", std::move(here).error());
  const std::scoped_lock lock(state_->mutex);
  Result<void> done = state_->usable();
  if (done && state_->device) done = state_->device->check();
  if (done) return done;
  return state_->refused("check", std::move(done).error());
}

void MoE::abort() {
  if (state_->fork_guard.forked()) return;
  state_->aborted.store(true);  // also for a join that is on its way to memory of GPUs
  if (state_->device) state_->device->abort();
}

}  // namespace headrace
