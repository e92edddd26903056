// SPDX-License-Identifier: Apache-2.0
// Tokens of posts: the slot of a request and the generation of its post. A completion that comes late or
// twice names a generation that is over: it is recognised without a look at the request, which may be gone.
//
// Slots are kept in chunks that live as long as this object, so any token may be looked up at any time. A
// slot's generation is odd while its post is in flight, and never used twice before 2^31 further posts of the
// slot.
#pragma once

#include <headrace/result.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace::engine {

class RequestCore;

class PostSlots {
  struct Slot {
    std::atomic<std::uint32_t> generation{0};
    RequestCore* owner = nullptr;  // written while the generation is even
  };

 public:
  static constexpr std::size_t chunk_slots = 1024;
  static constexpr std::size_t most_chunks = 4096;

  /// A request's own slot, given back at the end.
  class Hold {
   public:
    Hold(Hold&& other) noexcept
        : slots_(std::exchange(other.slots_, nullptr)), slot_(other.slot_), number_(other.number_) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (slots_ != nullptr) slots_->give_back(number_);
    }

    /// Before the first post.
    void set_owner(RequestCore& owner) { slot_->owner = &owner; }
    /// The token of a post that begins. No post is in flight.
    [[nodiscard]] std::uint64_t begin() {
      const std::uint32_t generation = slot_->generation.load(std::memory_order_relaxed) + 1;
      slot_->generation.store(generation, std::memory_order_release);
      return std::uint64_t{generation} << 32 | number_;
    }
    /// The backend refused the post. False if it has completed it all the same.
    [[nodiscard]] bool withdraw(std::uint64_t token) { return end(*slot_, token); }

   private:
    friend class PostSlots;
    Hold(PostSlots& slots, Slot& slot, std::uint32_t number)
        : slots_(&slots), slot_(&slot), number_(number) {}
    PostSlots* slots_;
    Slot* slot_;
    std::uint32_t number_;
  };

  PostSlots() = default;
  ~PostSlots();
  PostSlots(const PostSlots&) = delete;
  PostSlots& operator=(const PostSlots&) = delete;

  /// exhausted beyond chunk_slots * most_chunks requests.
  [[nodiscard]] Result<Hold> take();
  /// Ends the post in flight with this token and returns its request; null if there is none. Each post is
  /// returned once. Takes no lock.
  [[nodiscard]] RequestCore* complete(std::uint64_t token) {
    Slot* const slot = find(static_cast<std::uint32_t>(token));
    return slot != nullptr && end(*slot, token) ? slot->owner : nullptr;
  }

 private:
  static bool end(Slot& slot, std::uint64_t token) {
    auto generation = static_cast<std::uint32_t>(token >> 32);
    return (generation & 1U) != 0 &&
           slot.generation.compare_exchange_strong(generation, generation + 1, std::memory_order_acq_rel);
  }
  [[nodiscard]] Slot* find(std::uint32_t number) {
    if (number >= chunk_slots * most_chunks) return nullptr;
    Slot* const chunk = chunks_[number / chunk_slots].load(std::memory_order_acquire);
    return chunk != nullptr ? &chunk[number % chunk_slots] : nullptr;
  }
  void give_back(std::uint32_t number);

  std::array<std::atomic<Slot*>, most_chunks> chunks_{};
  std::mutex mutex_;  ///< guards the next two, and the making of chunks
  std::vector<std::uint32_t> free_;
  std::uint32_t used_ = 0;  ///< slots that have ever been taken
};

}  // namespace headrace::engine
