// SPDX-License-Identifier: Apache-2.0
// A fabric: its groups, what they share, and the checks before a post.
#pragma once

#include <headrace/fabric.hpp>

#include "base/clock.hpp"
#include "base/fork_guard.hpp"
#include "fabric/callbacks.hpp"
#include "fabric/carrier.hpp"
#include "fabric/command_queue.hpp"
#include "fabric/expectations.hpp"
#include "fabric/open_nics.hpp"
#include "fabric/part.hpp"
#include "fabric/watchers.hpp"
#include "fabric/worker.hpp"
#include "telemetry/telemetry.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::fabric {

struct CoreSetup {
  std::shared_ptr<const Clock> clock = std::make_shared<SteadyClock>();
  rail::LinkOptions links = {};
  FabricSpin spin = FabricSpin::brief;
  FlagMaker::Driver driver = cuda::load_driver;  ///< of flags and other words of GPUs
  std::chrono::nanoseconds peers_close_within = std::chrono::seconds(10);  ///< memory of GPUs
};

/// Thread-safe.
class Core : public std::enable_shared_from_this<Core> {
 public:
  static Result<Fabric> open(const FabricOptions& options);
  /// Over these NICs.
  static Result<Fabric> open(std::vector<OpenGroup> groups, const CoreSetup& setup);
  ~Core() { close(); }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  void close();
  /// If this is a forked child: nothing of the parent's is touched.
  [[nodiscard]] bool forked() const { return fork_->forked(); }
  /// Keeps everything for good: a child must not end what is the parent's.
  static void leak(std::shared_ptr<Core> core);

  FabricAddress address() const { return FabricAddress(address_); }
  std::vector<FabricGroup> groups() const;
  std::uint64_t bits_per_second() const;
  FabricCounters counters() const;
  TelemetrySnapshot telemetry() const { return telemetry_.snapshot(); }

  Result<FabricMemory> register_memory(const MemoryRange& range, FabricAccess access,
                                       std::optional<std::size_t> group);
  Result<void> deregister(const FabricMemory& memory);
  Result<FabricBuffers> host_buffers(std::size_t count, std::uint64_t bytes);

  Result<FabricPeer> connect(const FabricAddress& address);
  Result<void> forget(const FabricPeer& peer);
  Result<FabricPeers> peer_group(std::uint32_t scope, std::span<const FabricAddress> addresses);

  /// One range of each side.
  struct Ranges {
    headrace_op_v1 op;
    const FabricMemory& here;
    std::uint64_t here_offset;
    const FabricDescriptor& there;
    std::uint64_t there_offset;
    std::uint64_t bytes;
  };
  Result<FabricWork> move(const Ranges& ranges, const FabricPost& post);
  struct Pages {
    headrace_op_v1 op;
    const FabricMemory& here;
    const FabricPages& here_pages;
    const FabricDescriptor& there;
    const FabricPages& there_pages;
    std::uint64_t page_bytes;
    std::uint64_t count;
  };
  Result<FabricWork> move_pages(const Pages& pages, const FabricPost& post);
  Result<FabricWork> scatter(const FabricMemory& from, std::span<const FabricTarget> targets,
                             const FabricPost& post);
  Result<FabricWork> post_immediate(const FabricPeer& peer, Immediate immediate, const FabricPost& post);
  Result<FabricWork> barrier(const FabricPeers& peers, std::uint32_t value, const FabricPost& post);

  /// Bytes here that are sent, or that receive.
  struct Room {
    const FabricMemory& memory;
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  Result<FabricWork> send(const FabricPeer& peer, const Room& from, const FabricPost& post);
  Result<FabricWork> receive(const Room& to, const FabricPost& post);
  /// One of a receiver: it finds room, however many posts of the caller run.
  Result<FabricWork> receive_again(const Room& to);
  Result<FabricReceiver> receive_all(std::size_t count, std::uint64_t bytes,
                                     std::function<void(std::span<const std::byte>)> received);

