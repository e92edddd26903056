// SPDX-License-Identifier: Apache-2.0
#include "moe/under_way.hpp"

#include "base/errors.hpp"
#include "moe/epochs.hpp"

namespace headrace::moe {

Result<void> none_under_way(const UnderWay& count, std::string_view operation) {
  if (count.sent == count.received) return {};
  return make_error(Code::invalid_argument, "{} {} is under way: receive it before a whole {}", operation,
                    count.received + 1, operation);
}

Result<void> may_send(const UnderWay& count, std::string_view operation) {
  if (may_begin(count.sent, count.received)) return {};
  return make_error(Code::invalid_argument,
                    "{} {} cannot begin: {} are under way, the most that a window holds. Receive {} {} first",
                    operation, count.sent + 1, halves, operation, count.received + 1);
}

Result<void> may_receive(const UnderWay& count, std::uint64_t awaited, std::string_view operation) {
  if (count.sent == count.received)
    return make_error(Code::invalid_argument, "no {} is under way: send one first", operation);
  const std::uint64_t next = count.received + 1;
  if (awaited == next) return {};
  return make_error(
      Code::invalid_argument,
      "the routing is not that of {} {}, which is received next: give the one that it was sent with",
      operation, next);
}

}  // namespace headrace::moe
