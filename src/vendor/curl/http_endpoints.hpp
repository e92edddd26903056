// SPDX-License-Identifier: Apache-2.0
// One service at several addresses: the endpoint that answered last is asked first.
#pragma once

#include "vendor/curl/http_client.hpp"

#include <atomic>

namespace headrace {

class HttpEndpoints {
 public:
  /// "http://10.0.0.1:2379", "https://etcd-2:2379", "10.0.0.3:2379" (http). A slash at the end is dropped.
  ///   errors   invalid_argument (none, or a scheme that is neither http nor https)
  [[nodiscard]] static Result<HttpEndpoints> make(const std::vector<std::string>& urls);

  HttpEndpoints(HttpEndpoints&& other) noexcept
      : urls_(std::move(other.urls_)), first_(other.first_.load()) {}

  /// Posts to `path` ("/v3/kv/put") of one endpoint after another, as long as an endpoint cannot be reached
  /// and nothing was sent. Any other error is final: the request may have had its effect.
  ///   errors   as HttpClient::post; peer_lost names every endpoint and its reason
  [[nodiscard]] Result<HttpResponse> post(HttpClient& client, const std::string& path,
                                          const HttpRequest& request, Deadline deadline,
                                          std::stop_token stop = {});
  /// The same for HttpClient::stream. All bytes come from one endpoint.
  [[nodiscard]] Result<void> stream(HttpClient& client, const std::string& path, const HttpRequest& request,
                                    const std::function<void(std::string_view bytes)>& on_bytes,
                                    std::stop_token stop);

  /// Makes another endpoint the first: this one can be reached but does not serve.
  void move_on() noexcept { first_.store((first_.load() + 1) % urls_.size()); }

  [[nodiscard]] const std::vector<std::string>& urls() const noexcept { return urls_; }

 private:
  explicit HttpEndpoints(std::vector<std::string> urls) : urls_(std::move(urls)) {}

  template <class Call>
  auto ask(const std::string& path, HttpRequest request, Call call) -> decltype(call(request));

  std::vector<std::string> urls_;
  std::atomic<std::size_t> first_ = 0;
};

}  // namespace headrace
