// SPDX-License-Identifier: Apache-2.0
// One open backend: the C table behind it with Result and spans, and the host table that the backend calls
// back through.
#pragma once

#include <headrace/plugin/backend_v1.h>
#include <headrace/request.hpp>

#include "engine/steady_clock.hpp"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::engine {

inline constexpr std::size_t max_backends = 16;  ///< of one agent: the bits of a region's mask on the wire

class BackendInstance;

/// The host functions that an instance calls. From any thread, also from inside a call to the instance:
/// implementations call no entry of any backend and no code of the caller's. They queue what is to be done.
class HostEvents {
 public:
  virtual ~HostEvents() = default;
  virtual void completed(std::uint64_t token, Status status, std::string_view text) = 0;
  virtual std::uint64_t accepted(BackendInstance& from, void* connection, std::string_view peer,
                                 std::uint64_t incarnation) = 0;
  virtual void link_event(std::uint64_t link, headrace_link_event_v1 event, Status status,
                          std::string_view text) = 0;
  virtual void received(std::uint64_t link, std::uint32_t channel, std::string_view bytes) = 0;
  virtual void counted(std::uint64_t link, Immediate immediate, std::uint64_t amount) = 0;
  virtual bool submit(void (*function)(void*), void* argument) = 0;
  virtual void wake() = 0;
  virtual bool log_enabled(const std::string& backend, int level) = 0;
  virtual void log(const std::string& backend, int level, std::string_view text) = 0;
  virtual void count(std::string_view counter, std::uint64_t amount) = 0;
};

struct InstanceArgs {
  std::string agent_name;
  std::uint64_t incarnation = 0;
  std::uint32_t pool_threads = 1;
  std::string runtime_dir;
  std::vector<std::pair<std::string, std::string>> settings;  ///< resolved, every row of the table
  const Clock* clock = &steady_clock;                         ///< outlives the instance
  std::uint64_t reserved_descriptors = 0;                     ///< a link leaves so many free
};

class BackendInstance {
 public:
  static Result<std::unique_ptr<BackendInstance>> open(const headrace_backend_v1* table,
                                                       const InstanceArgs& args, HostEvents& events);
  ~BackendInstance();
  /// Whether this thread is inside a function of ours that a backend has called: then no entry of any is.
  [[nodiscard]] static bool is_telling();
  BackendInstance(const BackendInstance&) = delete;
  BackendInstance& operator=(const BackendInstance&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const headrace_info_v1& info() const { return info_; }
  /// The addresses on which it listens, separated by commas; empty: none.
  [[nodiscard]] std::string_view ports() const {
    return info_.ports == nullptr ? std::string_view() : info_.ports;
  }
  [[nodiscard]] bool can(headrace_ability_v1 ability) const { return (info_.abilities & ability) != 0; }
  [[nodiscard]] bool takes_local(int kind) const {
    return (info_.local_kinds & HEADRACE_KIND_BIT(kind)) != 0;
  }
  [[nodiscard]] bool takes_remote(int kind) const {
    return (info_.remote_kinds & HEADRACE_KIND_BIT(kind)) != 0;
  }
  [[nodiscard]] const headrace_backend_v1& table() const { return *table_; }
  [[nodiscard]] void* handle() const { return instance_; }

  Result<std::string> connection_info();
  Result<void*> connect(const headrace_connect_v1& args);
  Result<void*> register_region(const headrace_region_v1& region);
  Result<std::string> export_region(void* handle);
  Result<void*> load_local(void* handle);
  Result<void*> load_remote(void* connection, const headrace_remote_region_v1& region);
  /// For the kernels of GPU `device`, or -1, the CPU. would_block: ask again after some progress.
  Result<std::pair<void*, std::uint64_t>> map(void* remote, int device, bool writable);
  void unmap(void* remote, void* address) { table_->unmap(instance_, remote, address); }
  void unload(void* remote) { table_->unload(instance_, remote); }
  void deregister_region(void* handle) { table_->deregister_region(instance_, handle); }
  void disconnect(void* connection) { table_->disconnect(instance_, connection); }
  void release(void* request) { table_->release(instance_, request); }
  void cancel(void* request) { table_->cancel(instance_, request); }
  bool poll(void* request) { return table_->poll(instance_, request) != 0; }
  Result<void*> prepare(const headrace_prepare_v1& args);
  /// msgpack, one element: nil or a map.
  Result<std::string> query(const headrace_region_v1& region, std::uint64_t deadline_ns);
  Status post(void* request, const headrace_post_v1& args);
  Status notify(void* connection, std::uint32_t channel, std::string_view bytes);
  /// How many accepted messages `disconnect` would lose.
  [[nodiscard]] std::uint64_t unsent(void* connection) const;
  headrace_cost_v1 cost(const headrace_prepare_v1& args);
  /// With HEADRACE_CAPTURE alone, these four. Whether the stream is being captured: then the request lies in
  /// its graph.
  Result<bool> capture(void* request, headrace_capture_v1 args);
  void end_capture(void* request) { table_->end_capture(instance_, request); }
  Result<void> set_indices(void* request, const headrace_indices_v1& args);
  /// How many replays have ended.
  Result<std::uint64_t> check(void* request);

  /// One pass of progress, unless another thread is in it. `arm` takes the same turn. After `end` both do
  /// nothing.
  std::uint32_t progress();
  std::uint32_t arm(bool on);
  /// Destroys what the table made. Every handle has been returned; threads that run progress may come later.
  void end();
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  BackendInstance(const headrace_backend_v1* table, std::string name, HostEvents& events, const Clock& clock)
      : table_(table), name_(std::move(name)), events_(events), clock_(clock) {}
  void fill_host(const InstanceArgs& args);
  template <class Value, class Body>
  Value told(Value otherwise, Body&& body) noexcept;
  template <class Body>
  void told(Body&& body) noexcept;

  const headrace_backend_v1* table_;
  std::string name_;
  HostEvents& events_;
  const Clock& clock_;
  std::string agent_name_;
  headrace_host_v1 host_{};
  headrace_info_v1 info_{};
  void* instance_ = nullptr;
  int descriptor_ = -1;
  std::atomic_flag turn_ =
      ATOMIC_FLAG_INIT;  // held by the thread that is in progress() or arm(), and after end()
  std::atomic<bool> ended_{false};
};

}  // namespace headrace::engine
