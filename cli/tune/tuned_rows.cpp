// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/tuned_rows.hpp"

#include <algorithm>
#include <cmath>

namespace headrace::cli {
namespace {

constexpr double clearly = 1.05;  // times slower

bool follows(const TunedRow& row, const TunedRow& before) {
  return row.operation == before.operation && row.dtype_bytes == before.dtype_bytes;
}

/// The ranks do not know the size of one another's calls, so entries with a size would not be asked.
bool has_no_size(CommOperation operation) {
  return operation == CommOperation::all_to_all || operation == CommOperation::all_to_all_v_single;
}

/// Halfway between two sizes, as they rise by a factor.
std::uint64_t between(std::uint64_t smaller, std::uint64_t larger) {
  return static_cast<std::uint64_t>(std::sqrt(static_cast<double>(smaller) * static_cast<double>(larger)));
}

/// The backend for a row, if `before` has those before it.
std::optional<std::string> chosen_for(const TunedRow& row, const std::optional<std::string>& before) {
  auto fastest = fastest_in(row);
  if (!fastest || !before) return fastest;
  const auto same = row.seconds.find(*before);
  const bool stays = same != row.seconds.end() && same->second <= row.seconds.at(*fastest) * clearly;
  return stays ? before : fastest;
}

/// The entries for the rows of one operation and width.
void add_entries(std::span<const TunedRow> rows, const CommTuningEntry& common,
                 std::vector<CommTuningEntry>& entries) {
  std::optional<std::string> backend;
  std::uint64_t last = 0;
  const auto end_at = [&](std::optional<std::uint64_t> up_to) {
    CommTuningEntry entry = common;
    entry.operation = rows.front().operation;
    entry.up_to_bytes = up_to;
    entry.backend = *backend;
    if (!up_to || !has_no_size(rows.front().operation)) entries.push_back(std::move(entry));
  };
  for (const TunedRow& row : rows) {
    const auto chosen = chosen_for(row, backend);
    if (!chosen) continue;
    if (backend && chosen != backend) end_at(between(last, row.bytes));
    backend = chosen;
    last = row.bytes;
  }
  if (backend) end_at(std::nullopt);
}

}  // namespace

std::optional<CommOperation> tuned_operation(std::string_view name) {
  for (auto i = static_cast<int>(CommOperation::all_reduce); i <= static_cast<int>(CommOperation::barrier);
       ++i)
    if (comm_operation_name(static_cast<CommOperation>(i)) == name) return static_cast<CommOperation>(i);
  return std::nullopt;
}

std::optional<std::string> fastest_in(const TunedRow& row) {
  const auto least = std::ranges::min_element(row.seconds, {}, [](const auto& one) { return one.second; });
  return least == row.seconds.end() ? std::nullopt : std::optional(least->first);
}

std::vector<CommTuningEntry> entries_of(std::span<const TunedRow> rows, const CommTuningEntry& common,
                                        bool by_width) {
  std::vector<CommTuningEntry> entries;
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin + 1;
    while (end < rows.size() && follows(rows[end], rows[begin])) ++end;
    CommTuningEntry of_width = common;
    if (by_width && rows[begin].dtype_bytes != 0) of_width.dtype_bytes = rows[begin].dtype_bytes;
    add_entries(rows.subspan(begin, end - begin), of_width, entries);
    begin = end;
  }
  return entries;
}

std::vector<CommTuningEntry> merged(std::vector<CommTuningEntry> fresh,
                                    std::span<const CommTuningEntry> old) {
  std::vector<CommTuningEntry> all = std::move(fresh);
  const std::size_t count = all.size();
  for (const CommTuningEntry& entry : old) {
    const bool replaced =
        std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), [&](const auto& one) {
          return one.gpu == entry.gpu && one.ranks == entry.ranks && one.sharing == entry.sharing &&
                 one.operation == entry.operation && !entry.registered.value_or(false);
        });
    if (!replaced) all.push_back(entry);
  }
  return all;
}

}  // namespace headrace::cli
