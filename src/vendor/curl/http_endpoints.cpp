// SPDX-License-Identifier: Apache-2.0
#include "vendor/curl/http_endpoints.hpp"

namespace headrace {

Result<HttpEndpoints> HttpEndpoints::make(const std::vector<std::string>& urls) {
  if (urls.empty())
    return make_error(Code::invalid_argument, "no endpoint is given: name one as http://host:port");
  std::vector<std::string> whole;
  for (const std::string& url : urls) {
    std::string full = url.find("://") == std::string::npos ? "http://" + url : url;
    while (full.ends_with('/')) full.pop_back();
    if (!full.starts_with("http://") && !full.starts_with("https://")) {
      return make_error(Code::invalid_argument, "the endpoint \"{}\" is neither http:// nor https://", url);
    }
    whole.push_back(std::move(full));
  }
  return HttpEndpoints(std::move(whole));
}

template <class Call>
auto HttpEndpoints::ask(const std::string& path, HttpRequest request, Call call) -> decltype(call(request)) {
  const std::size_t first = first_.load(std::memory_order_relaxed);
  std::string reasons;
  for (std::size_t i = 0; i < urls_.size(); ++i) {
    const std::size_t index = (first + i) % urls_.size();
    request.url = urls_[index] + path;
    auto answer = call(request);
    if (answer.code() != Code::peer_lost) {
      first_.store(index, std::memory_order_relaxed);
      return answer;
    }
    reasons += (reasons.empty() ? "" : "; ") + answer.error().message;
  }
  return Error{Code::peer_lost, "no endpoint can be reached: " + reasons};
}

Result<HttpResponse> HttpEndpoints::post(HttpClient& client, const std::string& path,
                                         const HttpRequest& request, Deadline deadline,
                                         std::stop_token stop) {
  return ask(path, request, [&](const HttpRequest& one) { return client.post(one, deadline, stop); });
}

Result<void> HttpEndpoints::stream(HttpClient& client, const std::string& path, const HttpRequest& request,
                                   const std::function<void(std::string_view)>& on_bytes,
                                   std::stop_token stop) {
  return ask(path, request, [&](const HttpRequest& one) { return client.stream(one, on_bytes, stop); });
}

}  // namespace headrace
