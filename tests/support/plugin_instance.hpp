// SPDX-License-Identifier: Apache-2.0
// A backend as a test uses it: the loaded table, instances of it, and links, regions and requests that
// release themselves in the right order. A `World` runs progress of the instances as the real host does.
//
// Everything here throws std::runtime_error with the backend's own sentence when the backend refuses. A test
// that expects a refusal calls the table's entry or one of the try_ functions.
#pragma once

#include "support/page_side.hpp"
#include "support/plugin_host.hpp"
#include "support/plugin_memory.hpp"
#include "support/temporary_folder.hpp"

#include <headrace/plugin/backend.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::test {

/// From now on `load_plugin(name)` calls `load` for the table.
void offer_plugin(const std::string& name, std::function<const headrace_backend_v1*()> load);
/// Loads `headrace_backend_<name>.so` of the build, or the file itself if `name` contains a slash. It is
/// never unloaded.
const headrace_backend_v1* load_plugin(const std::string& name);
/// The file that load_plugin opens.
std::string plugin_file(const std::string& name);

/// The buffer for the sentence of an entry that fails.
class ErrorText {
 public:
  explicit ErrorText(std::size_t capacity = 1024) : buffer_(capacity, '\0') {
    text_ = {sizeof(text_), buffer_.data(), capacity, 0};
  }
  headrace_text_v1* out() { return &text_; }
  [[nodiscard]] std::string str() const { return {buffer_.data(), std::min(text_.length, buffer_.size())}; }
  [[nodiscard]] std::size_t length() const { return text_.length; }

 private:
  std::string buffer_;
  headrace_text_v1 text_{};
};

/// Collects the bytes that an entry writes to a sink.
class Sink {
 public:
  Sink() {
    sink_ = {sizeof(sink_), &bytes_, [](void* context, const void* bytes, std::size_t length) {
               static_cast<std::string*>(context)->append(static_cast<const char*>(bytes), length);
             }};
  }
  Sink(const Sink&) = delete;
  const headrace_sink_v1* out() const { return &sink_; }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  headrace_sink_v1 sink_{};
};

class Instance;
class World;

/// The description of a region that an agent gives to its peers.
struct RegionFacts {
  std::uint32_t id = 0;
  std::int32_t kind = HEADRACE_DRAM;
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::string public_data;
};

/// Memory that is registered with an instance while this object lives.
class Region {
 public:
  Region(Instance& instance, const Memory& memory);
  /// Registers a section of a memory.
  Region(Instance& instance, const Memory& memory, std::uint64_t offset, std::uint64_t length,
         std::uint32_t flags = 0);
  ~Region() { deregister(); }
  Region(Region&& other) noexcept
      : instance_(other.instance_),
        facts_(std::move(other.facts_)),
        handle_(std::exchange(other.handle_, nullptr)) {}
  Region& operator=(Region&&) = delete;

  void deregister();
  [[nodiscard]] void* handle() const { return handle_; }
  [[nodiscard]] const RegionFacts& facts() const { return facts_; }
  [[nodiscard]] std::uint32_t id() const { return facts_.id; }

 private:
  Instance& instance_;
  RegionFacts facts_;
  void* handle_ = nullptr;
};

/// One side of a link, closed when this object is destroyed.
class Link {
 public:
  Link() = default;
  Link(Instance& instance, void* connection, std::uint64_t token)
      : instance_(&instance), connection_(connection), token_(token) {}
  ~Link() { disconnect(); }
  Link(Link&& other) noexcept
      : instance_(other.instance_),
        connection_(std::exchange(other.connection_, nullptr)),
        token_(other.token_) {}
  Link& operator=(Link&& other) noexcept;

  void disconnect();
  [[nodiscard]] void* connection() const { return connection_; }
  [[nodiscard]] std::uint64_t token() const { return token_; }
  [[nodiscard]] Instance& instance() const { return *instance_; }
  [[nodiscard]] bool ready() const;
  [[nodiscard]] bool lost() const;
  [[nodiscard]] Status notify(std::uint32_t channel, std::string_view bytes) const;
  /// 0 of a table without this entry.
  [[nodiscard]] std::uint64_t unsent() const;
  /// Calls notify and runs progress while it returns would_block. Throws at any other refusal.
  void send(World& world, std::uint32_t channel, std::string_view bytes) const;

