// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of a call.
#pragma once

#include "base/errors.hpp"
#include "collectives/core.hpp"

#include <headrace/comm.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace headrace::collectives {

/// One call whose arguments are checked. The first error stays.
class Arguments {
 public:
  Arguments(const Comm::Core& core, CommOperation operation) : core_(core), operation_(operation) {
    // Before anything takes a lock: the parent may have held it.
    if (core.forked()) error_ = core.why_not_in_child();
  }

  Arguments& memory(const char* what, const ConstElements& elements) {
    if (static_cast<std::size_t>(elements.dtype) >= dtype_count)
      return refuse("{} has the element type {}, which does not exist", what,
                    static_cast<int>(elements.dtype));
    if (elements.count > PTRDIFF_MAX / element_bytes(elements.dtype))
      return refuse("{} has {} elements: more than any memory", what, elements.count);
    if (elements.data == nullptr && elements.count != 0)
      return refuse("{} has {} elements and a null address", what, elements.count);
    return *this;
  }
  Arguments& same(const char* what, const ConstElements& a, const char* other, const ConstElements& b) {
    same_type(what, a, other, b);
    return a.count == b.count ? *this
                              : refuse("{} has {} elements, {} has {}: both need the same count", what,
                                       a.count, other, b.count);
  }
  Arguments& same_type(const char* what, const ConstElements& a, const char* other, const ConstElements& b) {
    memory(what, a).memory(other, b);
    return a.dtype == b.dtype ? *this
                              : refuse("{} is {}, {} is {}: both need the same type", what,
                                       dtype_name(a.dtype), other, dtype_name(b.dtype));
  }
  Arguments& times(const char* many, const ConstElements& a, const char* one, const ConstElements& b) {
    same_type(many, a, one, b);
    if (a.count % size() == 0 && a.count / size() == b.count) return *this;
    return refuse("{} has {} elements: {} ranks times {} of {} are expected", many, a.count, size(), b.count,
                  one);
  }
  /// Elements that are cut into one part for each rank.
  Arguments& divisible(const char* what, const ConstElements& elements) {
    return elements.count % size() == 0
               ? *this
               : refuse(
                     "{} has {} elements for {} ranks: the count must be a multiple of the number of ranks",
                     what, elements.count, size());
  }
  /// One rank's part of elements that have been checked.
  Arguments& share(const char* what, const ConstElements& part, const char* whole, const ConstElements& all) {
    if (part.count != all.count / size() || part.dtype != all.dtype)
      return refuse("{} has {} {}, {} takes {} {} of each rank", what, part.count, dtype_name(part.dtype),
                    whole, all.count / size(), dtype_name(all.dtype));
    return memory(what, part);
  }
  template <class List>
  Arguments& list(const char* what, const List& list, std::size_t expected) {
    if (list.size() != expected)
      return refuse("{} has {} entries, {} are expected", what, list.size(), expected);
    for (const auto& elements : list) memory(what, elements);
    return *this;
  }
  /// Each entry as the one element list: type, and count if `counts`.
  template <class List>
  Arguments& each(const char* what, const List& list, const char* other, const ConstElements& one,
                  bool counts) {
    for (const auto& elements : list)
      counts ? same(what, elements, other, one) : same_type(what, elements, other, one);
    return *this;
  }
  Arguments& root(int root) {
    if (root < 0 || static_cast<std::size_t>(root) >= size())
      return refuse("there is no root {}; there are {} ranks, from 0", root, size());
    return *this;
  }
  /// The other rank of a message.
  Arguments& peer(int peer, bool may_be_any) {
    if (may_be_any && peer == any_source) return *this;
    if (peer < 0 || static_cast<std::size_t>(peer) >= size() || peer == core_.rank())
      return refuse("rank {} is no other rank; there are {} ranks, from 0", peer, size());
    return *this;
  }
  Arguments& splits(const char* what, std::span<const std::size_t> splits, const ConstElements& elements) {
    memory(what, elements);
    if (splits.size() != size()) return refuse("{} has {} splits for {} ranks", what, splits.size(), size());
    std::size_t sum = 0;
    for (const std::size_t split : splits)
      if (__builtin_add_overflow(sum, split, &sum))
        return refuse("the splits of {} add up to more than any memory", what);
    if (sum != elements.count)
      return refuse("the splits of {} add up to {}, its elements are {}", what, sum, elements.count);
    return *this;
  }
  /// Splits that are read later.
  Arguments& split_elements(const char* what, const ConstElements& splits) {
    if (splits.dtype != DType::int64)
      return refuse("the splits of {} are {}: int64 is expected", what, dtype_name(splits.dtype));
    if (splits.count != size()) return refuse("{} has {} splits for {} ranks", what, splits.count, size());
    return memory("the splits", splits);
  }
  Arguments& that(bool holds, std::string_view otherwise) { return holds ? *this : refuse("{}", otherwise); }
  /// The error with its context, once.
  [[nodiscard]] std::optional<Error> take_error() {
    if (!error_) return std::nullopt;
    return core_.refused(comm_operation_name(operation_), std::move(*error_));
  }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(core_.size()); }

 private:
  template <class... Args>
  Arguments& refuse(fmt::format_string<Args...> text, Args&&... args) {
    if (!error_) error_ = make_error(Code::invalid_argument, text, std::forward<Args>(args)...);
    return *this;
  }
  const Comm::Core& core_;
  const CommOperation operation_;
  std::optional<Error> error_;
};

}  // namespace headrace::collectives
