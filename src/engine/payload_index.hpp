// SPDX-License-Identifier: Apache-2.0
// Finds the oldest message whose payload begins with a prefix, in logarithmic time.
//
// A treap (Aragon and Seidel, 1989) ordered by payload, whose nodes know the oldest message below them: the
// payloads with a prefix are neighbours in that order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headrace::engine {

/// Not locked: its owner does that.
class PayloadIndex {
 public:
  /// A message, which its owner keeps at one address while it is in the index.
  struct Entry {
    std::string_view payload;
    std::uint64_t number = 0;  ///< the lower, the older; no two have the same

   private:
    friend class PayloadIndex;
    Entry* left_ = nullptr;
    Entry* right_ = nullptr;
    Entry* oldest_ = nullptr;  // of the tree below, itself included
    std::uint64_t priority_ = 0;
  };

  void add(Entry& entry);
  void remove(Entry& entry);
  /// Null: none begins with it.
  [[nodiscard]] Entry* oldest(std::string_view prefix) const;
  [[nodiscard]] bool empty() const { return root_ == nullptr; }
  void clear() { root_ = nullptr; }

 private:
  static bool before(const Entry& a, const Entry& b);
  static Entry* older(Entry* a, Entry* b);
  static void pull(Entry& entry);
  static void split(Entry* tree, const Entry& at, Entry*& lower, Entry*& upper);
  static Entry* merge(Entry* lower, Entry* upper);
  static Entry* insert(Entry* tree, Entry& entry);
  static Entry* erase(Entry* tree, Entry& entry);
  static Entry* oldest_from(Entry* tree, std::string_view prefix);
  static Entry* oldest_up_to(Entry* tree, std::string_view prefix);

  Entry* root_ = nullptr;
};

}  // namespace headrace::engine
