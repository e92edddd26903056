// SPDX-License-Identifier: Apache-2.0
// Requests of include/headrace/c/agent.h.
#include "agent_handles.hpp"

#include <nlohmann/json.hpp>

namespace headrace::c {

Result<PageIndices> indices_of(const headrace_page_indices* given) {
  HEADRACE_C_TRY(whole(given, "indices"));
  PageIndices indices;
  const auto side = [&](const std::uint32_t* first) {
    return array_in(first, first == nullptr ? 0 : given->count, "indices");
  };
  const auto local = side(given->local), remote = side(given->remote);
  if (!local) return local.error();
  if (!remote) return remote.error();
  indices.local = *local;
  indices.remote = *remote;
  indices.kind = static_cast<MemoryKind>(given->kind);
  indices.part = given->part;
  return indices;
}

namespace {

Result<RequestPart> part_of(const headrace_request_part* given) {
  HEADRACE_C_TRY(whole(given, "part"));
  if (given->local == nullptr || given->remote == nullptr) return missing("a page list");
  RequestPart part{given->local->list, given->remote->list};
  if (given->local_index == nullptr && given->remote_index == nullptr) return part;
  if (given->local_index == nullptr || given->remote_index == nullptr)
    return wrong("indices are given for one side: give them for both, or for none");
  const auto local = array_in(given->local_index, given->count, "local_index");
  const auto remote = array_in(given->remote_index, given->count, "remote_index");
  if (!local) return local.error();
  if (!remote) return remote.error();
  part.local_index = *local;
  part.remote_index = *remote;
  return part;
}

Result<PostOptions> post_options_of(const headrace_post_options& given) {
  HEADRACE_C_TRY(whole(&given, "options"));
  PostOptions options;
  if (given.has_notification != 0) {
    if (given.notification == nullptr && given.notification_size > 0) return missing("notification");
    options.notification.emplace(static_cast<const char*>(given.notification), given.notification_size);
  }
  options.timeout = timeout_of(given.timeout_ns);
  if (given.has_stream != 0) options.stream = given.stream;
  if (given.indices != nullptr) {
    auto indices = indices_of(given.indices);
    if (!indices) return std::move(indices).error();
    options.indices = *indices;
  }
  if (given.has_immediate != 0) options.immediate = {given.immediate, given.scope};
  return options;
}

/// A status as a result. The request has the sentence, if the status is that of its last post.
Result<void> result_of(const Request& request, Status status) {
  if (status.ok()) return {};
  Error error = request.error();
  if (error.code == status.code) return error;
  return Error{status.code, std::string(code_sentence(status.code)), status.page};
}

nlohmann::ordered_json described(const PartInfo& part) {
  nlohmann::ordered_json error;
  if (part.error.code != Code::ok) {
    error = {{"code", code_name(part.error.code)}, {"message", part.error.message}};
    if (part.error.page != no_page) error["page"] = part.error.page;
  }
  return {{"peer", part.peer},   {"backend", part.backend},         {"pages", part.pages},
          {"bytes", part.bytes}, {"state", state_name(part.state)}, {"error", error}};
}

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_agent_make_request(headrace_agent* agent, std::int32_t operation,
                                         const headrace_request_part* parts, std::uint64_t part_count,
                                         const headrace_request_options* options, headrace_request** request,
                                         headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(request, "request"));
    HEADRACE_C_TRY(given(parts, "parts"));
    HEADRACE_C_TRY(whole_or_null(options, "options"));
    if (operation != HEADRACE_OPERATION_READ && operation != HEADRACE_OPERATION_WRITE)
      return wrong("there is no operation " + std::to_string(operation) + ": 0 reads, 1 writes");
    std::vector<headrace::RequestPart> all;
    for (std::uint64_t i = 0; i < part_count; ++i) {
      auto part = part_of(element(parts, i));
      if (!part) return std::move(part).error().within("part " + std::to_string(i));
      all.push_back(std::move(*part));
    }
    headrace::RequestOptions wanted;
    if (options != nullptr) {
      wanted.backends = names_in(options->backends);
      wanted.timeout = timeout_of(options->timeout_ns);
    }
    return make_handle(request, agent->agent.make_request(static_cast<headrace::Op>(operation), all, wanted));
  });
}

