// SPDX-License-Identifier: Apache-2.0
// `headrace demo --serve`: OpenAI's completions protocol over HTTP. The same Front also generates the text of
// `headrace demo`.
#include "cli/common/errors.hpp"
#include "cli/demo/demo_options.hpp"
#include "cli/demo/http_completions.hpp"
#include "cli/demo/http_server.hpp"
#include "cli/demo/http_text.hpp"
#include "cli/demo/stop_signals.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <random>

namespace headrace::cli::demo {
namespace {

// How often to look whether the client has left, while no token arrives.
constexpr std::chrono::milliseconds poll_interval{50};

unsigned status_of(Code code) { return code == Code::invalid_argument ? 400 : 503; }

HttpError http_error(const Error& error) {
  return {status_of(error.code), error.message, "", std::string(code_name(error.code))};
}

std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

// --- one text

/// A text that is being generated, in the form for its client: valid UTF-8, ended before a stop word.
class Completion {
 public:
  Completion(const CompletionRequest& request, TextStream stream)
      : stream_(std::move(stream)), stop_(request.stop), usage_{request.prompt.size(), 0} {}

  enum class State { going_on, over, abandoned };

  /// Waits for a token, and appends to `text` the characters that are complete.
  ///   returns  abandoned: the client has left
  ///   errors   those of TextStream::next, also when the server stops
  Result<State> advance(HttpReply& reply, std::string& text) {
    // A server that stops closes the receiving direction itself; the text then ends with an error of its own.
    const auto has_left = [&] { return !reply.stopping() && reply.client_gone(); };
    while (!stream_->wait(poll_interval))
      if (has_left()) return State::abandoned;
    if (has_left()) return State::abandoned;
    HEADRACE_CLI_TRY(token, stream_->next());
    if (token) {
      ++usage_.completion_tokens;
      const char byte = static_cast<char>(*token);
      text += utf8_.take(stop_.take(std::string_view(&byte, 1)));
      if (!stop_.found()) return State::going_on;
      stream_.reset();  // before the response is written: frees the pages for other texts
    }
    text += utf8_.take(stop_.finish());
    text += utf8_.finish();
    return State::over;
  }

  [[nodiscard]] std::string finish_reason() const { return stop_.found() ? "stop" : "length"; }
  [[nodiscard]] const Usage& usage() const { return usage_; }

 private:
  std::optional<TextStream> stream_;
  StopFinder stop_;
  Utf8Text utf8_;
  Usage usage_;
};

/// The prompt, if the request wants it before the text.
std::string echo_of(const CompletionRequest& request) {
  std::string bytes;
  if (request.echo)
    for (const std::int64_t token : request.prompt) bytes += static_cast<char>(token);
  Utf8Text utf8;
  std::string text = utf8.take(bytes);
  return text += utf8.finish();
}

void send_whole(Completion& completion, const CompletionObjects& objects, std::string text,
                HttpReply& reply) {
  while (true) {
    const auto state = completion.advance(reply, text);
    if (!state) return reply.send(http_error(state.error()));
    if (*state == Completion::State::abandoned) return;
    if (*state == Completion::State::over)
      return reply.send(200, objects.whole(text, completion.finish_reason(), completion.usage()));
  }
}

/// Before the first event an error is a response with its own status; after it, the error is an event.
void end_with_error(const HttpError& error, HttpReply& reply) {
  if (reply.begun())
    (void)reply.send_event(error_body(error));
  else
    reply.send(error);
}

void send_stream(Completion& completion, const CompletionObjects& objects, std::string text,
                 bool include_usage, HttpReply& reply) {
  while (true) {
    const auto state = completion.advance(reply, text);
    if (!state) return end_with_error(http_error(state.error()), reply);
    if (*state == Completion::State::abandoned) return;
    if (*state == Completion::State::over) break;
    if (text.empty()) continue;  // the character is not complete yet
    if (!reply.send_event(objects.part(text, {}))) return;
    text.clear();
  }
  if (!reply.send_event(objects.part(text, completion.finish_reason()))) return;
  if (include_usage && !reply.send_event(objects.usage_part(completion.usage()))) return;
  (void)reply.send_event("[DONE]");
}

// --- the workers' health

nlohmann::ordered_json worker_object(const CacheStatus& status) {
  switch (status.state) {
    case CacheStatus::State::silent:
      return {{"name", status.worker}, {"silent", true}};
    case CacheStatus::State::starting:
      return {{"name", status.worker}, {"starting", true}};
    case CacheStatus::State::lost:
      return {{"name", status.worker}, {"lost", status.loss}};
    case CacheStatus::State::answers:
      break;
  }
  return {{"name", status.worker}, {"pages", status.pages}, {"free_pages", status.free_pages}};
}

// --- the routes

class Door {
 public:
  Door(Front& front, const Sampling& defaults) : front_(front), defaults_(defaults) {}

