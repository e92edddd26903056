// SPDX-License-Identifier: Apache-2.0
#include "choice/agreement.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <thread>
#include <utility>

namespace headrace::choice {
namespace {

using Json = nlohmann::json;

constexpr auto longest_stay = std::chrono::seconds(5);

std::string key_of(const std::string& step, int rank) { return step + "/" + std::to_string(rank); }
std::string key_of_all(const std::string& step) { return step + "/all"; }

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string error_text(const Error& error) {
  return text_of({{"code", static_cast<int>(error.code)}, {"error", error.message}});
}

Error unreadable(std::string_view what) {
  return make_error(Code::corrupt, "{} cannot be read: do all ranks run the same version of Headrace?", what);
}

/// The text of a rank, or of all: a value or an error.
Result<Json> read(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return unreadable("what a rank brings");
  const auto code = json.find("code");
  if (code == json.end()) return json;
  if (!code->is_number_integer() || !json["error"].is_string()) return unreadable("the error of a rank");
  const int number = code->get<int>();
  const bool known = number > HEADRACE_WOULD_BLOCK && number <= HEADRACE_INTERNAL;
  return Error{known ? static_cast<Code>(number) : Code::backend_failed, json["error"].get<std::string>()};
}

}  // namespace

Result<std::vector<std::string>> Agreement::exchange(const std::string& step,
                                                     const Result<std::string>& mine) {
  if (broken_) return *broken_;
  if (size_ == 1) {
    if (!mine) return mine.error();
    return std::vector{*mine};
  }
  last_step_ = step;
  auto text = step_text(step, mine);
  if (!text) {
    broken_ = text.error();
    return std::move(text).error();
  }
  HEADRACE_TRY(all, read(*text));
  const Json& values = all["values"];
  if (!values.is_array() || values.size() != static_cast<std::size_t>(size_))
    return unreadable("what rank 0 gives");
  std::vector<std::string> texts;
  for (const Json& value : values) {
    if (!value.is_string()) return unreadable("what rank 0 gives");
    texts.push_back(value.get<std::string>());
  }
  return texts;
}

Result<void> Agreement::all(const std::string& step, const Result<void>& mine) {
  const Result<std::string> brought = mine ? Result<std::string>(std::string()) : mine.error();
  HEADRACE_TRY_VOID(exchange(step, brought));
  return {};
}

/// What rank 0 gives to all in a step.
Result<std::string> Agreement::step_text(const std::string& step, const Result<std::string>& mine) const {
  const std::string text = mine ? text_of({{"value", *mine}}) : error_text(mine.error());
  HEADRACE_TRY_VOID(host_.set(key_of(step, rank_), text));
  if (rank_ != 0) return host_.wait_for(key_of_all(step), deadline_, "rank 0 has not come");
  auto all = collect(step);
  // The others hear of a rank that is missing now, not when they are late themselves.
  HEADRACE_TRY_VOID(host_.set(key_of_all(step), all ? *all : error_text(all.error())));
  return all;
}

Result<std::string> Agreement::collect(const std::string& step) const {
  Json values = Json::array();
  std::optional<Error> first;  // all ranks are awaited even so: none leaves before all have come
  for (int rank = 0; rank < size_; ++rank) {
    HEADRACE_TRY(text,
                 host_.wait_for(key_of(step, rank), deadline_, fmt::format("rank {} has not come", rank)));
    auto brought = read(text);
    if (brought)
      values.push_back((*brought)["value"]);
    else if (!first)
      first = std::move(brought).error().within(fmt::format("rank {}", rank));
  }
  if (first) return error_text(*first);
  return text_of({{"values", std::move(values)}});
}

void Agreement::end() {
  if (size_ == 1 || last_step_.empty()) return;
  const Deadline limit = Deadline::earliest(deadline_, Deadline::after(longest_stay));
  if (rank_ != 0) {
    static_cast<void>(host_.set(key_of("end", rank_), "yes"));
    return;
  }
  for (int rank = 1; rank < size_; ++rank)
    // One whose keys are gone has left, and so has read.
    while (!limit.expired() && !host_.get(key_of("end", rank)) && host_.get(key_of(last_step_, rank)))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace headrace::choice
