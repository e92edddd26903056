// SPDX-License-Identifier: Apache-2.0
#include <headrace/result.hpp>

#include <cstdio>
#include <cstdlib>

namespace headrace {

std::string_view code_name(Code code) noexcept {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::would_block:
      return "would_block";
    case Code::invalid_argument:
      return "invalid_argument";
    case Code::not_found:
      return "not_found";
    case Code::not_supported:
      return "not_supported";
    case Code::timed_out:
      return "timed_out";
    case Code::canceled:
      return "canceled";
    case Code::peer_lost:
      return "peer_lost";
    case Code::exhausted:
      return "exhausted";
    case Code::corrupt:
      return "corrupt";
    case Code::backend_failed:
      return "backend_failed";
    case Code::internal:
      return "internal";
  }
  // A plugin may hand us a number that this version does not know; it must not crash a log line.
  return "unknown_code";
}

namespace detail {

void bad_result_access(const Error& error) {
  const std::string_view name = code_name(error.code);
  std::fprintf(stderr, "headrace: the value of a failed result was taken: %.*s: %s\n",
               static_cast<int>(name.size()), name.data(), error.message.c_str());
  std::abort();
}

}  // namespace detail
}  // namespace headrace