 private:
  Instance* instance_ = nullptr;
  void* connection_ = nullptr;
  std::uint64_t token_ = 0;
};

/// A handle for the remote side of requests, unloaded when this object is destroyed.
class Remote {
 public:
  Remote(const Link& link, const RegionFacts& facts);  ///< a peer's region
  Remote(Instance& instance, const Region& region);    ///< a region of our own
  ~Remote() { unload(); }
  Remote(Remote&& other) noexcept
      : instance_(other.instance_), handle_(std::exchange(other.handle_, nullptr)) {}
  Remote& operator=(Remote&&) = delete;

  void unload();
  [[nodiscard]] void* handle() const { return handle_; }

 private:
  Instance& instance_;
  void* handle_ = nullptr;
};

/// A prepared request. The destructor cancels a post in flight and waits for its completion.
class Request {
 public:
  /// `link` null: a request to our own regions. `grid`: the shape of each page.
  Request(Instance& instance, headrace_op_v1 op, const Link* link, PageSide local, PageSide remote,
          std::uint64_t count, std::optional<headrace_page_grid_v1> grid = {});
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  /// Posts, with a message if one is given. Returns the status of the entry.
  Status try_post(const std::string* message = nullptr, std::uint32_t channel = HEADRACE_CHANNEL_USER);
  /// What later posts carry; none: no immediate.
  void set_immediate(std::optional<plugin::Immediate> immediate) { immediate_ = immediate; }
  /// Posts, and runs progress while the entry returns would_block; throws at any other refusal.
  void post();
  void post(const std::string& message, std::uint32_t channel = HEADRACE_CHANNEL_USER);
  /// Waits for the completion of the last post, with `poll` and progress as the host does. Throws if it does
  /// not come.
  PostEnd wait();
  PostEnd run() { return post(), wait(); }
  void cancel();
  [[nodiscard]] std::int32_t poll();
  void release();

  [[nodiscard]] bool in_flight() const;
  [[nodiscard]] std::uint64_t ends() const;
  /// For entries of the table that this class does not call.
  [[nodiscard]] void* handle() const { return handle_; }
  /// Where the host keeps the posts of this request.
  [[nodiscard]] std::uint64_t slot() const { return slot_; }
  [[nodiscard]] std::uint64_t bytes() const { return args_.bytes; }
  [[nodiscard]] const headrace_prepare_v1& args() const { return args_; }

 private:
  void post_until_taken(const std::string* message, std::uint32_t channel);

  Instance& instance_;
  const std::uint64_t slot_;
  PageSide local_, remote_;
  headrace_side_v1 local_view_{}, remote_view_{};
  std::optional<headrace_page_grid_v1> grid_;
  headrace_prepare_v1 args_{};
  void* handle_ = nullptr;
  std::uint64_t posts_ = 0;
  std::optional<plugin::Immediate> immediate_;
};

using Settings = std::map<std::string, std::string>;

class Instance {
 public:
  /// `settings` override the defaults of the option table.
  Instance(World& world, const headrace_backend_v1* table, const Settings& settings, PluginHost::Args host);
  /// Destroys the instance, and adds a gtest failure for each broken rule.
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  void destroy();

  [[nodiscard]] const headrace_backend_v1& table() const { return *table_; }
  [[nodiscard]] void* handle() const { return handle_; }
  [[nodiscard]] PluginHost& host() { return host_; }
  [[nodiscard]] World& world() const { return world_; }
  [[nodiscard]] const std::string& name() const { return host_.args().agent_name; }
  [[nodiscard]] std::uint64_t incarnation() const { return host_.args().incarnation; }
  [[nodiscard]] const headrace_info_v1& info() const { return info_; }
  [[nodiscard]] bool can(headrace_ability_v1 ability) const { return (info_.abilities & ability) != 0; }
  [[nodiscard]] std::string connection_info() const;
  [[nodiscard]] std::uint32_t new_region_id() { return next_region_++; }