  void answer(const HttpRequest& request, HttpReply& reply) {
    struct Route {
      std::string path, method;
      void (Door::*answer)(const HttpRequest&, HttpReply&);
    };
    static const std::array routes{Route{"/v1/completions", "POST", &Door::complete},
                                   Route{"/v1/models", "GET", &Door::list_models},
                                   Route{std::string("/v1/models/") + model_id, "GET", &Door::show_model},
                                   Route{"/health", "GET", &Door::show_health}};
    for (const Route& route : routes) {
      if (route.path != request.path) continue;
      if (route.method == request.method) return (this->*route.answer)(request, reply);
      return reply.send(405,
                        error_body({405, fmt::format("{} takes {} only", route.path, route.method), "",
                                    "method_not_allowed"}),
                        route.method == "GET" ? "GET, HEAD" : route.method);
    }
    reply.send({404,
                fmt::format("there is no {}: there are POST /v1/completions, GET /v1/models, GET /health",
                            request.path),
                "", "not_found"});
  }

 private:
  void complete(const HttpRequest& request, HttpReply& reply) {
    Sampling defaults = defaults_;
    defaults.seed = random_number();
    const auto read = read_completion_request(request.body, front_.context(), defaults);
    if (const auto* const error = std::get_if<HttpError>(&read)) return reply.send(*error);
    const auto& wanted = std::get<CompletionRequest>(read);
    auto stream = front_.submit({wanted.prompt, wanted.max_tokens, wanted.sampling});
    if (!stream) return reply.send(http_error(stream.error()));
    Completion completion(wanted, std::move(*stream));
    const CompletionObjects objects(fmt::format("cmpl-{:016x}", random_number()), std::time(nullptr));
    if (wanted.stream)
      send_stream(completion, objects, echo_of(wanted), wanted.include_usage, reply);
    else
      send_whole(completion, objects, echo_of(wanted), reply);
  }

  void list_models(const HttpRequest& /*request*/, HttpReply& reply) {
    reply.send(200, models_body(started_));
  }
  void show_model(const HttpRequest& /*request*/, HttpReply& reply) { reply.send(200, model_body(started_)); }

  /// The decode workers and their free pages. An error only if none of them answers.
  void show_health(const HttpRequest& /*request*/, HttpReply& reply) {
    if (const auto failure = front_.failure()) return reply.send(http_error(*failure));
    const std::lock_guard lock(status_mutex_);  // the front takes one status question at a time
    const auto all = front_.cache_status();
    if (!all) return reply.send(http_error(all.error()));
    const auto well = std::ranges::count(*all, CacheStatus::State::answers, &CacheStatus::state);
    const char* const status = well == std::ssize(*all) ? "ok" : well > 0 ? "degraded" : "unavailable";
    nlohmann::ordered_json json{{"status", status}, {"workers", nlohmann::ordered_json::array()}};
    for (const CacheStatus& worker : *all) json["workers"].push_back(worker_object(worker));
    reply.send(well > 0 ? 200 : 503, json.dump());
  }

  Front& front_;
  const Sampling defaults_;
  const std::int64_t started_ = std::time(nullptr);
  std::mutex status_mutex_;
};

}  // namespace

Result<void> serve_http(const DemoOptions& options) {
  HEADRACE_CLI_TRY(server, HttpServer::open(options.host, options.port.value_or(0)));
  HEADRACE_CLI_TRY(stop, StopSignals::open());
  FrontOptions of_front = options.front;
  of_front.go_on =
      of_front.ranks == 1 && of_front.expert_ranks == 0;  // clients of the lost worker's texts can ask again
  auto started = Front::start(std::move(of_front), stop.event());
  if (!started) {
    StopSignals::pass_on();
    return std::move(started).error();
  }
  const std::unique_ptr<Front> front = std::move(*started);
  Door door(*front, options.sampling);
  HEADRACE_CLI_CHECK(server.listen());
  std::printf("listening at http://%s\n", server.address().c_str());
  std::fflush(stdout);
  HEADRACE_CLI_CHECK(
      server.run([&](const HttpRequest& request, HttpReply& reply) { door.answer(request, reply); },
                 front->failed_event()));
  if (StopSignals::number() != 0) return {};  // a signal is the normal end of a server
  return *front->failure();
}

}  // namespace headrace::cli::demo
