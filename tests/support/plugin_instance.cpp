// SPDX-License-Identifier: Apache-2.0
#include "support/plugin_instance.hpp"

#include "base/random.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <stdexcept>

namespace headrace::test {
namespace {

Status from_c(headrace_status_v1 status) {
  return {static_cast<Code>(status.code), status.os_error, status.page};
}

void must(std::int32_t code, const ErrorText& error, const char* what) {
  if (code == HEADRACE_OK) return;
  throw std::runtime_error(fmt::format("{}: {} ({})", what, error.str(), code_name(static_cast<Code>(code))));
}

std::map<std::string, std::function<const headrace_backend_v1*()>>& offered_plugins() {
  static std::map<std::string, std::function<const headrace_backend_v1*()>> offered;
  return offered;
}

}  // namespace

std::string plugin_file(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  return fmt::format("{}/backends/headrace_backend_{}.so", HEADRACE_TEST_BIN_DIR, name);
}

void offer_plugin(const std::string& name, std::function<const headrace_backend_v1*()> load) {
  offered_plugins()[name] = std::move(load);
}

const headrace_backend_v1* load_plugin(const std::string& name) {
  if (const auto offered = offered_plugins().find(name); offered != offered_plugins().end())
    return offered->second();
  const std::string file = plugin_file(name);
  void* const object = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) throw std::runtime_error(fmt::format("load {}: {}", file, ::dlerror()));
  void* const symbol = ::dlsym(object, HEADRACE_BACKEND_SYMBOL);
  if (symbol == nullptr)
    throw std::runtime_error(fmt::format("{} does not export {}", file, HEADRACE_BACKEND_SYMBOL));
  return reinterpret_cast<headrace_backend_v1_function>(symbol)();
}

// ------------------------------------------------------------------------------------------------------
// regions

Region::Region(Instance& instance, const Memory& memory)
    : Region(instance, memory, 0, memory.bytes().size()) {}

Region::Region(Instance& instance, const Memory& memory, std::uint64_t offset, std::uint64_t length,
               std::uint32_t flags)
    : instance_(instance) {
  const bool file = memory.is_file();  // a file is registered whole, so offsets count from its begin
  facts_.id = instance.new_region_id();
  facts_.kind = file ? HEADRACE_FILE : memory.region_kind();
  facts_.address = file ? 0 : memory.address() + offset;
  facts_.length = length;
  headrace_region_v1 region{};
  region.struct_size = sizeof(region);
  region.region_id = facts_.id;
  region.kind = facts_.kind;
  region.address = facts_.address;
  region.length = facts_.length;
  region.device = memory.device();
  region.memory_fd = file ? -1 : memory.fd();
  region.memory_offset = region.memory_fd >= 0 ? memory.fd_offset() + offset : 0;
  region.file_fd = file ? memory.fd() : -1;
  region.flags = flags;
  ErrorText error;
  must(instance.table().register_region(instance.handle(), &region, &handle_, error.out()), error,
       "register_region");
  if (!instance.can(HEADRACE_REMOTE)) return;
  const Sink sink;
  must(instance.table().export_region(instance.handle(), handle_, sink.out(), error.out()), error,
       "export_region");
  facts_.public_data = sink.bytes();
}

void Region::deregister() {
  if (void* const handle = std::exchange(handle_, nullptr))
    instance_.table().deregister_region(instance_.handle(), handle);
}

Remote::Remote(const Link& link, const RegionFacts& facts) : instance_(link.instance()) {
  headrace_remote_region_v1 region{};
  region.struct_size = sizeof(region);
  region.region_id = facts.id;
  region.kind = facts.kind;
  region.address = facts.address;
  region.length = facts.length;
  region.public_data = {facts.public_data.data(), facts.public_data.size()};
  ErrorText error;
  must(instance_.table().load_remote(instance_.handle(), link.connection(), &region, &handle_, error.out()),
       error, "load_remote");
}

Remote::Remote(Instance& instance, const Region& region) : instance_(instance) {
  ErrorText error;
  must(instance_.table().load_local(instance_.handle(), region.handle(), &handle_, error.out()), error,
       "load_local");
}

void Remote::unload() {
  if (void* const handle = std::exchange(handle_, nullptr))
    instance_.table().unload(instance_.handle(), handle);
}

// --------------------------------------------------------------------------------------------------------
// links