  /// Starts to connect; the link need not be ready on return. Returns an Error if the entry refuses.
  [[nodiscard]] Result<Link> try_connect(const std::string& peer, std::uint64_t incarnation,
                                         const std::string& connection_info);
  [[nodiscard]] Link connect(Instance& peer);

  /// Runs progress, unless another thread runs it or `arm` (then 0).
  std::uint32_t progress() { return turn_->progress(); }
  /// Waits until no other thread is in the instance.
  std::uint32_t arm(bool on) { return turn_->arm(on); }
  [[nodiscard]] int descriptor() const { return turn_->descriptor; }

  /// The lock of `progress`, `arm` and `destroy`: one of them at a time, none after `destroy`. It outlives
  /// the instance while threads that iterate over the world's instances hold it.
  struct Turn {
    std::mutex mutex;
    const headrace_backend_v1* table = nullptr;
    void* instance = nullptr;  // null: destroyed
    int descriptor = -1;
    int bell = -1;  // the host's eventfd; valid while `instance` is not null

    std::uint32_t progress();
    std::uint32_t arm(bool on);
  };
  [[nodiscard]] const std::shared_ptr<Turn>& turn() const { return turn_; }

 private:
  World& world_;
  const headrace_backend_v1* table_;
  PluginHost host_;
  headrace_info_v1 info_{};
  void* handle_ = nullptr;
  std::atomic<std::uint32_t> next_region_{1};
  std::shared_ptr<Turn> turn_;
};

/// Makes the arguments of `create`, so that tests can pass wrong settings.
class CreateArguments {
 public:
  CreateArguments(const headrace_backend_v1& table, const Settings& settings, std::string runtime_dir);
  CreateArguments(const CreateArguments&) = delete;
  [[nodiscard]] const headrace_create_v1* args() const { return &args_; }

 private:
  std::vector<std::pair<std::string, std::string>> values_;
  std::vector<headrace_setting_v1> settings_;
  std::string runtime_dir_;
  headrace_create_v1 args_{};
};

/// The instances of one test. It runs their progress.
class World {
 public:
  World();
  /// Uses a folder that another process made and removes.
  explicit World(std::string runtime_dir);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// A folder of mode 0700 that is removed with the world.
  [[nodiscard]] const std::string& runtime_dir() const { return runtime_dir_; }

  /// Runs progress of all instances until `done()`. It sleeps, armed, when there is nothing to do, so that a
  /// lost wake-up shows as a timeout. Returns false after `limit`. Any thread may call it; the first one that
  /// has to sleep sleeps for all.
  [[nodiscard]] bool until(const std::function<bool()>& done, std::chrono::nanoseconds limit = default_limit);
  /// One pass over all instances.
  std::uint32_t progress();

  /// Makes a sleeping `until` check again: its condition has changed without a call of a backend.
  void ring() const { bell_.signal(); }

  /// Starts a thread that runs progress, as the host's progress thread does. It is stopped with the world or
  /// by stop_driver.
  void start_driver();
  void stop_driver();

  /// The present links and posts of all instances.
  [[nodiscard]] std::string describe() const;

  static constexpr std::chrono::seconds default_limit{30};

 private:
  friend class Instance;
  void add(Instance* instance);
  void remove(Instance* instance);
  [[nodiscard]] std::vector<std::shared_ptr<Instance::Turn>> turns() const;
  void sleep(const std::function<bool()>& done, const Deadline& deadline);

  std::optional<TemporaryFolder> own_folder_;
  std::string runtime_dir_;
  mutable std::mutex list_;  // never held while a backend is called
  std::vector<Instance*> instances_;
  std::mutex driver_;  // held by the thread that sleeps armed
  std::atomic<int> removals_{0};
  EventFd bell_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace headrace::test
