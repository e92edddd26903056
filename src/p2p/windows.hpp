// SPDX-License-Identifier: Apache-2.0
// The windows of a communicator: elements of all ranks that this rank's GPU maps, and the words of signals.
#pragma once

#include "base/comm_border.hpp"
#include "gpu/kernel_family.hpp"
#include "gpu/shareable_memory.hpp"
#include "gpu/stream.hpp"
#include "gpu/stream_works.hpp"
#include "p2p/tensors.hpp"
#include "p2p/wait_words.hpp"

#include <headrace/plugin/comm_v1.h>
#include <headrace/plugin/kernels/windows_v1.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headrace::p2p {

/// What windows use of their communicator, which outlives them.
struct WindowParts {
  int rank, size;
  std::int64_t timeout_ns;  ///< of waits of the caller's kernels; negative: none
  std::shared_ptr<const gpu::Kernels> kernels;
  comm_border::Host host;
  Tensors* tensors;
  /// Why a rank does not answer any more, if it does not.
  std::function<std::optional<Error>(int rank)> lost;
};

///   threads  open, close and issue: one at a time; progress: one at a time; all else: any
class Windows {
 public:
  using Call = headrace_comm_window_call_v1;
  using Family = gpu::KernelFamily<headrace_windows_v1>;

  explicit Windows(WindowParts parts);
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  /// A collective, as Tensors::add.
  ///   errors  invalid_argument (another type than on another rank), those of the driver, of ShareableMemory
  ///           and of Tensors
  [[nodiscard]] Result<void> open(Neighbours* neighbours, headrace_comm_window_v1& window,
                                  const Deadline& deadline);
  /// A collective. Ends waits of this rank.
  ///   errors  not_found; timed_out: it is half closed, so no call may follow
  [[nodiscard]] Result<void> close(Neighbours* neighbours, std::uint64_t number, const Deadline& deadline);
  /// Whether the work has ended already.
  [[nodiscard]] Result<bool> issue(const Call& call, std::uint64_t work);
  [[nodiscard]] Result<void> wait_on(std::uint64_t work, cuda::Stream stream);
  /// Tells the host of works that have ended. Whether there were some.
  bool progress();
  /// Kernels that wait leave, and no later ones begin.
  void abort();
  /// Waits until the GPU runs none of its works. After abort, beside no other call.
  void wait_all();

 private:
  struct Window {
    std::optional<gpu::ShareableMemory> made;  // elements that the backend has made
    std::optional<gpu::ShareableMemory> words;
    Shared elements, signals;
    DType dtype = DType::float32;
    bool closing = false;
  };
  /// A launch that writes a status.
  struct Waiting {
    std::uint64_t work;
    const Window* window;
    Call call;
    std::optional<Error> why = {};          // it was aborted
    Deadline patience = Deadline::never();  // until what a rank that is gone has said must be here
  };
  /// What all operations on queues of this rank use.
  struct Queues {
    Family family;
    gpu::Stream stream;  // of asynchronous calls
    WaitWords words;
  };
  struct Place {
    cuda::Stream stream;
    bool captured;
  };

  [[nodiscard]] Result<void> prepare();
  [[nodiscard]] Result<std::string> make_local(headrace_comm_window_v1& window, Window& made);
  [[nodiscard]] Result<void> read_cards(const std::vector<std::string>& texts,
                                        headrace_comm_window_v1& window) const;
  [[nodiscard]] Result<void> share(Neighbours* neighbours, headrace_comm_window_v1& window, Window& made,
                                   const Deadline& deadline);
  /// Writes what the caller's kernels get. Returns its address.
  [[nodiscard]] Result<std::uint64_t> make_handle(const headrace_comm_window_v1& window,
                                                  const Window& made) const;
  [[nodiscard]] Result<void> wait_for_works(const Window& window, const Deadline& deadline);
  [[nodiscard]] bool is_used(const Window& window) const;

  [[nodiscard]] Result<Window*> find(std::uint64_t number);
  [[nodiscard]] Result<Place> place_of(const Call& call);
  [[nodiscard]] Result<bool> move(const Call& call, Window& window, std::uint64_t work);
  [[nodiscard]] Result<bool> launch_signal(const Call& call, Window& window, std::uint64_t work);
  [[nodiscard]] Result<bool> launch_waiting(const Call& call, Window& window, std::uint64_t work);
  [[nodiscard]] Result<void> start_waiting(const Call& call, Window& window, std::uint64_t work,
                                           std::size_t place);
  [[nodiscard]] headrace_windows_word_v1 word_of(const Call& call, const Window& window) const;
  [[nodiscard]] Result<std::size_t> take_place(const Call& call, const Window& window, std::uint64_t work);
  void free_place(std::size_t place);
  [[nodiscard]] Result<bool> watch(Window& window, std::uint64_t work, const Place& place);

  void end_in_vain();
  /// Makes kernels of a window leave; null: of all.
  void abort_waiting(const Window* window, const Error& why);
  bool end_ordered();
  bool end_waiting();
  [[nodiscard]] Result<void> outcome(std::size_t place, const Waiting& waiting) const;

  const WindowParts parts_;
  const std::shared_ptr<const gpu::Device> device_;
  std::optional<Queues> queues_;  // from the first window on
  gpu::StreamWorks ordered_;      // put, get, signal and atomic_add: each after the one before
  gpu::StreamWorks waits_;
  std::map<std::uint64_t, Window> windows_;  // by number
  std::uint64_t last_ = 0;
  std::atomic<bool> aborted_{false};

  mutable std::mutex mutex_;  // for what follows
  std::array<std::optional<Waiting>, WaitWords::count> waiting_;
  std::map<std::uint64_t, const Window*> running_;  // put, get and signal: works that use a window
  Deadline next_look_ = Deadline::at_ns(0);         // progress alone
};

}  // namespace headrace::p2p