Link& Link::operator=(Link&& other) noexcept {
  if (this == &other) return *this;
  disconnect();
  instance_ = other.instance_;
  connection_ = std::exchange(other.connection_, nullptr);
  token_ = other.token_;
  return *this;
}

void Link::disconnect() {
  void* const connection = std::exchange(connection_, nullptr);
  if (connection == nullptr) return;
  instance_->table().disconnect(instance_->handle(), connection);
  instance_->host().link_closed(token_);
}

bool Link::ready() const {
  const auto link = instance_->host().link(token_);
  return link && link->ready;
}

bool Link::lost() const {
  const auto link = instance_->host().link(token_);
  return link && link->lost;
}

Status Link::notify(std::uint32_t channel, std::string_view bytes) const {
  return from_c(
      instance_->table().notify(instance_->handle(), connection_, channel, bytes.data(), bytes.size()));
}

std::uint64_t Link::unsent() const {
  const headrace_backend_v1& table = instance_->table();
  const bool has = HEADRACE_HAS(&table, unsent) && table.unsent != nullptr;
  return has ? table.unsent(instance_->handle(), connection_) : 0;
}

void Link::send(World& world, std::uint32_t channel, std::string_view bytes) const {
  Status status{Code::would_block};
  const bool taken = world.until(
      [&] {  // `until` may call this again after it has returned true: a message must not go twice
        if (status.code == Code::would_block) status = notify(channel, bytes);
        return status.code != Code::would_block;
      });
  if (taken && status.ok()) return;
  throw std::runtime_error(
      fmt::format("notify {} bytes: {}; {}", bytes.size(), code_name(status.code), world.describe()));
}

// -----------------------------------------------------------------------------------------------------
// requests

Request::Request(Instance& instance, headrace_op_v1 op, const Link* link, PageSide local, PageSide remote,
                 std::uint64_t count, std::optional<headrace_page_grid_v1> grid)
    : instance_(instance),
      slot_(instance.host().new_slot()),
      local_(std::move(local)),
      remote_(std::move(remote)),
      local_view_(local_.view()),
      remote_view_(remote_.view()),
      grid_(grid) {
  args_.struct_size = sizeof(args_);
  args_.op = op;
  args_.connection = link != nullptr ? link->connection() : nullptr;
  args_.count = count;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t slot = local_.indices.empty() ? i : local_.indices[i];
    args_.bytes += local_.lengths.empty() ? local_.page_bytes : local_.lengths[slot];
  }
  args_.local = &local_view_;
  args_.remote = &remote_view_;
  args_.grid = grid_ ? &*grid_ : nullptr;
  ErrorText error;
  // The struct is valid during the call only, the sides and arrays until release. The struct is overwritten
  // after the call, so a backend that keeps its address fails.
  headrace_prepare_v1 for_the_call = args_;
  must(instance.table().prepare(instance.handle(), &for_the_call, &handle_, error.out()), error, "prepare");
  std::fill_n(reinterpret_cast<unsigned char*>(&for_the_call), sizeof(for_the_call), 0xa5);
}

Request::~Request() { release(); }

void Request::release() {
  if (handle_ == nullptr) return;
  if (in_flight()) {
    cancel();
    if (!instance_.world().until([&] { return !in_flight(); }))
      ADD_FAILURE() << "a canceled post did not end: " << instance_.world().describe();
  }
  instance_.table().release(instance_.handle(), std::exchange(handle_, nullptr));
}

Status Request::try_post(const std::string* message, std::uint32_t channel) {
  headrace_post_v1 post{};
  post.struct_size = sizeof(post);
  post.post_number = ++posts_;
  post.deadline_ns = UINT64_MAX;
  std::string copy;  // freed after the call, as the table allows
  if (message != nullptr) {
    copy = *message;
    post.has_message = 1;
    post.channel = channel;
    post.message = {copy.data(), copy.size()};
  }
  if (immediate_) {
    post.has_immediate = 1;
    post.immediate = immediate_->value;
    post.scope = immediate_->scope;
  }
  PluginHost& host = instance_.host();
  post.token = host.post_begins(slot_);
  const std::uint64_t token = post.token;
  const Status status = from_c(instance_.table().post(instance_.handle(), handle_, &post));
  if (!status.ok()) host.post_refused(token);
  std::fill_n(reinterpret_cast<unsigned char*>(&post), sizeof(post), 0xa5);
  return status;
}

