// SPDX-License-Identifier: Apache-2.0
#include "collectives/call_card.hpp"

#include "base/errors.hpp"
#include "base/utf8.hpp"
#include "collectives/missing_ranks.hpp"
#include "collectives/operation.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace headrace::collectives {
namespace {

using Counts = std::vector<std::uint64_t>;

constexpr std::size_t most_groups = 8;  // in one error

bool gives_parts(CommOperation kind) {
  return kind == CommOperation::reduce_scatter || kind == CommOperation::reduce_scatter_quantized ||
         kind == CommOperation::all_to_all || kind == CommOperation::scatter;
}
bool gets_parts(CommOperation kind) {
  return kind == CommOperation::all_gather || kind == CommOperation::all_to_all ||
         kind == CommOperation::gather;
}

/// `parts`: the memory is one part for each rank, as a list or in a row.
template <class List>
Counts counts_of(const List& list, bool parts, int ranks) {
  if (list.empty()) return {};
  if (!parts) return {list.front().count};
  if (list.size() == 1) return {list.front().count / static_cast<std::size_t>(ranks)};
  Counts counts;
  for (const auto& elements : list) counts.push_back(elements.count);
  return counts;
}

std::uint64_t at(const Counts& counts, std::size_t rank) {
  if (counts.size() == 1) return counts.front();
  return rank < counts.size() ? counts[rank] : 0;  // another rank's card may have any number of them
}

std::string op_text(const ReduceOp& op) {
  if (op.kind != ReduceOp::premul_sum) return std::string(reduce_op_name(op.kind));
  return fmt::format("{} by {}", reduce_op_name(op.kind), op.factor);
}

template <class List>
std::uint64_t total(const List& list) {
  return std::accumulate(list.begin(), list.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& elements) { return sum + elements.count; });
}

DType dtype_of_call(const CommCall& call) {
  return call.inputs.empty() ? call.outputs.front().dtype : call.inputs.front().dtype;
}

/// The elements that the caller thinks of: its own part.
std::uint64_t shown_count(const CommCall& call, CommOperation kind) {
  return gives_parts(kind) && kind != CommOperation::all_to_all ? total(call.outputs)
                                                                : total(moved_inputs(call));
}

std::string text_of(const CommCall& call, CommOperation kind) {
  std::string text(comm_operation_name(call.operation));
  if (!call.inputs.empty() || !call.outputs.empty())
    text += fmt::format(" of {} {}", shown_count(call, kind), dtype_name(dtype_of_call(call)));
  if (reduces(kind)) text += " with " + op_text(call.op);
  const bool to_root = kind == CommOperation::reduce || kind == CommOperation::gather;
  if (call.peer >= 0) text += fmt::format(" {} root {}", to_root ? "to" : "from", call.peer);
  return text;
}

std::string must_of(const CommCall& call, CommOperation kind) {
  std::string must(comm_operation_name(kind));
  if (!call.inputs.empty() || !call.outputs.empty()) must.append(" ").append(dtype_name(dtype_of_call(call)));
  if (reduces(kind)) must += " " + op_text(call.op);
  return must + fmt::format(" {}", call.peer);
}

bool moves_between(const CallCard& card, int from, int to) {
  switch (card.kind) {
    case CommOperation::broadcast:
    case CommOperation::scatter:
      return from == card.root;
    case CommOperation::reduce:
    case CommOperation::gather:
      return to == card.root;
    default:
      return true;
  }
}

/// The first two ranks of which one gives another number of elements than the other expects.
std::optional<std::string> uneven(std::span<const CallCard> cards) {
  for (std::size_t from = 0; from < cards.size(); ++from) {
    for (std::size_t to = 0; to < cards.size(); ++to) {
      if (from == to || !moves_between(cards[0], static_cast<int>(from), static_cast<int>(to))) continue;
      const std::uint64_t given = at(cards[from].gives, to), expected = at(cards[to].expects, from);
      if (given != expected)
        return fmt::format("rank {} gives rank {} {} elements, which expects {}", from, to, given, expected);
    }
  }
  return std::nullopt;
}

/// "ranks 0 and 2 call all_reduce of 10 float32 with sum, rank 1 calls barrier".
std::string calls_text(std::span<const CallCard> cards) {
  const bool same_texts =
      std::ranges::all_of(cards, [&](const CallCard& card) { return card.text == cards[0].text; });
  const auto shown = [same_texts](const CallCard& card) {
    return same_texts && !card.way.empty() ? card.text + " (" + card.way + ")" : card.text;
  };
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    std::string text = shown(cards[rank]);
    const auto group = std::ranges::find_if(groups, [&](const auto& one) { return one.first == text; });
    if (group != groups.end())
      group->second.push_back(static_cast<int>(rank));
    else
      groups.emplace_back(std::move(text), std::vector<int>{static_cast<int>(rank)});
  }
  std::string all;
  for (std::size_t i = 0; i < std::min(groups.size(), most_groups); ++i) {
    const auto& [text, ranks] = groups[i];
    all += fmt::format("{}{} {} {}", i == 0 ? "" : ", ", ranks_text(ranks),
                       ranks.size() == 1 ? "calls" : "call", text);
  }
  if (groups.size() > most_groups) all += ", and others call others";
  return all;
}

}  // namespace

CallCard card_of_call(const CommCall& call, int ranks, std::string way) {
  CallCard card;
  card.kind = kind_of(call.operation);
  card.root = call.peer;
  card.text = text_of(call, card.kind);
  card.must = must_of(call, card.kind);
  card.way = std::move(way);
  if (call.operation == CommOperation::device_all_to_all_v_single)
    return card;  // nobody knows the counts yet
  if (call.operation == CommOperation::all_to_all_v_single) {
    card.gives.assign(call.input_splits.begin(), call.input_splits.end());
    card.expects.assign(call.output_splits.begin(), call.output_splits.end());
  } else {
    card.gives = counts_of(call.inputs, gives_parts(card.kind), ranks);
    card.expects = counts_of(call.outputs, gets_parts(card.kind), ranks);
  }
  return card;
}

std::optional<Error> difference(std::span<const CallCard> cards) {
  const bool same = std::ranges::all_of(
      cards, [&](const CallCard& card) { return card.must == cards[0].must && card.way == cards[0].way; });
  std::string counts;
  if (same) {
    auto pair = uneven(cards);
    if (!pair) return std::nullopt;
    counts = "; " + *pair;
  }
  return make_error(Code::invalid_argument,
                    "{}{}: all ranks must call the same operations in the same order, with counts and types "
                    "that fit",
                    calls_text(cards), counts);
}

}  // namespace headrace::collectives
