// SPDX-License-Identifier: Apache-2.0
// The memory file of a request that its peer carries out: the pages, which are told once, and the words by
// which its posts are asked for and ended.
//
// The initiator makes one for each such request and sends its descriptor; README.md has the layout. Each side
// keeps the control page mapped. The pages are copied out of the file before the first of them is looked at,
// for the other process may write there at any time; so is a failure's text.
#pragma once

#include "base/unique_fd.hpp"
#include "host_link/memory_file.hpp"
#include "host_link/post.hpp"

#include <headrace/plugin/backend_v1.h>
#include <headrace/result.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace headrace::cuda_ipc {

inline constexpr std::uint64_t move_control_bytes = 4096;  ///< the pages follow
inline constexpr std::uint64_t max_move_file_bytes = 512ULL << 20;
inline constexpr std::uint64_t max_move_pages = 1ULL << 24;  ///< 64 GiB of pages of 4 KiB
inline constexpr std::uint32_t max_move_regions = 65536;     ///< on either side
inline constexpr std::size_t max_failure_bytes = 1024;

/// The first page of the file. Both processes write it and neither believes the other.
struct MoveWords {
  /// Post number * 4 + phase. Who may begin and who may call off is decided by one exchange of it.
  alignas(64) std::atomic<std::uint64_t> turn;
  /// The last post that ended well, written after its bytes, if no GPU has said so by its end word.
  alignas(64) std::atomic<std::uint64_t> done;
  alignas(64) std::atomic<std::uint64_t> failed;  ///< the last that did not; written after what follows
  std::uint64_t page;
  std::uint32_t code;
  std::uint32_t text_bytes;
  std::array<char, max_failure_bytes> text;
};
static_assert(sizeof(MoveWords) <= move_control_bytes && std::atomic<std::uint64_t>::is_always_lock_free);

/// Both sides' view of the words. The memory of a post is quiet unless it is running.
class MoveControl {
 public:
  explicit MoveControl(host_link::Mapping page) : page_(std::move(page)) {}

  // ---- the initiator's

  /// Asks for post `number`, greater than those before, which have ended.
  void ask(std::uint64_t number) { turn().store(number * 4 + asked); }
  /// Calls off the post if it has not begun, and then it will not. Returns whether that was so.
  bool withdraw(std::uint64_t number) { return change(number, asked, withdrawn); }
  [[nodiscard]] bool was_withdrawn(std::uint64_t number) const {
    return turn().load() == number * 4 + withdrawn;
  }
  [[nodiscard]] bool has_ended(std::uint64_t number) const {
    return words().done.load(std::memory_order_acquire) == number ||
           words().failed.load(std::memory_order_acquire) == number;
  }
  /// How it has ended.
  [[nodiscard]] host_link::Outcome outcome(std::uint64_t number) const;

  // ---- the owner's

  /// Begins the post that is asked for; none: there is none, or it has been called off.
  [[nodiscard]] std::optional<std::uint64_t> begin();
  void end_well(std::uint64_t number) { words().done.store(number, std::memory_order_release); }
  void fail(std::uint64_t number, const host_link::Outcome& outcome);

 private:
  enum Phase : std::uint64_t { asked = 1, running = 2, withdrawn = 3 };
  [[nodiscard]] MoveWords& words() const { return *reinterpret_cast<MoveWords*>(page_.data()); }
  [[nodiscard]] std::atomic<std::uint64_t>& turn() const { return words().turn; }
  bool change(std::uint64_t number, Phase from, Phase to) {
    std::uint64_t expected = number * 4 + from;
    return turn().compare_exchange_strong(expected, number * 4 + to);
  }

  host_link::Mapping page_;
};

/// A region as it is told: the receiver looks up its own by `id`, and reaches the sender's by all of it.
struct ToldRegion {
  std::uint32_t id = 0;
  std::int32_t kind = HEADRACE_DRAM;
  std::uint64_t length = 0;
  std::uint32_t mark = 0;  ///< of its GPU

  friend bool operator==(const ToldRegion&, const ToldRegion&) = default;
};

/// What a file tells, in memory of our own.
struct MoveList {
  struct Side {
    enum class Shape : std::uint32_t { regular = 0, indexed = 1, listed = 2 };
    std::vector<ToldRegion> regions;
    Shape shape = Shape::regular;
    std::uint64_t base = 0;
    std::uint64_t stride = 0;
    std::vector<std::uint32_t> indices;    ///< indexed
    std::vector<std::uint64_t> offsets;    ///< listed
    std::vector<std::uint32_t> region_of;  ///< listed

    /// As a backend is given it; points into this. `regions`: a handle for each.
    [[nodiscard]] headrace_side_v1 view(const MoveList& list, const std::vector<void*>& handles) const;
  };
  headrace_op_v1 op = HEADRACE_READ;  ///< of the initiator's
  std::uint64_t count = 0;
  std::uint64_t page_bytes = 0;  ///< of all pages; 0: `lengths`
  std::vector<std::uint64_t> lengths;
  std::optional<headrace_page_grid_v1> grid;  ///< of every page; the local side is the initiator's
  Side initiators;
  Side owners;

  /// That each page lies in its region, whose length on the owner's side is `owners_length(number)`. Returns
  /// how many bytes they are together.
  ///   errors   invalid_argument (with the page), not_found (there is no such region)
  [[nodiscard]] Result<std::uint64_t> check(
      const std::function<std::optional<std::uint64_t>(std::size_t number)>& owners_length) const;
};

struct MoveFile {
  UniqueFd descriptor;
  MoveControl control;
};

/// Tells the pages of a request. `tell` describes a handle of the local side, and of the remote one.
///   errors   not_supported (more pages or regions than a file may tell), exhausted
[[nodiscard]] Result<MoveFile> write_move_file(const headrace_prepare_v1& args,
                                               const std::function<ToldRegion(void* handle)>& tell_local,
                                               const std::function<ToldRegion(void* handle)>& tell_remote);

/// Maps the words of a file that a peer sent.
///   errors   corrupt (no sealed memory file of a size that can be)
[[nodiscard]] Result<MoveControl> open_move_control(int fd);
/// Copies the pages out of it.
///   errors   corrupt, exhausted
[[nodiscard]] Result<MoveList> read_move_list(int fd);
/// The pages, from what follows the control page. That they make sense among themselves is all that is looked
/// at.
///   errors   corrupt (they do not)
[[nodiscard]] Result<MoveList> decode_move_list(std::string_view body);

}  // namespace headrace::cuda_ipc
