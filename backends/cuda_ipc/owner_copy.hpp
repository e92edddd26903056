// SPDX-License-Identifier: Apache-2.0
// One request of a peer's that we carry out (owner_copies.hpp).
#pragma once

#include "backends/cuda_ipc/move_file.hpp"
#include "backends/cuda_ipc/region.hpp"
#include "backends/cuda_ipc/request.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace headrace::cuda_ipc {

class OwnerCopies;

/// Answers each post that its file asks for exactly once, unless the peer calls it off.
///   threads  any; `prepare` and `go` the progress thread's
class OwnerCopy final : public Client, public std::enable_shared_from_this<OwnerCopy> {
 public:
  struct Name {
    std::uint32_t number;
    std::uint32_t end_word;
  };
  OwnerCopy(Instance& instance, Link& link, OwnerCopies& copies, Name name, MoveControl control)
      : instance_(instance), link_(link), copies_(copies), name_(name), control_(std::move(control)) {}

  /// Reads and checks the pages, pins our memory and asks for the peer's. May take milliseconds, and longer
  /// for gigabytes that nobody has pinned.
  void prepare(const UniqueFd& file);
  /// Begins the post that is asked for, now or when the one before has ended.
  void go();
  /// All posts are answered with this from now on, also one that waits; one that a GPU works on ends by
  /// itself.
  void refuse(Error why);
  /// The same if it names this region of ours.
  void give_up(std::uint32_t region_id);

  // What the request tells.

  [[nodiscard]] bool may_begin() override;
  /// Lets the GPU tell the peer of the end as well: then that does not wait for a thread of ours.
  void queued(const gpu::WorkingGpu& gpu, cuda::Stream stream) override;
  void ended(const Outcome& outcome) override;

 private:
  /// The request with all that it points to.
  struct Work {
    MoveList list;
    std::vector<std::shared_ptr<const Region>> ours;
    std::vector<std::shared_ptr<RemoteRegion>> theirs;
    std::vector<void*> our_handles, their_handles;
    headrace_side_v1 our_side{}, their_side{};
    headrace_page_grid_v1 grid{};
    Request* request = nullptr;

    Work() = default;
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;
    ~Work() {
      if (request != nullptr) request->unref();
    }
  };
  [[nodiscard]] Result<std::shared_ptr<Work>> make_work(const UniqueFd& file);
  [[nodiscard]] Result<void> find_regions(Work& work) const;
  [[nodiscard]] std::shared_ptr<Work> take_turn();

  Instance& instance_;
  Link& link_;
  OwnerCopies& copies_;
  const Name name_;
  MoveControl control_;

  std::mutex mutex_;
  std::optional<Error> refused_;
  std::shared_ptr<Work> work_;  // none: not prepared, or refused
  // Of the post that has been taken up, if there is one.
  std::shared_ptr<OwnerCopy> self_;
  std::shared_ptr<Work> running_;
  std::optional<std::uint64_t> begun_;  // its number, once a GPU was let begin
  bool called_off_ = false;
  bool gpu_tells_ = false;
  bool again_ = false;  // another was asked for meanwhile
};

}  // namespace headrace::cuda_ipc
