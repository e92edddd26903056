// SPDX-License-Identifier: Apache-2.0
// The public face of the agent over the engine. It wires the parts together; the rules are in the rooms
// below.
#include <headrace/agent.hpp>

#include "agent/agent_impl.hpp"
#include "agent/core_options.hpp"
#include "agent/unknown_variables.hpp"
#include "base/names.hpp"
#include "base/unix_socket.hpp"
#include "base/utf8.hpp"
#include "gpu/near_node.hpp"
#include "memory/allocation.hpp"
#include "memory/page_list.hpp"

#include <algorithm>

namespace headrace {
namespace {

constexpr std::size_t longest_agent_name = 255;

std::vector<std::pair<std::string, std::string>> settings_of(const std::vector<OptionInfo>& options,
                                                             const std::string& backend) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const OptionInfo& option : options)
    settings.emplace_back(option.name.substr(backend.size() + 1), option.value);
  return settings;
}

/// A backend that takes the secret and listens opens a port of its own.
Result<void> check_port(const Secret& secret, const std::string& backend,
                        const std::vector<OptionInfo>& options) {
  const auto option = [&](const char* name) {
    return std::ranges::find(options, backend + "." + name, &OptionInfo::name);
  };
  if (option("auth_token") == options.end() || option("listen") == options.end()) return {};
  return secret.check_port(fmt::format("backend {} (option {}.listen)", backend, backend),
                           option("listen")->value, local_setting(backend));
}

Result<void> open_backend(engine::Engine& engine, const BackendSet& set, const engine::FoundBackend& found,
                          const std::map<std::string, std::string>& options) {
  if (found.table == nullptr) return Error{found.code, found.refusal};
  HEADRACE_TRY(resolved, set.resolve(*found.table, options));
  HEADRACE_TRY_VOID(check_port(set.secret(), found.name, resolved));
  return engine.add_backend(found, settings_of(resolved, found.name));
}

Result<void> open_local(engine::Engine& engine, BackendSet& set) {
  return open_backend(engine, set, set.plugins().find(std::string(engine::local_backend)), {});
}

/// Opens the requested backends, all of which must open; if none was requested, every backend that opens. The
/// backend of moves inside the agent comes last.
Result<void> open_backends(engine::Engine& engine, BackendSet& set, const std::vector<std::string>& asked) {
  const Log log(Logger::process_default(), "agent");
  if (!asked.empty()) {
    for (const std::string& name : asked) {
      if (name == engine::local_backend) continue;
      if (auto opened = open_backend(engine, set, set.plugins().find(name), {}); !opened)
        return std::move(opened).error();
    }
    return open_local(engine, set);
  }
  HEADRACE_TRY(all, set.plugins().find_all());
  for (const engine::FoundBackend& found : all) {
    if (found.table == nullptr || found.name == engine::local_backend || found.name == engine::model_backend)
      continue;  // the test backend: only by name
    if (auto opened = open_backend(engine, set, found, {}); !opened) {
      if (opened.code() == Code::invalid_argument) return std::move(opened).error();
      log.info("backend {} does not open here: {}", found.name, opened.error().message);
    }
  }
  return open_local(engine, set);
}

/// The engine's settings from the agent's options, except the runtime folder, which must be created as well.
Result<engine::EngineSettings> engine_settings(std::string name, const Options& core) {
  engine::EngineSettings settings;
  settings.name = std::move(name);
  HEADRACE_TRY(capacity, core.integer("inbox_capacity"));
  if (capacity < 1)
    return make_error(Code::invalid_argument, "option inbox_capacity is {}: at least 1 is needed", capacity);
  settings.inbox.messages = static_cast<std::size_t>(capacity);
  HEADRACE_TRY(inbox_bytes, core.bytes("inbox_bytes"));
  settings.inbox.bytes = inbox_bytes;
  HEADRACE_TRY(check, core.boolean("check"));
  settings.check_overlap = check;
  HEADRACE_TRY(strangers, core.integer("max_strangers"));
  if (strangers < 1)
    return make_error(Code::invalid_argument, "option max_strangers is {}: at least 1 is needed", strangers);
  settings.peers.strangers = static_cast<std::size_t>(strangers);
  HEADRACE_TRY(metadata_bytes, core.bytes("metadata_bytes"));
  settings.peers.sent_bytes = metadata_bytes;
  HEADRACE_TRY(reserved, core.integer("reserved_descriptors"));
  if (reserved < 0)
    return make_error(Code::invalid_argument, "option reserved_descriptors is {}: at least 0 is needed",
                      reserved);
  settings.reserved_descriptors = static_cast<std::uint64_t>(reserved);
  return settings;
}

