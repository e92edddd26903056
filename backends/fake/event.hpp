// SPDX-License-Identifier: Apache-2.0
// What an instance is to do on its own time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace headrace::fake {

struct LinkEnd;
struct Request;

/// A message on its way. One whose request failed travels as `nothing`, so that those behind it need not wait
/// for it.
struct Message {
  std::uint32_t channel = 0;
  std::uint64_t sequence = 0;
  bool nothing = false;
  std::string bytes;
};

struct Event {
  enum class Kind : std::uint8_t { run, accept, ready, message, lost } kind = Kind::run;
  std::shared_ptr<LinkEnd> link;     ///< all but run: the end at which it happens
  std::shared_ptr<Request> request;  ///< run
  std::uint64_t post_number = 0;     ///< run: of the post that it belongs to
  Message message;
};

}  // namespace headrace::fake
