// SPDX-License-Identifier: Apache-2.0
#include "base/comm_border.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

namespace headrace::comm_border {
namespace {

/// The buffer into which a function of the host writes why it fails.
class WhyText {
 public:
  headrace_text_v1* out() { return &text_; }
  [[nodiscard]] Error error(std::int32_t code) const {
    return {static_cast<Code>(code), {buffer_.data(), std::min(text_.length, buffer_.size())}};
  }

 private:
  std::array<char, 1024> buffer_{};
  headrace_text_v1 text_{sizeof(headrace_text_v1), buffer_.data(), buffer_.size(), 0};
};

void append_bytes(void* text, const void* bytes, std::size_t length) {
  static_cast<std::string*>(text)->append(static_cast<const char*>(bytes), length);
}

}  // namespace

std::int32_t answer(const Error& error, headrace_text_v1* why) {
  if (why != nullptr) why->length = error.message.copy(why->data, why->capacity);
  return static_cast<std::int32_t>(error.code);
}

Deadline deadline_of(std::int64_t timeout_ns) {
  return timeout_ns < 0 ? Deadline::never() : Deadline::after(std::chrono::nanoseconds(timeout_ns));
}

Result<void> Host::set(const std::string& key, std::string_view value) const {
  WhyText why;
  const std::int32_t code = table_->set(table_->context, key.c_str(), value.data(), value.size(), why.out());
  if (code != HEADRACE_OK) return why.error(code);
  return {};
}

Result<std::string> Host::get(const std::string& key) const {
  WhyText why;
  std::string value;
  const headrace_sink_v1 sink{sizeof sink, &value, append_bytes};
  const std::int32_t code = table_->get(table_->context, key.c_str(), &sink, why.out());
  if (code != HEADRACE_OK) return why.error(code);
  return value;
}

Result<std::string> Host::wait_for(const std::string& key, const Deadline& deadline,
                                   std::string_view missing) const {
  while (true) {
    auto value = get(key);
    if (value || value.code() != Code::not_found) return value;
    if (deadline.expired()) return make_error(Code::timed_out, "{}", missing);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Host::end(std::uint64_t work, const Result<void>& result, int source) const {
  const Error error = result ? Error{Code::ok, {}} : result.error();
  table_->end(table_->context, work, static_cast<std::int32_t>(error.code), error.message.data(),
              error.message.size(), source);
}

void Host::ended(const Error& why) const {
  table_->ended(table_->context, static_cast<std::int32_t>(why.code), why.message.data(), why.message.size());
}

}  // namespace headrace::comm_border
