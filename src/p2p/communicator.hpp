// SPDX-License-Identifier: Apache-2.0
// One rank of a communicator of p2p: each call is one launch of a kernel of the family `collectives`, which
// moves the elements through the boxes of all ranks; or it is copies of the driver, with small kernels
// between them.
#pragma once

#include "base/comm_border.hpp"
#include "gpu/kernel_family.hpp"
#include "gpu/shareable_memory.hpp"
#include "gpu/stream.hpp"
#include "gpu/stream_works.hpp"
#include "p2p/channels.hpp"
#include "p2p/meeting.hpp"
#include "p2p/neighbours.hpp"
#include "p2p/settings.hpp"
#include "p2p/tensors.hpp"
#include "p2p/windows.hpp"
#include "p2p/words.hpp"

#include <headrace/plugin/kernels/collectives_v1.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::p2p {

/// What a communicator is made of besides its setup.
struct Parts {
  std::shared_ptr<const gpu::Kernels> kernels;  ///< of its GPU
  AgentOptions agent;
};

///   threads  as comm_v1.h has them
class Communicator {
 public:
  using Setup = headrace_comm_setup_v1;
  using Call = headrace_comm_call_v1;
  using Family = gpu::KernelFamily<headrace_collectives_v1>;

  ///   errors  invalid_argument (hints, or those of ranks that differ), not_supported (too many ranks, GPUs
  ///           that do not map each other's memory), exhausted (too many ranks of a GPU), timed_out (a rank
  ///           has not come), those of the driver and of agents
  static Result<std::unique_ptr<Communicator>> open(const Parts& parts, const Setup& setup);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Whether the work has ended already.
  Result<bool> issue(const Call& call, std::uint64_t work);
  /// Messages between these two go together.
  void group_start();
  Result<void> group_end();
  Result<void> wait_on(std::uint64_t work, cuda::Stream stream);
  bool progress();
  void abort(std::string_view reason);
  /// What a late operation waits for; empty: nothing is known.
  [[nodiscard]] std::string waits_for();
  /// Null setup: this rank is in no group.
  Result<std::unique_ptr<Communicator>> split(const Setup* setup);
  Result<std::unique_ptr<Communicator>> shrink(const Setup& setup);
  /// Returns a number for tensor_deregister. An error that other ranks may not have ends the communicator.
  Result<std::uint64_t> tensor_register(const headrace_comm_elements_v1& tensor, std::int64_t timeout_ns);
  Result<void> tensor_deregister(std::uint64_t number, std::int64_t timeout_ns);
  /// As tensor_register.
  Result<void> window_open(headrace_comm_window_v1& window, std::int64_t timeout_ns);
  Result<void> window_close(std::uint64_t number, std::int64_t timeout_ns);
  /// As issue.
  Result<bool> window_issue(const headrace_comm_window_call_v1& call, std::uint64_t work);

 private:
  /// Where a call runs.
  struct Place {
    cuda::Stream stream;
    bool captured;
  };
  /// What comes back with the end of a work.
  struct Note {
    int status;
    int peer = -1;  ///< of a message
    [[nodiscard]] int packed() const { return (peer + 1) << 8 | status; }
    [[nodiscard]] static Note of(int packed) { return {packed & 0xff, (packed >> 8) - 1}; }
  };
  /// Calls that belong together, with calls_ held.
  struct Batch {
    std::unique_lock<std::mutex> calls;
    std::vector<Message> messages;
  };

  Communicator(Parts parts, const Setup& setup, const Settings& settings, Family family, Words words,
               gpu::Stream stream);

  // --- opening

  [[nodiscard]] Result<void> connect(const Meeting& meeting);
  [[nodiscard]] std::string gpu_card() const;
  /// The shape of boxes, the same on all ranks.
  [[nodiscard]] Result<void> choose_shape(const std::vector<std::string>& gpu_cards);
  /// Makes this rank's box, and its card.
  [[nodiscard]] Result<std::string> make_box();
  /// Maps the others' boxes; empty.
  [[nodiscard]] Result<std::string> map_boxes(const std::vector<std::string>& box_cards,
                                              const Deadline& deadline);
  [[nodiscard]] Result<void> choose_blocks(std::uint32_t most);

  // --- calls

