// SPDX-License-Identifier: Apache-2.0
// Requests of a peer's that we carry out, because the host memory on their far side is ours and was merely
// registered: no GPU but those of this process reaches it. The owner's side of owner_move.hpp.
//
// A GPU of ours moves, between our memory, which is pinned for it, and the peer's, which is imported as any
// peer's memory is. So each is a request of our own with its sides exchanged, and the link treats it as one:
// its posts wait for memory, end when their GPU has ended, and hold up the closing of the link.
//
// The peer is not trusted. Its pages are copied before they are looked at, and each is checked against what
// we have registered; what does not fit is answered in the file, and the link goes on.
#pragma once

#include "backends/cuda_ipc/end_words.hpp"
#include "backends/cuda_ipc/move_file.hpp"
#include "base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace headrace::cuda_ipc {

class Instance;
class Link;
class OwnerCopy;
class RemoteRegion;

/// Those of one link.
///   threads  any, save where it says: the progress thread's
class OwnerCopies {
 public:
  static constexpr std::size_t most = 4096;  ///< requests of one peer that are kept at a time

  OwnerCopies(Instance& instance, Link& link) : instance_(instance), link_(link) {}
  ~OwnerCopies();
  OwnerCopies(const OwnerCopies&) = delete;
  OwnerCopies& operator=(const OwnerCopies&) = delete;

  // ---- the progress thread's

  /// Takes up a request. What is wrong with it is told when it is posted.
  ///   errors   corrupt (not even that can be told: the link ends), exhausted (the system refuses a mapping)
  [[nodiscard]] Result<void> take(std::uint32_t number, std::uint32_t end_word, const UniqueFd& file);
  /// Begins the post that its file asks for. What is not there has been dropped.
  void go(std::uint32_t number);
  void drop(std::uint32_t number);

  /// What the peer is to be given with the first answer that its requests are ours to carry out.
  [[nodiscard]] Result<host_link::SharedFd> end_words();

  // ---- any thread

  /// A region of ours is being deregistered: its requests are refused from now on, and those that wait end.
  /// One that a GPU works on holds the region until it ends.
  void give_up(std::uint32_t region_id);
  /// A region of the peer's is gone.
  void forget(std::uint32_t peers_region_id);
  /// The link is closed, and no post is in flight.
  void clear();

 private:
  friend class OwnerCopy;
  [[nodiscard]] std::shared_ptr<OwnerCopy> find(std::uint32_t number);
  [[nodiscard]] std::optional<cuda::Address> end_word(const gpu::WorkingGpu& gpu, std::uint32_t number);
  /// The peer's region; one handle for all of its requests, so that its memory stays open between them.
  [[nodiscard]] Result<std::shared_ptr<RemoteRegion>> remote(const ToldRegion& told);

  Instance& instance_;
  Link& link_;
  std::mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<OwnerCopy>> copies_;
  std::unique_ptr<EndWords> words_;
  std::map<std::uint32_t, std::pair<ToldRegion, std::shared_ptr<RemoteRegion>>> remotes_;
};

}  // namespace headrace::cuda_ipc
