// SPDX-License-Identifier: Apache-2.0
#include "vendor/curl/http_client.hpp"

#include "vendor/curl/curl.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <mutex>

namespace headrace {
namespace {

using Sink = std::function<Result<void>(long status, std::string_view bytes)>;

/// One transfer at a time; it reuses connections of earlier transfers.
class Session {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Session>> open(const CurlTable& curl) {
    std::unique_ptr<Session> session(new Session(curl));
    if (session->easy_ == nullptr || session->multi_ == nullptr) {
      return make_error(Code::exhausted, "libcurl has no memory for another connection");
    }
    return session;
  }
  ~Session() {
    if (easy_ != nullptr) curl_.easy_cleanup(easy_);
    if (multi_ != nullptr) curl_.multi_cleanup(multi_);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Runs the request, passes the bytes of the answer to `sink`, and returns the status.
  [[nodiscard]] Result<long> run(const HttpClientOptions& options, const HttpRequest& request,
                                 Deadline deadline, const std::stop_token& stop, const Sink& sink);

 private:
  explicit Session(const CurlTable& curl) : curl_(curl), easy_(curl.easy_init()), multi_(curl.multi_init()) {}

  struct Headers {
    explicit Headers(const CurlTable& table) : curl(table) {}
    ~Headers() { curl.slist_free_all(list); }
    Headers(const Headers&) = delete;
    Headers& operator=(const Headers&) = delete;
    [[nodiscard]] bool add(const char* line) {
      curl_slist* longer = curl.slist_append(list, line);
      if (longer != nullptr) list = longer;
      return longer != nullptr;
    }
    const CurlTable& curl;
    curl_slist* list = nullptr;
  };

  Result<void> configure(const HttpClientOptions& options, const HttpRequest& request, Headers& headers);
  Result<CURLcode> drive(Deadline deadline, const std::stop_token& stop);
  Error failure(CURLcode code) const;
  [[nodiscard]] long status() const;
  static std::size_t on_piece(char* bytes, std::size_t size, std::size_t count, void* session) noexcept;

  template <class Value>
  void set(CURLoption option, Value value) {
    const CURLcode code = curl_.easy_setopt(easy_, option, value);
    if (code != CURLE_OK && set_error_ == CURLE_OK) set_error_ = code;
  }

  const CurlTable& curl_;
  CURL* easy_;
  CURLM* multi_;
  CURLcode set_error_ = CURLE_OK;
  std::array<char, CURL_ERROR_SIZE> reason_{};
  const Sink* sink_ = nullptr;
  std::optional<Error> refused_;  // why the sink refuses further bytes
};

Result<void> Session::configure(const HttpClientOptions& options, const HttpRequest& request,
                                Headers& headers) {
  // An empty "Expect:" header: else larger bodies wait a second for a "100 Continue" that many servers never
  // send.
  bool added = headers.add("Content-Type: application/json") && headers.add("Expect:");
  for (const std::string& line : request.headers) added = added && headers.add(line.c_str());
  if (!added) return make_error(Code::exhausted, "libcurl has no memory for the headers of {}", request.url);
  curl_.easy_reset(easy_);
  reason_[0] = '\0';
  set_error_ = CURLE_OK;
  set(CURLOPT_ERRORBUFFER, reason_.data());
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_POST, 1L);
  set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  set(CURLOPT_POSTFIELDS, request.body.data());
  set(CURLOPT_HTTPHEADER, headers.list);
  set(CURLOPT_WRITEFUNCTION, &Session::on_piece);
  set(CURLOPT_WRITEDATA, static_cast<void*>(this));
  set(CURLOPT_NOSIGNAL, 1L);       // no SIGALRM in the user's process
  set(CURLOPT_TCP_KEEPALIVE, 1L);  // a stream has no deadline: the kernel must notice a dead server
  set(CURLOPT_TCP_KEEPIDLE, 10L);
  set(CURLOPT_TCP_KEEPINTVL, 5L);
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
  set(CURLOPT_PROXY, options.proxy.value_or("").c_str());
  if (!options.ca_file.empty()) set(CURLOPT_CAINFO, options.ca_file.c_str());
  if (!options.certificate_file.empty()) set(CURLOPT_SSLCERT, options.certificate_file.c_str());
  if (!options.key_file.empty()) set(CURLOPT_SSLKEY, options.key_file.c_str());
  if (set_error_ != CURLE_OK) {
    return make_error(Code::backend_failed, "prepare a request to {}: {}", request.url,
                      curl_.easy_strerror(set_error_));
  }
  return {};
}

std::size_t Session::on_piece(char* bytes, std::size_t size, std::size_t count, void* session) noexcept {
  auto& self = *static_cast<Session*>(session);
  Result<void> taken = (*self.sink_)(self.status(), std::string_view(bytes, size * count));
  if (taken) return size * count;
  self.refused_ = std::move(taken).error();
  return size * count + 1;  // a number other than the offered one ends the transfer
}

long Session::status() const {
  long status = 0;
  curl_.easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

/// Runs the transfer until it has ended, the deadline passes, or `stop` is requested.
Result<CURLcode> Session::drive(Deadline deadline, const std::stop_token& stop) {
  const std::stop_callback wake(stop, [this] { curl_.multi_wakeup(multi_); });
  for (;;) {
    if (stop.stop_requested()) return make_error(Code::canceled, "the caller asked to stop");
    int running = 0;
    CURLMcode code = curl_.multi_perform(multi_, &running);
    int queued = 0;
    while (const CURLMsg* message = curl_.multi_info_read(multi_, &queued)) {
      if (message->msg == CURLMSG_DONE) return message->data.result;
    }
    if (deadline.expired()) return make_error(Code::timed_out, "no answer before the deadline");
    const std::uint64_t left_ms =
        deadline.is_never() ? INT_MAX : (deadline.remaining_ns() + 999'999) / 1'000'000;
    // libcurl shortens this to its own next timeout. A wakeup before the wait is not lost: the wait then
    // returns at once.
    if (code == CURLM_OK) {
      code = curl_.multi_poll(multi_, nullptr, 0, static_cast<int>(std::min<std::uint64_t>(left_ms, INT_MAX)),
                              nullptr);
    }
    if (code != CURLM_OK) return make_error(Code::backend_failed, "libcurl: {}", curl_.multi_strerror(code));
  }
}

Error Session::failure(CURLcode code) const {
  const std::string text = reason_[0] != '\0' ? reason_.data() : curl_.easy_strerror(code);
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:  // the connect timeout is the only one that we set
      return Error{Code::peer_lost, text};
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return Error{Code::invalid_argument, text};
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
      return make_error(Code::invalid_argument, "{}; check the options for the CA and the certificate", text);
    case CURLE_OUT_OF_MEMORY:
      return Error{Code::exhausted, text};
    default:
      return Error{Code::backend_failed, text};
  }
}

Result<long> Session::run(const HttpClientOptions& options, const HttpRequest& request, Deadline deadline,
                          const std::stop_token& stop, const Sink& sink) {
  Headers headers(curl_);
  HEADRACE_TRY_VOID(configure(options, request, headers));
  sink_ = &sink;
  refused_.reset();
  if (const CURLMcode code = curl_.multi_add_handle(multi_, easy_); code != CURLM_OK) {
    return make_error(Code::backend_failed, "POST {}: libcurl: {}", request.url, curl_.multi_strerror(code));
  }
  Result<CURLcode> ended = drive(deadline, stop);
  const long seen_status = status();
  curl_.multi_remove_handle(multi_, easy_);  // ends the transfer if it is still running
  const std::string context = "POST " + request.url;
  if (!ended) return std::move(ended).error().within(context);
  if (refused_) return std::move(*refused_).within(context);
  if (*ended != CURLE_OK) return failure(*ended).within(context);
  return seen_status;
}

class CurlHttpClient final : public HttpClient {
 public:
  CurlHttpClient(const CurlTable& curl, HttpClientOptions options)
      : curl_(curl), options_(std::move(options)) {}

  Result<HttpResponse> post(const HttpRequest& request, Deadline deadline, std::stop_token stop) override {
    HttpResponse response;
    const Sink collect = [&](long, std::string_view bytes) -> Result<void> {
      if (response.body.size() + bytes.size() > options_.most_response_bytes) {
        return make_error(Code::exhausted, "the answer is longer than the {} bytes that the limit allows",
                          options_.most_response_bytes);
      }
      response.body += bytes;
      return {};
    };
    HEADRACE_TRY(status, run(request, deadline, stop, collect));
    response.status = status;
    return response;
  }

  Result<void> stream(const HttpRequest& request, const std::function<void(std::string_view)>& on_bytes,
                      std::stop_token stop) override {
    constexpr std::size_t most_refusal_bytes = 1024;
    std::string refusal;
    const Sink hand_on = [&](long status, std::string_view bytes) -> Result<void> {
      if (status == 200) {
        on_bytes(bytes);
      } else {
        refusal += bytes.substr(0, most_refusal_bytes - std::min(refusal.size(), most_refusal_bytes));
      }
      return {};
    };
    HEADRACE_TRY(status, run(request, Deadline::never(), stop, hand_on));
    if (status == 200) return {};
    return make_error(Code::backend_failed, "POST {}: status {}: {}", request.url, status, refusal);
  }

 private:
  Result<long> run(const HttpRequest& request, Deadline deadline, const std::stop_token& stop,
                   const Sink& sink) {
    HEADRACE_TRY(session, take_session());
    Result<long> status = session->run(options_, request, deadline, stop, sink);
    const std::scoped_lock lock(mutex_);
    idle_.push_back(std::move(session));
    return status;
  }

  Result<std::unique_ptr<Session>> take_session() {
    {
      const std::scoped_lock lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Session> session = std::move(idle_.back());
        idle_.pop_back();
        return session;
      }
    }
    return Session::open(curl_);
  }

  const CurlTable curl_;
  const HttpClientOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Session>> idle_;  // one for each call of the largest number that ran at once
};

}  // namespace

Result<std::unique_ptr<HttpClient>> open_http_client(HttpClientOptions options) {
  HEADRACE_TRY(curl, load_curl());
  return std::unique_ptr<HttpClient>(std::make_unique<CurlHttpClient>(curl, std::move(options)));
}

}  // namespace headrace