/// Null for an empty address.
Result<std::unique_ptr<metadata::Store>> store_at(const std::string& address, const Options& core) {
  if (address.empty()) return std::unique_ptr<metadata::Store>();
  HEADRACE_TRY(options, metadata::StoreOptions::read(core));
  return metadata::open_store(address, options, Logger::process_default());
}

/// Every port that the agent has opened.
std::vector<OpenPort> open_ports(const engine::Engine& engine, const Exchange& exchange) {
  std::vector<OpenPort> ports;
  for (const engine::BackendInstance* instance : engine.backends().all())
    std::ranges::move(data_ports(instance->name(), instance->ports()), std::back_inserter(ports));
  if (!exchange.listen_address().empty()) ports.push_back(metadata_port(exchange.listen_address()));
  return ports;
}

/// The options of the agent and of its backends.
std::vector<OptionTable> option_tables(const engine::Engine& engine, BackendSet& set) {
  std::vector<OptionTable> tables{{"", {core_options.begin(), core_options.end()}}};
  for (const engine::BackendInstance* instance : engine.backends().all())
    tables.push_back({instance->name(), set.rows(instance->table())});
  return tables;
}

/// What the log says of an agent that is open.
void tell_opened(const Agent::Impl& agent) {
  const Log log(Logger::process_default(), "agent");
  std::vector<std::string> backends, listening;
  for (const engine::BackendInstance* instance : agent.engine->backends().all())
    backends.push_back(instance->name());
  const std::vector<OpenPort> ports = open_ports(*agent.engine, *agent.exchange);
  for (const OpenPort& port : ports) listening.push_back(port.what + " " + port.address);
  log.info("agent {} is open: backends {}; ports {}", agent.engine->name(), fmt::join(backends, ", "),
           listening.empty() ? "none" : fmt::format("{}", fmt::join(listening, ", ")));
  warn_of_unknown_options(log, option_tables(*agent.engine, *agent.set));
  warn_of_open_ports(log, agent.set->meeting(), agent.set->secret(), ports);
}

Result<std::string> runtime_folder(const Options& core) {
  HEADRACE_TRY(configured, core.text("runtime_dir"));
  return runtime_dir(configured, environment_variable("XDG_RUNTIME_DIR"));
}

}  // namespace

