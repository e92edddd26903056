// SPDX-License-Identifier: Apache-2.0
// A request, and the life of its posts: driven by a GPU, that of its local side where there is one, which
// reaches both sides' memory.
//
// What a request needs of a peer may not be there yet when it is prepared, or even posted: the owner's answer
// is on its way. Such a post waits in the link, for which it costs nothing but patience.
#pragma once

#include "backends/cuda_ipc/owner_move.hpp"
#include "backends/cuda_ipc/remote_region.hpp"
#include "gpu/graph_move.hpp"
#include "gpu/replay_watch.hpp"
#include "gpu/staged_move.hpp"
#include "host_link/post_message.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace headrace::cuda_ipc {

using host_link::Outcome;

/// Whoever has a request carried out in place of the host: a peer's posts on memory that we own.
class Client {
 public:
  virtual ~Client() = default;
  /// A GPU is about to begin; false: it has been called off.
  [[nodiscard]] virtual bool may_begin() = 0;
  /// A GPU has been given the post on that stream.
  virtual void queued(const WorkingGpu& gpu, cuda::Stream stream) = 0;
  /// The post has ended. The request may be gone, or posted again, before this returns.
  virtual void ended(const Outcome& outcome) = 0;
};

/// Counted: the host holds one reference until `release`, each list of the link another.
class Request final : public host_link::Post, public gpu::Post, public gpu::ReplayWatch::Listener {
 public:
  /// `client`: told in place of the host, which then knows nothing
  /// of the request; outlives it.
  ///   errors   not_supported (local pages of several GPUs, no GPU memory, or memory that cannot be reached:
  ///   the next path
  ///            may), not_found (a region's memory was freed), invalid_argument (a read-only target of our
  ///            own), peer_lost, exhausted, backend_failed
  [[nodiscard]] static Result<Request*> prepare(Instance& instance, const headrace_prepare_v1& args,
                                                std::shared_ptr<Link> link, Client* client = nullptr);

  /// In the order of a stream only what can begin at once.
  [[nodiscard]] Status post(const headrace_post_v1& args);
  /// A post that waits ends at once, also for the owner. One that a GPU has begun cannot be called back; its
  /// end is near.
  void cancel();

  // In CUDA graphs (request_capture.cpp).

  [[nodiscard]] Result<bool> capture(const headrace_capture_v1& args);
  void end_capture();
  [[nodiscard]] Result<void> set_indices(const headrace_indices_v1& args);
  [[nodiscard]] Result<std::uint64_t> check();

  // For the watch of its replays.

  /// Else counts would wait in the link, one at every look, while a peer reads nothing.
  [[nodiscard]] bool may_hear() const override { return !link_->messages().wants_room(); }
  void replays_ended(std::uint32_t count) override;

  // For the link.

  void end_early(const Outcome& outcome) override;
  /// Memory has come in: goes on, or waits for more.
  void resume();

  // For Posts.

  [[nodiscard]] const WorkingGpu& gpu() const override { return *gpu_; }
  [[nodiscard]] bool poll_done() const override {
    if (by_owner_ != nullptr) return by_owner_->poll_done();
    return staged_ != nullptr ? staged_->poll_done() : move_->poll_done();
  }
  [[nodiscard]] bool ends_with_gpu() const override { return by_owner_ == nullptr && staged_ == nullptr; }
  [[nodiscard]] std::uint64_t look_until_ns() const override { return look_until_ns_; }
  void ended(Result<void> moved) override;

 private:
  enum class State : std::uint8_t {
    idle,
    beginning,  ///< some thread has it: on its way to one of the next, or to its end
    starved,    ///< for memory of the peer's
    running,    ///< a GPU has it, or the owner
  };
  enum class Ready : std::uint8_t { yes, not_yet, never };

  Request(Instance& instance, const headrace_prepare_v1& args, std::shared_ptr<Link> link,
          const WorkingGpu& gpu, Client* client);
  ~Request() override = default;

  [[nodiscard]] Result<void> reach_local();
  [[nodiscard]] Ready find_memory(Outcome& why);
  [[nodiscard]] Result<void> prepare_move();
  [[nodiscard]] Result<void> leave_to_owner();
  [[nodiscard]] Outcome check_peer() const;
  [[nodiscard]] Outcome about_region(std::size_t number, Code code, std::string text) const;
  [[nodiscard]] bool take(State from);

  [[nodiscard]] Result<void> find_memory_for_graph();
  [[nodiscard]] Result<std::unique_ptr<gpu::GraphMove>> prepare_for_graph(
      const headrace_capture_v1& args) const;
  void in_flight();
  void begin();
  void go_on();
  void starve(std::uint64_t answers_seen);
  void launch();
  [[nodiscard]] Result<void> begin_move();
  [[nodiscard]] gpu::Order order() const noexcept;
  void warn_of_courier() const;
  void tell(const Outcome& outcome);
  void finish(Outcome outcome);

  Instance& instance_;
  const headrace_prepare_v1 args_;
  const std::shared_ptr<Link> link_;
  const WorkingGpu* const gpu_;  // the instance keeps what it has opened
  const gpu::Touches touches_;
  Client* const client_;

  std::unordered_map<void*, cuda::Address>
      local_;            // where the GPU reaches our own regions, or the host does:
  bool stages_ = false;  // some of it cannot be pinned

  // Made by whoever holds the post, or prepares.
  std::optional<gpu::PreparedMove> move_;
  std::vector<cuda::Address> prepared_for_;  // where the remote regions were when the move was prepared
  std::vector<ImportedMemory> memory_;       // of the remote regions, held while a GPU uses it
  std::shared_ptr<gpu::StagedMove> staged_;  // in place of it where host memory cannot be pinned
  std::unique_ptr<OwnerMove> by_owner_;      // in place of either

  // While it lies in a graph.
  std::unique_ptr<gpu::GraphMove> captured_;
  std::optional<plugin::Immediate> counted_as_;
  std::shared_ptr<gpu::ReplayWatch> watch_;  // if its replays are counted

  std::uint64_t token_ = 0;  // of the present post
  std::uint64_t look_until_ns_ = 0;
  cuda::Stream stream_ = nullptr;  // that the present post is queued on
  host_link::PostMessage message_;

  std::mutex mutex_;
  State state_ = State::idle;
  Outcome early_;  // what ends the post before, or instead of, its GPU
};

}  // namespace headrace::cuda_ipc
