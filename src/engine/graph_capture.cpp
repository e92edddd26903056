// SPDX-License-Identifier: Apache-2.0
#include "engine/graph_capture.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <span>

namespace headrace::engine {
namespace {

/// That indices in host memory name pages of the list.
Result<void> check_side(const char* side, const PageList::State& list, std::uint64_t most, MemoryKind kind,
                        std::span<const std::uint32_t> numbers) {
  if (numbers.size() > most)
    return make_error(Code::invalid_argument, "{} {} page numbers are more than the request has pages: {}",
                      numbers.size(), side, most);
  if (kind != MemoryKind::dram) return {};
  const auto wrong =
      std::ranges::find_if(numbers, [&](std::uint32_t number) { return number >= list.columns.count; });
  if (wrong == numbers.end()) return {};
  Error error = make_error(Code::invalid_argument, "{} page number {} is {}: the list has {} pages", side,
                           wrong - numbers.begin(), *wrong, list.columns.count);
  error.page = static_cast<std::uint64_t>(wrong - numbers.begin());
  return error;
}

/// Indices as a backend takes them.
Result<headrace_indices_v1> checked_indices(const RequestPlan& plan, const PageIndices& given, void* stream) {
  const bool local = given.local.data() != nullptr, remote = given.remote.data() != nullptr;
  if (given.kind != MemoryKind::dram && given.kind != MemoryKind::vram)
    return make_error(Code::invalid_argument, "page numbers lie in dram or in vram, not in {}",
                      kind_name(given.kind));
  if (!local && !remote)
    return make_error(Code::invalid_argument,
                      "no page numbers were given: give them for the local side, the remote one, or both");
  if (local && remote && given.local.size() != given.remote.size())
    return make_error(Code::invalid_argument,
                      "{} local page numbers and {} remote ones: each page has one on each side",
                      given.local.size(), given.remote.size());
  HEADRACE_TRY_VOID(check_side("local", *plan.local, plan.count, given.kind, given.local));
  HEADRACE_TRY_VOID(check_side("remote", *plan.remote, plan.count, given.kind, given.remote));
  headrace_indices_v1 args{};
  args.struct_size = sizeof args;
  args.local = given.local.data();
  args.remote = given.remote.data();
  args.count = local ? given.local.size() : given.remote.size();
  args.stream = stream;
  args.kind = static_cast<std::int32_t>(given.kind);
  return args;
}

}  // namespace

Result<void> check_indices(const RequestPlan& plan, const PageIndices& given) {
  HEADRACE_TRY_VOID(checked_indices(plan, given, nullptr));
  return {};
}

Result<std::unique_ptr<GraphCapture>> GraphCapture::record(const Path& path, const RequestPlan& plan,
                                                           const Post& post) {
  if (!path.backend->can(HEADRACE_CAPTURE))
    return make_error(Code::not_supported,
                      "requests over {} cannot lie in graphs, where alone page numbers go with a post",
                      path.backend->name());
  headrace_capture_v1 args{};
  args.stream = post.stream;
  args.local_pages = plan.local->columns.count;
  args.remote_pages = plan.remote->columns.count;
  args.has_message = post.has_message ? 1 : 0;
  if (*post.immediate) {
    args.has_immediate = 1;
    args.immediate = (*post.immediate)->value;
    args.scope = (*post.immediate)->scope;
  }
  headrace_indices_v1 indices{};
  if (*post.indices) {
    HEADRACE_TRY(good, checked_indices(plan, **post.indices, post.stream));
    indices = good;
    args.indices = &indices;
  }
  HEADRACE_TRY(captured, path.backend->capture(path.request, args));
  if (captured) return std::unique_ptr<GraphCapture>(new GraphCapture(path, plan));
  if (*post.indices)
    return make_error(
        Code::invalid_argument,
        "page numbers go with a post where its stream is being captured: else make a request of these pages");
  return std::unique_ptr<GraphCapture>();
}

Result<void> GraphCapture::set_indices(const PageIndices& given, void* stream) {
  HEADRACE_TRY(args, checked_indices(plan_, given, stream != nullptr ? stream : default_stream));
  return path_.backend->set_indices(path_.request, args);
}

Result<std::uint64_t> GraphCapture::replays(const PageLists& lists, std::uint64_t& fresh) {
  if (const auto& life = plan_.remote->life; life && life->fate.load() != Fate::alive)
    return Error{Code::peer_lost,
                 "the peer is gone or has restarted: what replays read or write is no longer its memory"};
  for (const PageListState* list : {&plan_.local, &plan_.remote})
    if (!lists.still_valid(**list).ok())
      return Error{Code::not_found,
                   "a region of its page lists is registered no longer: cancel the request, and replay its "
                   "graph no more"};
  HEADRACE_TRY(replays, ask_backend());
  const std::uint64_t before = counted_.exchange(replays);
  fresh = replays > before ? replays - before : 0;
  return replays;
}

Result<std::uint64_t> GraphCapture::ask_backend() const {
  if (!path_.link) return path_.backend->check(path_.request);
  if (const GatePass pass(path_.link->gate()); pass) return path_.backend->check(path_.request);
  return Error{Code::peer_lost, path_.link->lost_text()};
}

}  // namespace headrace::engine