Agent::Agent(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Agent::~Agent() = default;
Agent::Agent(Agent&&) noexcept = default;
Agent& Agent::operator=(Agent&&) noexcept = default;

// By value, as the public interface has it.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
Result<Agent> Agent::open(std::string name, AgentOptions options) {
  if (!is_utf8(name))
    return make_error(Code::invalid_argument, "an agent's name must be UTF-8, and this one is not");
  if (has_control_character(name))
    return make_error(Code::invalid_argument, "an agent's name has no control characters, and {} has one",
                      name_text(name));
  if (name.empty() || name.size() > longest_agent_name) {
    return make_error(Code::invalid_argument, "an agent's name has 1 to {} bytes, this one has {}",
                      longest_agent_name, name.size());
  }
  const std::string context = "open agent " + name;
  HEADRACE_TRY(set, BackendSet::open(options.options));
  HEADRACE_TRY(settings, engine_settings(name, set->core()));
  HEADRACE_TRY(folder, runtime_folder(set->core()));
  settings.runtime_dir = std::move(folder);
  HEADRACE_TRY(engine, engine::Engine::open(std::move(settings), Logger::process_default()));
  auto impl = std::make_shared<Impl>(std::move(engine), std::move(set));

  HEADRACE_TRY(by_default, impl->set->core().text("store"));
  const std::string& store_address = options.store.empty() ? by_default : options.store;
  impl->set->meet_at(Meeting::at(options.listen, store_address));
  HEADRACE_TRY(by_option, impl->set->core().list("backends"));
  const std::vector<std::string>& asked = options.backends.empty() ? by_option : options.backends;
  if (auto opened = open_backends(*impl->engine, *impl->set, asked); !opened)
    return std::move(opened).error().within(context);
  if (auto names = impl->set->check_names({}); !names) return std::move(names).error().within(context);
  auto store = store_at(store_address, impl->set->core());
  if (!store) return std::move(store).error().within(context);
  auto exchange = Exchange::open(*impl->engine, options.listen, std::move(*store), impl->set->core(),
                                 impl->set->secret());
  if (!exchange) return std::move(exchange).error().within(context);
  impl->exchange = std::move(*exchange);
  tell_opened(*impl);
  return Agent(std::move(impl));
}

void Agent::close() {
  const std::shared_ptr<Impl> kept = impl_;  // it is not destroyed beside its close
  kept->close();
}

const std::string& Agent::name() const { return impl_->engine->name(); }
std::uint64_t Agent::incarnation() const { return impl_->engine->incarnation(); }

// --- memory

Result<Region> Agent::register_memory(const MemoryRange& range, const RegisterOptions& options) {
  HEADRACE_TRY(regions, impl_->engine->regions().add({&range, 1}, options, {}));
  return std::move(regions.front());
}

Result<std::vector<Region>> Agent::register_memory(std::span<const MemoryRange> ranges,
                                                   const RegisterOptions& options) {
  return impl_->engine->regions().add(ranges, options, {});
}

Result<void> Agent::deregister(RegionId region, Timeout timeout) {
  return impl_->engine->regions().deregister({&region, 1}, timeout);
}
Result<void> Agent::deregister(std::span<const RegionId> regions, Timeout timeout) {
  return impl_->engine->regions().deregister(regions, timeout);
}

namespace {

/// The NUMA node for an allocation; -1: any.
Result<int> node_for(const AllocateOptions& options) {
  if (options.near_gpu < -1)
    return make_error(Code::invalid_argument, "there is no GPU {}: they count from 0, and -1 means none",
                      options.near_gpu);
  if (options.numa_node != -1 || options.near_gpu == -1) return options.numa_node;
  HEADRACE_TRY(driver, cuda::load_driver());
  HEADRACE_TRY(node, gpu::node_near(driver, options.near_gpu));
  return node ? static_cast<int>(*node) : -1;
}

}  // namespace

Result<Region> Agent::allocate(std::size_t length_bytes, const AllocateOptions& options) {
  HEADRACE_TRY_VOID(impl_->engine->usable());
  if (options.kind != MemoryKind::dram)
    return make_error(Code::not_supported, "this version allocates dram only, not {}",
                      kind_name(options.kind));
  auto node = node_for(options);
  if (!node)
    return std::move(node).error().within(
        fmt::format("allocate {} bytes near GPU {}", length_bytes, options.near_gpu));
  auto made = Allocation::make(length_bytes, *node, options.huge_pages, options.writable);
  // near_gpu is only a preference: that node may have no free memory, and containers may forbid to choose
  // one.
  if (!made && options.numa_node == -1 && *node != -1)
    made = Allocation::make(length_bytes, -1, options.huge_pages, options.writable);
  if (!made) return std::move(made).error();
  auto allocation = std::make_shared<Allocation>(std::move(*made));
  MemoryRange range;
  range.address = allocation->bytes().data();
  range.length_bytes = length_bytes;
  range.writable = options.writable;
  const int fd = allocation->fd();
  HEADRACE_TRY(regions, impl_->engine->regions().add({&range, 1}, options.registration, {fd, allocation}));
  return std::move(regions.front());
}

Result<std::shared_ptr<std::byte>> Agent::storage(RegionId region) const {
  return impl_->engine->regions().storage(region);
}

Result<Mapping> Agent::map(std::string_view peer, RegionId region, Timeout timeout, int device,
                           const std::function<bool()>& interrupted) {
  HEADRACE_TRY(state, impl_->engine->mappings().map(peer, region, timeout, device, interrupted));
  return Mapping(std::move(state));
}

std::vector<Region> Agent::regions() const { return impl_->engine->regions().list(); }

// --- peers and metadata

Result<std::string> Agent::export_metadata(const ExportOptions& options) const {
  HEADRACE_TRY(metadata, impl_->engine->regions().exported(options));
  return wire::encode(metadata);
}

std::uint64_t Agent::metadata_version() const { return impl_->engine->regions().version(); }

Result<ImportReport> Agent::import_metadata(std::string_view bytes) {
  HEADRACE_TRY_VOID(impl_->engine->usable());
  auto metadata = wire::decode(bytes);
  if (!metadata) return std::move(metadata).error().within("import metadata");
  return impl_->engine->peers().import(std::move(*metadata));
}

std::vector<PeerInfo> Agent::peers() const { return impl_->engine->peers().list(); }
Result<std::vector<Region>> Agent::peer_regions(std::string_view peer) const {
  return impl_->engine->peers().regions_of(peer);
}
Result<Region> Agent::peer_region(std::string_view peer, std::string_view region_name) const {
  return impl_->engine->peers().region_of(peer, region_name);
}
Result<void> Agent::connect(std::string_view peer, Timeout timeout, const std::vector<std::string>& backends,
                            const std::function<bool()>& interrupted) {
  return impl_->engine->peers().connect(peer, timeout, backends, interrupted);
}
Result<void> Agent::forget(std::string_view peer) { return impl_->engine->peers().forget(peer); }

// --- pages and requests

namespace {

Result<PageList> list_of(Result<engine::PageListState> state) {
  if (!state) return std::move(state).error();
  return PageList(std::move(*state));
}

}  // namespace

Result<PageList> Agent::prepare(const PageSpec& pages) {
  return list_of(impl_->engine->lists().prepare(engine::Side::local(), pages));
}
Result<PageList> Agent::prepare(std::string_view peer, const PageSpec& pages) {
  return list_of(impl_->engine->lists().prepare(engine::Side::remote(peer), pages));
}

std::uint64_t PageList::count() const { return state_->columns.count; }
std::uint64_t PageList::bytes() const { return state_->columns.bytes; }
std::string_view PageList::peer() const { return state_->peer; }

namespace {

/// Shared by the copies of one Request. The last copy cancels what is in flight, which lives on until its
/// memory is quiet.
Request handle_of(std::shared_ptr<engine::Transfer> transfer) {
  engine::Transfer* const address = transfer.get();
  return Request(std::shared_ptr<engine::Transfer>(
      address, [held = std::move(transfer)](engine::Transfer* last) { last->cancel(); }));
}

/// The part's pages in order.
Result<void> take_all(engine::RequestPlan& plan) {
  if (plan.local->columns.count != plan.remote->columns.count)
    return make_error(
        Code::invalid_argument,
        "{} local pages and {} remote pages: page i goes with page i, so the counts must be equal",
        plan.local->columns.count, plan.remote->columns.count);
  plan.count = plan.local->columns.count;
  return {};
}

std::size_t count_of(const PageNumbers& numbers) {
  const auto size = [](const auto& given) -> std::size_t {
    if constexpr (requires { given.size(); })
      return given.size();
    else
      return 0;
  };
  return std::visit(size, numbers.numbers());
}

/// Copies the numbers into a vector of the pool.
Result<std::vector<std::uint32_t>> copy_numbers(IndexPool& pool, const PageNumbers& numbers,
                                                std::uint64_t pages, const char* side) {
  std::vector<std::uint32_t> copy = pool.take(count_of(numbers));
  const auto fill = [&](const auto& given) -> Result<void> {
    if constexpr (requires { given.size(); })
      return copy_indices(given, pages, side, copy);
    else
      return {};
  };
  HEADRACE_TRY_VOID(std::visit(fill, numbers.numbers()));
  return copy;
}

/// The part's pages by their numbers.
Result<void> take_some(IndexPool& pool, const RequestPart& part, engine::RequestPlan& plan) {
  plan.count = count_of(part.local_index);
  if (plan.count != count_of(part.remote_index))
    return make_error(
        Code::invalid_argument,
        "{} local indices and {} remote indices: page i goes with page i, so the counts must be equal",
        plan.count, count_of(part.remote_index));
  if (plan.count == 0)
    return make_error(Code::invalid_argument,
                      "the request has no pages: give at least one index on each side");
  HEADRACE_TRY(local, copy_numbers(pool, part.local_index, plan.local->columns.count, "local"));
  plan.local_index = std::move(local);
  HEADRACE_TRY(remote, copy_numbers(pool, part.remote_index, plan.remote->columns.count, "remote"));
  plan.remote_index = std::move(remote);
  return {};
}

Result<engine::RequestPlan> plan_of(IndexPool& pool, Op op, const RequestPart& part,
                                    const RequestOptions& options) {
  engine::RequestPlan plan;
  plan.op = op;
  plan.local = part.local.state();
  plan.remote = part.remote.state();
  plan.backends = options.backends;
  plan.timeout = options.timeout;
  const bool all = part.local_index.all() && part.remote_index.all();
  HEADRACE_TRY_VOID(all ? take_all(plan) : take_some(pool, part, plan));
  return plan;
}

}  // namespace

Result<Request> Agent::make_request(Op op, std::span<const RequestPart> parts,
                                    const RequestOptions& options) {
  HEADRACE_TRY_VOID(impl_->engine->usable());
  engine::Requests& requests = impl_->engine->requests();
  if (parts.size() == 1) {
    HEADRACE_TRY(plan, plan_of(requests.index_pool(), op, parts.front(), options));
    HEADRACE_TRY(core, requests.make(std::move(plan)));
    return handle_of(std::move(core));
  }
  std::vector<engine::RequestPlan> plans;
  for (const RequestPart& part : parts) {
    auto plan = plan_of(requests.index_pool(), op, part, options);
    if (!plan)
      return std::move(plan).error().within(fmt::format("part {} of {}", plans.size(), parts.size()));
    plans.push_back(std::move(*plan));
  }
  HEADRACE_TRY(transfer, requests.make_of_parts(std::move(plans)));
  return handle_of(std::move(transfer));
}

namespace {

/// A status of a request as a result. The request has the sentence, if the status is that of its last post.
Result<void> result_of(const Request& request, Status status) {
  if (status.ok()) return {};
  Error error = request.error();
  if (error.code == status.code) return error;
  return Error{status.code, std::string(code_sentence(status.code)), status.page};
}

}  // namespace

Result<Request> Agent::post(Op op, std::string_view peer, const PageSpec& local, const PageSpec& remote,
                            const PostOptions& options, const RequestOptions& request) {
  HEADRACE_TRY(ours, prepare(local));
  HEADRACE_TRY(theirs, prepare(peer, remote));
  HEADRACE_TRY(made, make_request(op, {std::move(ours), std::move(theirs)}, request));
  HEADRACE_TRY_VOID(result_of(made, made.post(options)));
  return made;
}

Result<Request> Agent::read(std::string_view peer, const PageSpec& local, const PageSpec& remote,
                            const PostOptions& options, const RequestOptions& request) {
  HEADRACE_TRY(posted, post(Op::read, peer, local, remote, options, request));
  HEADRACE_TRY_VOID(result_of(posted, posted.wait()));
  return posted;
}

Result<Request> Agent::write(std::string_view peer, const PageSpec& local, const PageSpec& remote,
                             const PostOptions& options, const RequestOptions& request) {
  HEADRACE_TRY(posted, post(Op::write, peer, local, remote, options, request));
  HEADRACE_TRY_VOID(result_of(posted, posted.wait()));
  return posted;
}

// --- counters

Result<Counter> Agent::counter(Immediate immediate) {
  const std::shared_ptr<engine::Engine>& engine = impl_->engine;
  HEADRACE_TRY(count, engine->arrivals().open(immediate));
  return Counter({engine, &engine->arrivals()}, std::move(count), immediate);
}

// --- notifications

Result<void> Agent::notify(std::string_view peer, std::string_view payload) {
  return impl_->engine->notifications().send(peer, payload);
}

namespace {

/// Runs progress once if no notification has arrived.
Result<void> look_for_notifications(engine::Engine& engine) {
  HEADRACE_TRY_VOID(engine.usable());
  if (engine.notifications().inbox().empty()) (void)engine.progress().poll();
  return {};
}

}  // namespace

Result<std::vector<Notification>> Agent::take_notifications(const NotificationFilter& filter) {
  HEADRACE_TRY_VOID(look_for_notifications(*impl_->engine));
  return impl_->engine->notifications().take(filter);
}

Result<std::optional<Notification>> Agent::take_notification(const NotificationFilter& filter) {
  HEADRACE_TRY_VOID(look_for_notifications(*impl_->engine));
  return impl_->engine->notifications().take_one(filter);
}

Result<Notification> Agent::wait_notification(Timeout timeout, const NotificationFilter& filter) {
  engine::Engine& engine = *impl_->engine;
  const engine::Call call(engine.calls());
  HEADRACE_TRY_VOID(call.admitted());
  std::optional<Notification> taken;
  const auto came = [&] {
    return taken || (taken = engine.notifications().take_one(filter)) || engine.calls().closed();
  };
  if (!engine.progress().wait(came, engine.progress().deadline_in(timeout)))
    return make_error(Code::timed_out,
                      "no notification{}{} came in time: wait again, or check that the peer is alive",
                      filter.peer.empty() ? "" : " of peer ", filter.peer);
  if (taken) return *std::move(taken);
  return engine.calls().closed_meanwhile();
}

void Agent::on_notification(std::function<void(Notification)> taken) {
  impl_->engine->notifications().on_notification(std::move(taken));
}

void NotificationWatch::drain() const {
  static_cast<const engine::Inbox::Watch*>(watch_.get())->bell.drain();
}

Result<NotificationWatch> Agent::watch_notifications(const NotificationFilter& filter) {
  engine::Engine& engine = *impl_->engine;
  HEADRACE_TRY_VOID(engine.usable());
  HEADRACE_TRY(watch, engine.notifications().inbox().watch(filter));
  if (!engine.usable()) engine.notifications().inbox().close();  // it may have come too late for the close
  const int fd = watch->bell.fd();
  return NotificationWatch(std::move(watch), fd);
}

Result<int> Agent::notification_fd() {
  HEADRACE_TRY_VOID(impl_->engine->usable());
  return impl_->engine->notifications().inbox().descriptor();
}

// --- backends and telemetry

namespace {

/// What an instance can do here, and its kinds: those of its plugin's kinds that memory of this agent may
/// have.
void tell_abilities(const engine::BackendInstance& instance, BackendInfo& info) {
  info.local = instance.can(HEADRACE_LOCAL);
  info.remote = instance.can(HEADRACE_REMOTE);
  info.notifications = instance.can(HEADRACE_NOTIFY);
  info.mapping = instance.can(HEADRACE_MAP);
  info.query = instance.can(HEADRACE_QUERY);
  std::erase_if(info.kinds, [&](MemoryKind kind) {
    // If it reaches no peers, the remote side is this agent's own memory.
    const int number = static_cast<int>(kind);
    return !instance.takes_local(number) && (info.remote || !instance.takes_remote(number));
  });
}

}  // namespace

std::vector<BackendInfo> Agent::backends() const {
  std::vector<BackendInfo> infos;
  for (const engine::BackendInstance* instance : impl_->engine->backends().all()) {
    BackendInfo info = impl_->set->describe(impl_->set->plugins().find(instance->name()));
    tell_abilities(*instance, info);
    for (const OpenPort& port : data_ports(info.name, instance->ports())) info.ports.push_back(port.address);
    infos.push_back(std::move(info));
  }
  return infos;
}

Result<void> Agent::create_backend(const std::string& name,
                                   const std::map<std::string, std::string>& options) {
  auto opened = open_backend(*impl_->engine, *impl_->set, impl_->set->plugins().find(name), options);
  if (!opened) return std::move(opened).error().within("create backend " + name);
  impl_->set->created_with(name, options);
  tell_opened(*impl_);
  return {};
}

TelemetrySnapshot Agent::telemetry() const { return impl_->engine->telemetry().snapshot(); }

namespace {

/// Checks that every given option belongs to a backend and has a valid value.
Result<void> check_options(const BackendSet& set, const std::vector<engine::FoundBackend>& all) {
  for (const engine::FoundBackend& found : all) {
    if (found.table == nullptr) continue;
    if (auto resolved = set.resolve(*found.table); !resolved) return std::move(resolved).error();
  }
  return set.check_names(all);
}

/// Abilities belong to an instance: so one is opened in its own engine and asked.
Result<void> ask_instance(const engine::EngineSettings& settings, const BackendSet& set,
                          const engine::FoundBackend& found, BackendInfo& info) {
  HEADRACE_TRY(engine, engine::Engine::open(settings, Logger::process_default()));
  auto opened = open_backend(*engine, set, found, {});
  if (opened) {
    tell_abilities(*engine->backends().all().front(), info);
  }
  engine->close();
  return opened;
}

}  // namespace

Result<std::vector<BackendInfo>> list_backends(const std::map<std::string, std::string>& options) {
  HEADRACE_TRY(set, BackendSet::open(options));
  HEADRACE_TRY(settings, engine_settings("doctor", set->core()));
  HEADRACE_TRY(all, set->plugins().find_all());
  HEADRACE_TRY_VOID(check_options(*set, all));
  // Without the folder no backend opens; the list of those found is returned all the same.
  auto folder = runtime_folder(set->core());
  if (folder) settings.runtime_dir = *folder;
  std::vector<BackendInfo> infos;
  for (const engine::FoundBackend& found : set->shown(all)) {
    BackendInfo& info = infos.emplace_back(set->describe(found));
    if (found.table == nullptr) continue;
    if (!folder) {
      info.refusal = folder.error().message;
    } else if (auto asked = ask_instance(settings, *set, found, info); !asked) {
      if (asked.code() == Code::invalid_argument) return std::move(asked).error();
      info.refusal = asked.error().message;
    }
  }
  return infos;
}

Result<std::vector<OptionInfo>> list_options(const std::map<std::string, std::string>& options) {
  HEADRACE_TRY(set, BackendSet::open(options));
  HEADRACE_TRY(all, set->plugins().find_all());
  HEADRACE_TRY_VOID(check_options(*set, all));
  std::vector<OptionInfo> infos = option_infos(set->core(), "", {"auth_token"});
  for (const engine::FoundBackend& found : set->shown(all)) {
    for (OptionInfo& option : set->describe(found).options) infos.push_back(std::move(option));
  }
  return infos;
}

}  // namespace headrace