std::int32_t headrace_request_post(headrace_request* request, const headrace_post_options* options,
                                   headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(request, "request"));
    if (options == nullptr) return result_of(request->request, request->request.post());
    auto wanted = post_options_of(*options);
    if (!wanted) return std::move(wanted).error();
    return result_of(request->request, request->request.post(*wanted));
  });
}

std::int32_t headrace_request_poll(headrace_request* request) {
  return request == nullptr ? HEADRACE_STATE_PREPARED : static_cast<std::int32_t>(request->request.poll());
}

std::int32_t headrace_request_state(const headrace_request* request) {
  return request == nullptr ? HEADRACE_STATE_PREPARED : static_cast<std::int32_t>(request->request.state());
}

std::int32_t headrace_request_wait(headrace_request* request, std::int64_t timeout_ns,
                                   headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(request, "request"));
    return result_of(request->request, request->request.wait(timeout_of(timeout_ns)));
  });
}

void headrace_request_cancel(headrace_request* request) {
  if (request != nullptr) request->request.cancel();
}

std::int32_t headrace_request_set_indices(headrace_request* request, const headrace_page_indices* indices,
                                          void* stream, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(request, "request"));
    auto wanted = indices_of(indices);
    if (!wanted) return std::move(wanted).error();
    return request->request.set_indices(*wanted, stream);
  });
}

std::int32_t headrace_request_check(headrace_request* request, std::uint64_t* replays,
                                    headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(request, "request"));
    HEADRACE_C_TRY(given(replays, "replays"));
    auto ended = request->request.check();
    if (!ended) return std::move(ended).error();
    *replays = *ended;
    return {};
  });
}

std::int32_t headrace_request_error(const headrace_request* request, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(request, "request"));
    headrace::Error last = request->request.error();
    if (last.code == headrace::Code::ok) return {};
    return last;
  });
}

std::int32_t headrace_request_get_times(const headrace_request* request, headrace_request_times* times,
                                        headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(request, "request"));
    HEADRACE_C_TRY(whole(times, "times"));
    const headrace::RequestTimes told = request->request.times();
    times->posted_at_ns = told.posted_at_ns;
    times->post_ns = told.post_ns;
    times->transfer_ns = told.transfer_ns;
    times->bytes = told.bytes;
    times->pages = told.pages;
    times->posts = told.posts;
    return {};
  });
}

std::int32_t headrace_request_explain(const headrace_request* request, headrace_bytes** text,
                                      headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(request, "request"));
    HEADRACE_C_TRY(given(text, "text"));
    give(text, request->request.explain());
    return {};
  });
}

std::int32_t headrace_request_backend(const headrace_request* request, headrace_bytes** text,
                                      headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(request, "request"));
    HEADRACE_C_TRY(given(text, "text"));
    give(text, request->request.backend());
    return {};
  });
}

std::int32_t headrace_request_parts(const headrace_request* request, headrace_bytes** json,
                                    headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(request, "request"));
    HEADRACE_C_TRY(given(json, "json"));
    auto all = nlohmann::ordered_json::array();
    for (const headrace::PartInfo& part : request->request.parts()) all.push_back(described(part));
    give(json, all.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return {};
  });
}

std::int32_t headrace_request_cost(const headrace_request* request, headrace_cost* cost,
                                   headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(request, "request"));
    HEADRACE_C_TRY(whole(cost, "cost"));
    auto estimate = request->request.cost();
    if (!estimate) return std::move(estimate).error();
    cost->duration_ns = static_cast<std::uint64_t>(estimate->duration.count());
    cost->margin = estimate->margin;
    return {};
  });
}

void headrace_request_on_done(headrace_request* request, headrace_done_function function,
                              headrace_callback callback) {
  (void)guarded(nullptr, [&]() -> Result<void> {
    const auto context = context_of(callback.context, callback.drop);
    HEADRACE_C_TRY(given(request, "request"));
    if (function == nullptr) {
      request->request.on_done({});
      return {};
    }
    request->request.on_done([function, context](headrace::Status status) {
      function(context.get(), static_cast<std::int32_t>(status.code), status.page);
    });
    return {};
  });
}

std::int32_t headrace_request_event_fd(headrace_request* request, std::int32_t* descriptor,
                                       headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(request, "request"));
    HEADRACE_C_TRY(given(descriptor, "descriptor"));
    auto opened = request->request.event_fd();
    if (!opened) return std::move(opened).error();
    *descriptor = *opened;
    return {};
  });
}

void headrace_request_free(headrace_request* request) { delete request; }
