// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/faults.hpp"

#include "base/errors.hpp"
#include "base/options.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

namespace headrace::fake {
namespace {

enum class Value { none, pages, bytes, duration };

struct Row {
  std::string_view name;
  FaultKind kind;
  Value value;
};
constexpr std::array<Row, 7> rows{{
    {"drop", FaultKind::drop, Value::none},
    {"delay", FaultKind::delay, Value::duration},
    {"duplicate", FaultKind::duplicate, Value::none},
    {"reorder", FaultKind::reorder, Value::none},
    {"kill", FaultKind::kill, Value::pages},
    {"partial", FaultKind::partial, Value::bytes},
    {"deny", FaultKind::deny, Value::none},
}};

Result<std::uint64_t> number(std::string_view text, std::string_view whole) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    return make_error(Code::invalid_argument, "faults: \"{}\" in \"{}\" is not a number", text, whole);
  return value;
}

Result<std::uint64_t> value_of(const Row& row, std::string_view text, std::string_view whole) {
  if ((row.value == Value::none) != text.empty())
    return make_error(
        Code::invalid_argument, "faults: \"{}\": {} {}", whole, row.name,
        row.value == Value::none ? "takes no value" : "needs a value, as in kill:7, partial:4096, delay:5ms");
  switch (row.value) {
    case Value::none:
      return std::uint64_t{0};
    case Value::pages:
      return number(text, whole);
    case Value::bytes: {
      auto bytes = parse_bytes(text);
      if (!bytes) return std::move(bytes).error().within(fmt::format("faults: \"{}\"", whole));
      return bytes;
    }
    case Value::duration:
      break;
  }
  auto wait = parse_duration(text);
  if (!wait) return std::move(wait).error().within(fmt::format("faults: \"{}\"", whole));
  return static_cast<std::uint64_t>(wait->count());
}

/// "3", "4..6" or "9..": for the first to the last time.
Result<void> read_times(std::string_view text, std::string_view whole, Fault& fault) {
  const auto dots = text.find("..");
  HEADRACE_TRY(first, number(trim(text.substr(0, dots)), whole));
  fault.first = fault.last = first;
  if (dots != std::string_view::npos) {
    const std::string_view last = trim(text.substr(dots + 2));
    HEADRACE_TRY(end, last.empty() ? UINT64_MAX : number(last, whole));
    fault.last = end;
  }
  if (fault.first == 0 || fault.last < fault.first)
    return make_error(Code::invalid_argument,
                      "faults: \"{}\": counting begins at 1 and the last does not come before the first",
                      whole);
  return {};
}

Result<Fault> parse_one(std::string_view whole) {
  Fault fault;
  const auto at = std::min(whole.find('@'), whole.size());
  if (at < whole.size()) HEADRACE_TRY_VOID(read_times(whole.substr(at + 1), whole, fault));
  const std::string_view what = whole.substr(0, at);
  const auto colon = std::min(what.find(':'), what.size());
  const std::string_view name = trim(what.substr(0, colon));
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const Row& known) { return known.name == name; });
  if (row == rows.end())
    return make_error(Code::invalid_argument,
                      "faults: \"{}\": there is no fault \"{}\", only drop, delay, duplicate, reorder, kill, "
                      "partial and deny",
                      whole, name);
  const std::string_view value_text = colon < what.size() ? trim(what.substr(colon + 1)) : "";
  HEADRACE_TRY(value, value_of(*row, value_text, whole));
  fault.kind = row->kind;
  fault.value = value;
  return fault;
}

}  // namespace

Result<std::vector<Fault>> FaultScript::parse(std::string_view text) {
  std::vector<Fault> faults;
  for (const std::string_view part : split_list(text)) {
    HEADRACE_TRY(fault, parse_one(part));
    faults.push_back(fault);
  }
  return faults;
}

void FaultScript::add(const Fault& fault) {
  const std::scoped_lock lock(mutex_);
  faults_.push_back(fault);
}

void FaultScript::add(const std::vector<Fault>& faults) {
  const std::scoped_lock lock(mutex_);
  faults_.insert(faults_.end(), faults.begin(), faults.end());
}

void FaultScript::clear() {
  const std::scoped_lock lock(mutex_);
  faults_.clear();
}

Mishap FaultScript::next_action() {
  const std::scoped_lock lock(mutex_);
  ++actions_;
  Mishap mishap;
  for (const Fault& fault : faults_) {
    if (actions_ < fault.first || actions_ > fault.last) continue;
    mishap.drop |= fault.kind == FaultKind::drop;
    mishap.duplicate |= fault.kind == FaultKind::duplicate;
    mishap.reorder |= fault.kind == FaultKind::reorder;
    if (fault.kind == FaultKind::delay) mishap.delay_ns += fault.value;
    if (fault.kind == FaultKind::kill) mishap.kill_page = fault.value;
    if (fault.kind == FaultKind::partial) mishap.partial_bytes = fault.value;
  }
  return mishap;
}

bool FaultScript::next_preparation_denied() {
  const std::scoped_lock lock(mutex_);
  ++preparations_;
  for (const Fault& fault : faults_)
    if (fault.kind == FaultKind::deny && preparations_ >= fault.first && preparations_ <= fault.last)
      return true;
  return false;
}

}  // namespace headrace::fake