void Request::post_until_taken(const std::string* message, std::uint32_t channel) {
  Status status{Code::would_block};
  const bool taken = instance_.world().until([&] {  // `until` may call this again after it has returned true
    if (status.code == Code::would_block) status = try_post(message, channel);
    return status.code != Code::would_block;
  });
  if (taken && status.ok()) return;
  throw std::runtime_error(fmt::format("post: {}, page {}; {}", code_name(status.code), status.page,
                                       instance_.world().describe()));
}

void Request::post() { post_until_taken(nullptr, 0); }
void Request::post(const std::string& message, std::uint32_t channel) { post_until_taken(&message, channel); }

PostEnd Request::wait() {
  const bool ended = instance_.world().until([&] {
    while (in_flight() && poll() != 0) {
    }
    return !in_flight();
  });
  if (!ended) throw std::runtime_error("a post did not end: " + instance_.world().describe());
  return instance_.host().last_end(slot_).value();
}

void Request::cancel() { instance_.table().cancel(instance_.handle(), handle_); }
std::int32_t Request::poll() { return instance_.table().poll(instance_.handle(), handle_); }
bool Request::in_flight() const { return instance_.host().in_flight(slot_); }
std::uint64_t Request::ends() const { return instance_.host().ends(slot_); }

// ----------------------------------------------------------------------------------------------------
// instances

CreateArguments::CreateArguments(const headrace_backend_v1& table, const Settings& settings,
                                 std::string runtime_dir)
    : runtime_dir_(std::move(runtime_dir)) {
  Settings left = settings;
  for (std::size_t i = 0; i < table.option_count; ++i) {
    const auto* row = reinterpret_cast<const headrace_option_v1*>(
        reinterpret_cast<const char*>(table.options) + i * table.option_size);
    const auto given = left.extract(row->name);
    values_.emplace_back(row->name, given.empty() ? row->default_value : given.mapped());
  }
  if (!left.empty())
    throw std::runtime_error(fmt::format("backend {} has no option {}", table.name, left.begin()->first));
  for (const auto& [name, value] : values_) settings_.push_back({name.c_str(), value.c_str()});
  args_ = {sizeof(args_), settings_.data(), settings_.size(), runtime_dir_.c_str(), 0};
}

Instance::Instance(World& world, const headrace_backend_v1* table, const Settings& settings,
                   PluginHost::Args host)
    : world_(world), table_(table), host_(std::move(host)), turn_(std::make_shared<Turn>()) {
  ErrorText error;
  {
    const CreateArguments arguments(*table, settings,
                                    world.runtime_dir());  // freed after `create`, with the settings
    must(table->create(host_.table(), arguments.args(), &handle_, error.out()), error, "create");
  }
  info_.struct_size = sizeof(info_);
  table->info(handle_, &info_);
  turn_->table = table;
  turn_->instance = handle_;
  turn_->descriptor = table->descriptor(handle_);
  turn_->bell = host_.bell().fd();
  world_.add(this);
}

Instance::~Instance() {
  destroy();
  for (const std::string& rule : host_.broken_rules()) ADD_FAILURE() << "agent " << name() << ": " << rule;
}

void Instance::destroy() {
  if (handle_ == nullptr) return;
  world_.remove(this);
  for (const HostLink& link : host_.accepted_links()) {  // links that no test has taken
    table_->disconnect(handle_, link.connection);
    host_.link_closed(link.token);
  }
  host_.accept_links(false);
  {
    const std::scoped_lock lock(turn_->mutex);
    turn_->instance = nullptr;
    table_->destroy(std::exchange(handle_, nullptr));
  }
  host_.instance_is_gone();
}

std::string Instance::connection_info() const {
  ErrorText error;
  const Sink sink;
  must(table_->connection_info(handle_, sink.out(), error.out()), error, "connection_info");
  return sink.bytes();
}

Result<Link> Instance::try_connect(const std::string& peer, std::uint64_t incarnation,
                                   const std::string& connection_info) {
  headrace_connect_v1 args{};
  args.struct_size = sizeof(args);
  args.link_token = host_.new_link(peer, incarnation);
  args.peer_name = peer.c_str();
  args.peer_incarnation = incarnation;
  args.connection_info = {connection_info.data(), connection_info.size()};
  ErrorText error;
  void* connection = nullptr;
  const std::int32_t code = table_->connect(handle_, &args, &connection, error.out());
  if (code != HEADRACE_OK) {
    host_.link_closed(args.link_token);
    return Error{static_cast<Code>(code), error.str()};
  }
  return Link(*this, connection, args.link_token);
}

