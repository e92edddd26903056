// SPDX-License-Identifier: Apache-2.0
// OpenAI's completions protocol: reading a request's body, and making the objects of the response. A token is
// a byte.
#pragma once

#include "cli/demo/http_error.hpp"
#include "cli/demo/sampling.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headrace::cli::demo {

inline constexpr const char* model_id = "headrace-demo";

struct CompletionRequest {
  std::vector<std::int64_t> prompt;
  std::size_t max_tokens = 64;
  Sampling sampling;
  std::vector<std::string> stop;
  bool echo = false;
  bool stream = false;
  bool include_usage = false;  ///< send the usage at the end of a stream
};

/// Reads the body of POST /v1/completions.
///   context   the most tokens of prompt and text together
///   defaults  values of the parameters that the request leaves out, seed included
[[nodiscard]] std::variant<CompletionRequest, HttpError> read_completion_request(std::string_view body,
                                                                                 std::size_t context,
                                                                                 const Sampling& defaults);

struct Usage {
  std::size_t prompt_tokens = 0;
  std::size_t completion_tokens = 0;
};

/// Makes the JSON objects of the response to one request; they share an id and a time.
class CompletionObjects {
 public:
  CompletionObjects(std::string id, std::int64_t created) : id_(std::move(id)), created_(created) {}

  /// The whole response. `finish_reason`: "length" or "stop".
  [[nodiscard]] std::string whole(const std::string& text, const std::string& finish_reason,
                                  const Usage& usage) const;
  /// One event of a stream; the last one has a finish_reason.
  [[nodiscard]] std::string part(const std::string& text,
                                 const std::optional<std::string>& finish_reason) const;
  /// The event after the last one, sent if the request has include_usage.
  [[nodiscard]] std::string usage_part(const Usage& usage) const;

 private:
  [[nodiscard]] nlohmann::ordered_json object() const;
  [[nodiscard]] static nlohmann::ordered_json choice(const std::string& text,
                                                     const std::optional<std::string>& finish_reason);

  const std::string id_;
  const std::int64_t created_;
};

/// GET /v1/models/headrace-demo, and the list with that one model.
[[nodiscard]] std::string model_body(std::int64_t created);
[[nodiscard]] std::string models_body(std::int64_t created);

}  // namespace headrace::cli::demo
