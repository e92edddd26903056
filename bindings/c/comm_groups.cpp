// SPDX-License-Identifier: Apache-2.0
// Communicators that are made of other ones, of include/headrace/c/comm.h.
#include "comm_handles.hpp"

namespace headrace::c {
namespace {

Result<SplitOptions> split_options_of(const headrace_split_options* given) {
  SplitOptions options;
  if (given == nullptr) return options;
  HEADRACE_C_TRY(whole(given, "options"));
  options.timeout = timeout_of(given->timeout_ns);
  options.meeting_timeout = timeout_of(given->meeting_timeout_ns);
  auto hints = pairs_in(given->hints);
  if (!hints) return std::move(hints).error();
  options.hints = std::move(*hints);
  return options;
}

Result<std::vector<std::string>> texts_of(const void* const* bytes, const std::uint64_t* lengths,
                                          std::uint64_t count) {
  const auto data = array_in(bytes, count, "handles");
  if (!data) return data.error();
  const auto sizes = array_in(lengths, count, "handle_bytes");
  if (!sizes) return sizes.error();
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < data->size(); ++i) {
    const auto text = array_in(static_cast<const char*>((*data)[i]), (*sizes)[i], "a handle");
    if (!text) return text.error();
    texts.emplace_back(text->data(), text->size());
  }
  return texts;
}

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_comm_split(headrace_comm* comm, const std::int32_t* ranks, std::uint64_t rank_count,
                                 const char* name, const headrace_split_options* options,
                                 headrace_comm** part, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    HEADRACE_C_TRY(given(part, "part"));
    const auto group = array_in(ranks, rank_count, "ranks");
    if (!group) return group.error();
    if (!group->empty()) HEADRACE_C_TRY(given(name, "name"));
    const auto changes = split_options_of(options);
    if (!changes) return changes.error();
    auto made = comm->comm.split(*group, text_or_empty(name), *changes);
    if (!made) return std::move(made).error();
    *part = *made ? new headrace_comm(std::move(**made)) : nullptr;
    return {};
  });
}

std::int32_t headrace_comm_init_handle(const headrace_comm* comm, headrace_bytes** handle,
                                       headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    HEADRACE_C_TRY(given(handle, "handle"));
    auto bytes = comm->comm.init_handle();
    if (!bytes) return std::move(bytes).error();
    give(handle, std::move(*bytes));
    return {};
  });
}

std::int32_t headrace_comm_reconfigure(headrace_comm* comm, const char* uuid, const void* const* handles,
                                       const std::uint64_t* handle_bytes, std::uint64_t handle_count,
                                       const headrace_split_options* options, headrace_comm** made,
                                       headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    HEADRACE_C_TRY(given(uuid, "uuid"));
    HEADRACE_C_TRY(given(made, "made"));
    const auto texts = texts_of(handles, handle_bytes, handle_count);
    if (!texts) return texts.error();
    const auto changes = split_options_of(options);
    if (!changes) return changes.error();
    auto opened = comm->comm.reconfigure(uuid, *texts, *changes);
    if (!opened) return std::move(opened).error();
    *made = new headrace_comm(std::move(*opened));
    return {};
  });
}

std::int32_t headrace_comm_shrink(headrace_comm* comm, const std::int32_t* excluded,
                                  std::uint64_t excluded_count, const headrace_split_options* options,
                                  headrace_comm** left, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    HEADRACE_C_TRY(given(left, "left"));
    const auto ranks = array_in(excluded, excluded_count, "excluded");
    if (!ranks) return ranks.error();
    const auto changes = split_options_of(options);
    if (!changes) return changes.error();
    auto opened = comm->comm.shrink(*ranks, *changes);
    if (!opened) return std::move(opened).error();
    *left = new headrace_comm(std::move(*opened));
    return {};
  });
}