Link Instance::connect(Instance& peer) {
  auto link = try_connect(peer.name(), peer.incarnation(), peer.connection_info());
  if (!link) throw std::runtime_error("connect: " + link.error().message);
  return std::move(link).value();
}

std::uint32_t Instance::Turn::progress() {
  const std::unique_lock lock(mutex, std::try_to_lock);
  return lock && instance != nullptr ? table->progress(instance) : 0;
}

std::uint32_t Instance::Turn::arm(bool on) {
  const std::scoped_lock lock(mutex);
  return instance != nullptr && table->arm != nullptr ? table->arm(instance, on ? 1 : 0) : 0;
}

// --------------------------------------------------------------------------------------------------------
// world

World::World() : bell_(EventFd::create().value()) {
  own_folder_.emplace();  // of mode 0700
  runtime_dir_ = own_folder_->path();
}

World::World(std::string runtime_dir)
    : runtime_dir_(std::move(runtime_dir)), bell_(EventFd::create().value()) {}

World::~World() { stop_driver(); }

void World::add(Instance* instance) {
  const std::scoped_lock lock(list_);
  instances_.push_back(instance);
}

void World::remove(Instance* instance) {
  ++removals_;  // keeps other threads from sleeping on descriptors that are about to be closed
  bell_.signal();
  const std::scoped_lock lock(driver_, list_);
  --removals_;
  std::erase(instances_, instance);
}

std::vector<std::shared_ptr<Instance::Turn>> World::turns() const {
  const std::scoped_lock lock(list_);
  std::vector<std::shared_ptr<Instance::Turn>> turns;
  turns.reserve(instances_.size());
  for (const Instance* instance : instances_) turns.push_back(instance->turn());
  return turns;
}

std::uint32_t World::progress() {
  std::uint32_t things = 0;
  for (const auto& turn : turns()) things += turn->progress();
  return things;
}

bool World::until(const std::function<bool()>& done, std::chrono::nanoseconds limit) {
  const Deadline deadline = Deadline::after(limit);
  for (int idle = 0;;) {
    if (done()) return true;
    if (progress() > 0) {
      idle = 0;
      continue;
    }
    if (done()) return true;
    if (deadline.expired()) return false;
    if (++idle < 10) continue;
    sleep(done, deadline);
    idle = 9;  // one more pass, then sleep again
  }
}

void World::sleep(const std::function<bool()>& done, const Deadline& deadline) {
  const std::unique_lock driver(driver_, std::try_to_lock);
  if (!driver || removals_ > 0) {
    // Another thread sleeps on the descriptors and runs progress. This thread checks again soon; the exact
    // time does not matter.
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    return;
  }
  const auto all = turns();
  std::uint32_t came_in = 0;
  for (const auto& turn : all) came_in += turn->arm(true);
  if (came_in == 0 && !done()) {
    std::vector<pollfd> fds{{bell_.fd(), POLLIN, 0}};
    for (const auto& turn : all) {
      fds.push_back({turn->bell, POLLIN, 0});
      if (turn->descriptor >= 0) fds.push_back({turn->descriptor, POLLIN, 0});
    }
    const std::uint64_t left_ms = deadline.is_never() ? 3'600'000 : deadline.remaining_ns() / 1'000'000 + 1;
    ::poll(fds.data(), fds.size(), static_cast<int>(std::min<std::uint64_t>(left_ms, 3'600'000)));
    for (const pollfd& fd : fds)
      if ((fd.revents & POLLNVAL) != 0)
        throw std::runtime_error("an instance was destroyed by one thread while another slept on it");
    bell_.drain();
    const std::scoped_lock lock(list_);
    for (Instance* instance : instances_) instance->host().bell().drain();
  }
  for (const auto& turn : all) turn->arm(false);
}

void World::start_driver() {
  stop_ = false;
  thread_ = std::thread([this] { (void)until([this] { return stop_.load(); }, std::chrono::hours(1)); });
}

void World::stop_driver() {
  if (!thread_.joinable()) return;
  stop_ = true;
  ring();
  thread_.join();
}

std::string World::describe() const {
  const std::scoped_lock lock(list_);
  std::string text;
  for (Instance* instance : instances_) text += "[" + instance->host().describe() + "] ";
  return text;
}

}  // namespace headrace::test
