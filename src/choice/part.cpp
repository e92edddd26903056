// SPDX-License-Identifier: Apache-2.0
#include "choice/part.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace headrace::choice {
namespace {

Part& part_of(void* context) { return *static_cast<Part*>(context); }

std::string_view text_of(const char* text, std::size_t length) {
  return text == nullptr ? std::string_view() : std::string_view(text, length);
}

/// The buffer into which an entry writes why it fails.
class Why {
 public:
  headrace_text_v1* out() { return &text_; }
  [[nodiscard]] std::string_view view() const {
    return {buffer_.data(), std::min(text_.length, buffer_.size())};
  }

 private:
  std::array<char, 1024> buffer_{};
  headrace_text_v1 text_{sizeof(headrace_text_v1), buffer_.data(), buffer_.size(), 0};
};

std::int64_t nanoseconds_left(const Deadline& deadline) {
  return deadline.is_never() ? -1 : static_cast<std::int64_t>(deadline.remaining_ns());
}

}  // namespace

Part::Part(const Candidate& candidate, const headrace_comm_host_v1* outer, std::size_t index, Works& works)
    : candidate_(candidate),
      outer_table_(outer),
      outer_(outer),
      index_(index),
      works_(works),
      host_(host_table()) {}

Part::~Part() { close(); }

void Part::close() {
  if (comm_ != nullptr) table_.close(std::exchange(comm_, nullptr));
}

Error Part::error_of(std::int32_t code, std::string_view message) const {
  const bool known = code > HEADRACE_WOULD_BLOCK && code <= HEADRACE_INTERNAL;
  const Code mine = known ? static_cast<Code>(code) : Code::backend_failed;
  return make_error(mine, "{}", message.empty() ? code_name(mine) : message).within(name());
}

// --- opening

Result<void> Part::open(Setup setup, Agreement& agreement, const Make& make) {
  agreement_ = &agreement;
  Result<void> made = make_handle(setup, agreement.deadline(), make);
  if (!met_) static_cast<void>(meet(made));
  if (refusal_) {  // all ranks have it, so none goes on
    agreement_ = nullptr;
    close();
    return *refusal_;
  }
  if (!made) static_cast<void>(outer_.set(name() + " failed", made.error().message));
  made = agreement.all(name() + " opened", made);
  agreement_ = nullptr;
  if (!made) {
    close();
    return made;
  }
  count();
  return {};
}

Result<void> Part::open_without_store(Setup setup, const Make& make) {
  const Deadline deadline = comm_border::deadline_of(setup.meeting_timeout_ns);
  if (auto made = make_handle(setup, deadline, make); !made) return std::move(made).error().within(name());
  count();
  return {};
}

Result<void> Part::make_handle(Setup& setup, const Deadline& deadline, const Make& make) {
  auto table = candidate_.table();
  if (!table) return std::move(table).error();
  table_ = *table;
  if (table_.wait_on == nullptr)
    return make_error(Code::not_supported,
                      "its table has no wait_on, by which calls follow one another on a GPU");
  const std::vector<headrace_setting_v1> hints = known_of({setup.hints, setup.hint_count}, candidate_.hints);
  setup.host = &host_;
  setup.hints = hints.data();
  setup.hint_count = hints.size();
  setup.meeting_timeout_ns = nanoseconds_left(deadline);
  Why why;
  const std::int32_t code = make(table_, setup, &comm_, why.out());
  if (code == HEADRACE_OK && comm_ != nullptr) return {};
  comm_ = nullptr;
  if (code == HEADRACE_OK) return make_error(Code::backend_failed, "it opened and gave no handle");
  const bool known = code > HEADRACE_WOULD_BLOCK && code <= HEADRACE_INTERNAL;
  return make_error(known ? static_cast<Code>(code) : Code::backend_failed, "{}", why.view());
}

Result<void> Part::meet(const Result<void>& mine) {
  met_ = true;
  auto all = agreement_->all(name() + " begins", mine);
  if (!all) refusal_ = all.error();
  return all;
}