  /// How many blocks a call has.
  [[nodiscard]] Result<std::uint32_t> check_call(const Call& call) const;
  [[nodiscard]] Result<bool> run(const Call& call, std::uint64_t work);
  [[nodiscard]] Result<Place> place_of(void* stream, bool async);
  [[nodiscard]] cuda::Outcome launch(const Call& call, const Place& place, std::uint32_t blocks,
                                     int status) const;
  /// Whether a call goes by copies: the same on all ranks.
  [[nodiscard]] bool is_copied(const headrace_collective_v1& args) const;
  [[nodiscard]] cuda::Outcome launch_copied(const headrace_collective_v1& args, const Place& place) const;
  /// The status of a launch.
  [[nodiscard]] int take_status(const Place& place);
  /// Puts an event behind a launch; whether its work has ended already.
  [[nodiscard]] bool watch(std::uint64_t work, const Place& place, const Note& note);
  [[nodiscard]] Result<bool> run_message(const Call& call, std::uint64_t work);
  /// Whether the works have ended already.
  [[nodiscard]] Result<bool> run_messages(std::span<const Message> messages);
  /// Why it cannot be, if it cannot.
  [[nodiscard]] std::optional<Error> launch_messages(std::span<const Message> messages, const Place& place);
  /// What a kernel has as its limit, if the host has the given one.
  [[nodiscard]] static std::int64_t limit_of_kernel(std::int64_t timeout_ns, bool captured);
  [[nodiscard]] Error refusal(const Call& call, cuda::Outcome outcome) const;

  // --- other ranks, and the end

  /// Why this communicator takes no call any more, if it does not.
  [[nodiscard]] std::optional<Error> why_no_call() const;
  /// Why a call that is begun now would never end.
  [[nodiscard]] std::optional<Error> why_in_vain() const;
  [[nodiscard]] std::optional<Error> why_in_vain(std::span<const Message> messages) const;
  /// Why a rank does not answer any more, if it does not.
  [[nodiscard]] std::optional<Error> why_lost(int rank) const;
  bool end_collectives();
  void end_in_vain();
  /// Whether other ranks may still move elements of this one's registered tensors, after a launch that has
  /// ended early.
  [[nodiscard]] bool is_moved_by_others();
  [[nodiscard]] Error end_for(Error error);
  void hear(int rank, const Saying& saying);

  const Parts parts_;
  const comm_border::Host host_;
  const std::string name_;
  const int rank_, size_;
  const Settings settings_;
  const std::shared_ptr<const gpu::Device> device_;
  const Family family_;
  const Words words_;
  const gpu::Stream stream_;  // of asynchronous calls
  gpu::StreamWorks works_;

  headrace_collective_v1 launch_{};  // what all launches share
  Channels channels_;
  std::uint64_t box_bytes_ = 0;
  std::optional<gpu::ShareableMemory> box_;
  std::mutex calls_;  // one launch at a time: messages come beside collectives
  std::optional<Batch> batch_;
  /// With each rank: messages that have not ended.
  std::array<std::atomic<int>, HEADRACE_COLLECTIVES_MOST_RANKS> messages_with_{};
  std::uint64_t launches_ = 0;  // that are not captured
  bool failed_ = false;         // a launch has ended early, so all later ones did: in `progress` alone
  Deadline next_look_ = Deadline::at_ns(0);
  Deadline quiet_at_ = Deadline::never();
  /// For each rank: since when it is gone and has not said that it left, or has left and messages with it
  /// have not ended.
  std::array<std::optional<std::chrono::steady_clock::time_point>, HEADRACE_COLLECTIVES_MOST_RANKS>
      missing_since_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> gives_up_{false};          // a work is late
  std::atomic<bool> told_{false};              // another rank has aborted, and has told the others
  std::atomic<bool> captured_{false};          // replays may run at any time
  std::atomic<std::uint64_t> last_number_{0};  // of the last call
  /// For each rank that has left: the number of its last call, and 1.
  std::array<std::atomic<std::uint64_t>, HEADRACE_COLLECTIVES_MOST_RANKS> left_{};
  std::atomic<bool> has_tensors_{false};  // a tensor has been registered
  Tensors tensors_;
  Windows windows_;
  std::unique_ptr<Neighbours> neighbours_;  // null: one rank. Last: its callbacks end before all else
};

}  // namespace headrace::p2p