  Result<FabricExpectation> expect(Immediate immediate, std::uint64_t arrivals);
  void on_unexpected(std::function<void(Immediate, std::uint64_t)> arrived);
  Result<FabricCommandQueue> command_queue(std::span<const FabricQueueWrite> writes,
                                           const FabricQueueOptions& options);
  Result<FabricWatcher> watch(Changed changed, std::optional<int> device);
  void on_error(std::function<void(const Error&)> failed) {
    if (!forked()) callbacks_->on_error(std::move(failed));
  }

  /// For tests.
  [[nodiscard]] Worker& worker(std::size_t group) const { return *workers_[group]; }
  [[nodiscard]] static const std::shared_ptr<Core>& of(const Fabric& fabric) { return fabric.core_; }

 private:
  explicit Core(const CoreSetup& setup);
  Result<void> start(std::vector<OpenGroup> groups);
  [[nodiscard]] Result<void> usable() const;
  [[nodiscard]] Result<std::shared_ptr<const gpu::MemoryIdentity>> identify(const rail::Memory& memory);
  Result<void> wait_closed_by_peers(const std::shared_ptr<Memory>& memory);
  [[nodiscard]] Result<std::shared_ptr<Memory>> own(const FabricMemory& memory) const;
  [[nodiscard]] Result<std::shared_ptr<Memory>> made_here(const FabricMemory& memory) const;
  [[nodiscard]] Result<std::size_t> group_for(const rail::Memory& memory,
                                              std::optional<std::size_t> group) const;
  [[nodiscard]] Result<rail::PostPlan> plan_of(const FabricPost& post, std::size_t group, std::uint64_t pages,
                                               std::optional<std::size_t> target = {}) const;
  [[nodiscard]] std::shared_ptr<Work> make_work(std::string what, std::uint64_t bytes, std::size_t group,
                                                const FabricPost& post) const;
  Result<FabricWork> submit(const std::shared_ptr<Work>& work);
  Result<FabricWork> push(const std::shared_ptr<Work>& work);
  Result<Part::Setup> range_part(const Ranges& ranges) const;
  Result<std::shared_ptr<Work>> make_message(Part::Setup part, const Room& room, const FabricPost& post);
  Result<std::shared_ptr<StagedMessage>> stage(const Memory& here, const Room& room, StagedMessage::Way way);
  Result<std::shared_ptr<const gpu::Stream>> copy_stream(const std::shared_ptr<const gpu::Device>& device);
  void close_queues();
  [[nodiscard]] Result<CommandQueue::Write> queue_write(const FabricQueueWrite& write) const;
  Result<std::shared_ptr<Watchers>> watchers_of(std::optional<int> device);

  const std::shared_ptr<const Clock> clock_;
  const rail::LinkOptions links_;
  const FabricSpin spin_;
  const std::chrono::nanoseconds peers_close_within_;
  const std::uint64_t id_;
  const std::shared_ptr<const ForkGuard> fork_ = std::make_shared<const ForkGuard>();
  const std::shared_ptr<Callbacks> callbacks_ = std::make_shared<Callbacks>();
  const std::shared_ptr<FlagMaker> flags_;
  const std::shared_ptr<Expectations> expectations_ =
      std::make_shared<Expectations>(callbacks_, fork_, flags_);
  const std::shared_ptr<Tally> tally_ = std::make_shared<Tally>();
  Telemetry telemetry_;

  std::vector<FabricGroup> groups_;
  std::vector<std::shared_ptr<Worker>> workers_;  // by group; after the telemetry, which its NICs use
  std::shared_ptr<const AddressParts> address_;

  std::mutex queues_mutex_;
  std::vector<std::weak_ptr<CommandQueue>> queues_;
  std::mutex watchers_mutex_;
  std::map<std::pair<std::size_t, bool>, std::shared_ptr<Watchers>> watchers_;  // by group, and if for GPUs

  std::mutex copy_streams_mutex_;
  std::map<int, std::shared_ptr<const gpu::Stream>> copy_streams_;  // by GPU

  std::atomic<bool> closed_ = false;
};

}  // namespace headrace::fabric