void Part::count() {
  std::optional<Error> early;
  {
    const std::scoped_lock lock(mutex_);
    counts_ = true;
    early = std::exchange(early_end_, std::nullopt);
  }
  if (early) outer_.ended(*early);
}

// --- calls

Result<bool> Part::issue(const Call& call, std::uint64_t work) {
  return begin(work, [&](headrace_text_v1* why) { return table_.issue(comm_, &call, work, why); });
}

template <class Issue>
Result<bool> Part::begin(std::uint64_t work, const Issue& issue) {
  works_.add(work, index_);
  Why why;
  const std::int32_t code = issue(why.out());
  if (code == HEADRACE_COMM_BEGUN) return false;
  works_.remove(work);
  if (code == HEADRACE_COMM_DONE) return true;
  return error_of(code, why.view());
}

Result<void> Part::follow(std::uint64_t work, void* stream) {
  const std::scoped_lock lock(driving_);
  return wait_on(work, stream);
}

Result<void> Part::wait_on(std::uint64_t work, void* stream) {
  Why why;
  const std::int32_t code = table_.wait_on(comm_, work, stream, why.out());
  if (code != HEADRACE_OK) return error_of(code, why.view());
  return {};
}

Result<void> Part::group_end() {
  Why why;
  const std::int32_t code = table_.group_end(comm_, why.out());
  if (code != HEADRACE_OK) return error_of(code, why.view());
  return {};
}

bool Part::progress() {
  if (table_.progress == nullptr) return false;
  const std::scoped_lock lock(driving_);
  return table_.progress(comm_) != 0;
}

void Part::abort(std::string_view reason) { table_.abort(comm_, reason.data(), reason.size()); }

Result<void> Part::stand_aside() {
  if (table_.split == nullptr) return {};
  void* none = nullptr;
  Why why;
  const std::int32_t code = table_.split(comm_, nullptr, 0, nullptr, &none, why.out());
  if (code != HEADRACE_OK) return error_of(code, why.view());
  return {};
}

Result<std::string> Part::init_handle() {
  std::string handle;
  const headrace_sink_v1 sink{sizeof sink, &handle, [](void* context, const void* bytes, std::size_t length) {
                                static_cast<std::string*>(context)->append(static_cast<const char*>(bytes),
                                                                           length);
                              }};
  Why why;
  const std::int32_t code = table_.init_handle(comm_, &sink, why.out());
  if (code != HEADRACE_OK) return error_of(code, why.view());
  return handle;
}

Result<std::uint64_t> Part::tensor_register(const headrace_comm_elements_v1& tensor,
                                            const Deadline& deadline) {
  std::uint64_t registration = 0;
  Why why;
  const std::int32_t code =
      table_.tensor_register(comm_, &tensor, nanoseconds_left(deadline), &registration, why.out());
  if (code != HEADRACE_OK) return error_of(code, why.view());
  return registration;
}

Result<void> Part::tensor_deregister(std::uint64_t registration, const Deadline& deadline) {
  Why why;
  const std::int32_t code =
      table_.tensor_deregister(comm_, registration, nanoseconds_left(deadline), why.out());
  if (code != HEADRACE_OK) return error_of(code, why.view());
  return {};
}

Result<void> Part::suspend(const Deadline& deadline) {
  Why why;
  const std::int32_t code = table_.suspend(comm_, nanoseconds_left(deadline), why.out());
  if (code != HEADRACE_OK) return error_of(code, why.view());
  return {};
}

Result<void> Part::resume(const Deadline& deadline) {
  Why why;
  const std::int32_t code = table_.resume(comm_, nanoseconds_left(deadline), why.out());
  if (code != HEADRACE_OK) return error_of(code, why.view());
  return {};
}

Result<void> Part::window_open(headrace_comm_window_v1& window, const Deadline& deadline) {
  Why why;
  const std::int32_t code = table_.window_open(comm_, &window, nanoseconds_left(deadline), why.out());
  if (code != HEADRACE_OK) return error_of(code, why.view());
  return {};
}

