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
  // A plugin may return a number that this version does not know; logging it must not crash.
  return "unknown_code";
}

std::string_view code_sentence(Code code) noexcept {
  switch (code) {
    case Code::ok:
      return "the call succeeded";
    case Code::would_block:
      return "a queue is full: poll, then retry";
    case Code::invalid_argument:
      return "the call cannot be carried out as it is: correct its arguments, or wait until what it needs "
             "has ended";
    case Code::not_found:
      return "no such peer, region or name is known, or it is gone: import the metadata again and prepare "
             "the lists again";
    case Code::not_supported:
      return "no path can do this: use other memory, or another backend";
    case Code::timed_out:
      return "the deadline passed before it was done: allow more time, or check the peer";
    case Code::canceled:
      return "it was canceled";
    case Code::peer_lost:
      return "the peer has died, left or restarted, or cannot be reached: import its metadata when it is "
             "back";
    case Code::exhausted:
      return "memory, descriptors or a declared limit ran out: release some, or raise the limit";
    case Code::corrupt:
      return "the received bytes are not what was sent: check that no other program uses this connection";
    case Code::backend_failed:
      return "the path failed: post again, or use another backend";
    case Code::internal:
      return "an invariant of Headrace is broken: please report it, with the log of HEADRACE_LOG=debug";
  }
  return "this version does not know the code";
}

namespace detail {

void bad_result_access(const Error& error) {
  const std::string_view name = code_name(error.code);
  std::fprintf(stderr, "headrace: the caller took the value of a failed result: %.*s: %s\n",
               static_cast<int>(name.size()), name.data(), error.message.c_str());
  std::abort();
}

}  // namespace detail
}  // namespace headrace