Result<void> Part::window_close(std::uint64_t window, const Deadline& deadline) {
  Why why;
  const std::int32_t code = table_.window_close(comm_, window, nanoseconds_left(deadline), why.out());
  if (code != HEADRACE_OK) return error_of(code, why.view());
  return {};
}

Result<bool> Part::window_issue(const headrace_comm_window_call_v1& call, std::uint64_t work) {
  return begin(work, [&](headrace_text_v1* why) { return table_.window_issue(comm_, &call, work, why); });
}

std::string Part::waits_for(std::uint64_t work) {
  if (table_.waits_for == nullptr) return {};
  Why why;
  table_.waits_for(comm_, work, why.out());
  return why.view().empty() ? std::string() : fmt::format("{}: {}", name(), why.view());
}

// --- what the candidate calls

void Part::end(std::uint64_t work, std::int32_t code, std::string_view message, std::int32_t source) {
  works_.remove(work);
  std::string text;
  if (code != HEADRACE_OK) text = error_of(code, message).message;
  outer_table_->end(outer_table_->context, work, code, text.data(), text.size(), source);
}

void Part::ended(std::int32_t code, std::string_view message) {
  Error why = error_of(code, message);
  {
    const std::scoped_lock lock(mutex_);
    if (!counts_) {
      early_end_ = std::move(why);
      return;
    }
  }
  outer_.ended(why);
}

Result<void> Part::set(const std::string& key, std::string_view value) {
  if (agreement_ == nullptr)
    return make_error(Code::invalid_argument, "it does not open now: no key can be set");
  if (!met_) HEADRACE_TRY_VOID(meet({}));
  if (refusal_) return *refusal_;
  return outer_.set(fmt::format("{}: {}", name(), key), value);
}

Result<std::string> Part::get(const std::string& key) {
  if (agreement_ == nullptr)
    return make_error(Code::invalid_argument, "it does not open now: no key can be read");
  if (!met_) HEADRACE_TRY_VOID(meet({}));
  if (refusal_) return *refusal_;
  auto value = outer_.get(fmt::format("{}: {}", name(), key));
  if (value || value.code() != Code::not_found) return value;
  if (const auto failed = outer_.get(name() + " failed"))
    return make_error(Code::canceled, "another rank cannot open it: {}", *failed);
  return value;
}

headrace_comm_host_v1 Part::host_table() {
  using comm_border::guarded;
  headrace_comm_host_v1 host = *outer_table_;
  host.struct_size = sizeof host;
  host.context = this;
  host.end = [](void* context, std::uint64_t work, std::int32_t code, const char* message, std::size_t length,
                std::int32_t source) {
    guarded(nullptr, [&]() -> Result<void> {
      part_of(context).end(work, code, text_of(message, length), source);
      return {};
    });
  };
  host.ended = [](void* context, std::int32_t code, const char* message, std::size_t length) {
    guarded(nullptr, [&]() -> Result<void> {
      part_of(context).ended(code, text_of(message, length));
      return {};
    });
  };
  host.log_enabled = [](void* context, std::int32_t level) {
    const auto& outer = *part_of(context).outer_table_;
    return outer.log_enabled(outer.context, level);
  };
  host.log = [](void* context, std::int32_t level, const char* text, std::size_t length) {
    const auto& outer = *part_of(context).outer_table_;
    outer.log(outer.context, level, text, length);
  };
  host.set = [](void* context, const char* key, const void* value, std::size_t length,
                headrace_text_v1* why) {
    return guarded(why, [&] { return part_of(context).set(key, {static_cast<const char*>(value), length}); });
  };
  host.get = [](void* context, const char* key, const headrace_sink_v1* value, headrace_text_v1* why) {
    return guarded(why, [&]() -> Result<void> {
      HEADRACE_TRY(found, part_of(context).get(key));
      value->append(value->context, found.data(), found.size());
      return {};
    });
  };
  return host;
}

}  // namespace headrace::choice
