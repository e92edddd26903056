// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/http_completions.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

namespace headrace::cli::demo {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array known_fields{"model",
                                  "prompt",
                                  "max_tokens",
                                  "temperature",
                                  "top_p",
                                  "seed",
                                  "stream",
                                  "stop",
                                  "n",
                                  "echo",
                                  "best_of",
                                  "user",
                                  "logprobs",
                                  "stream_options",
                                  "suffix",
                                  "presence_penalty",
                                  "frequency_penalty",
                                  "logit_bias"};
constexpr std::size_t most_stops = 4;
constexpr std::size_t longest_stop = 256;

std::string written(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// A value, or its type if it may be long, for an error text.
std::string shown(const Json& value) {
  if (value.is_object() || value.is_array() || value.is_string())
    return fmt::format("of the type {}", value.type_name());
  return written(value);
}

/// Reads the fields of a body one by one. It keeps the first error; values read after it are not valid.
class Fields {
 public:
  explicit Fields(Json body) : body_(std::move(body)) {}

  /// The field; nullptr if it is missing or null, which mean the same.
  [[nodiscard]] const Json* find(const char* name) const {
    const auto found = body_.find(name);
    return found == body_.end() || found->is_null() ? nullptr : &*found;
  }

  bool flag(const char* name) {
    const Json* value = find(name);
    if (value != nullptr && !value->is_boolean()) refuse_value(name, *value, "true or false");
    return value != nullptr && value->is_boolean() && value->get<bool>();
  }

  double number(const char* name, double low, double high, double fallback) {
    const Json* value = find(name);
    if (value == nullptr) return fallback;
    if (value->is_number() && value->get<double>() >= low && value->get<double>() <= high)
      return value->get<double>();
    refuse_value(name, *value, fmt::format("a number from {} to {}", low, high));
    return fallback;
  }

  std::size_t whole(const char* name, std::size_t low, std::size_t high, std::size_t fallback) {
    const Json* value = find(name);
    if (value == nullptr) return fallback;
    // The parser stores every number that is not negative as unsigned.
    if (value->is_number_unsigned() && value->get<std::uint64_t>() >= low &&
        value->get<std::uint64_t>() <= high)
      return value->get<std::size_t>();
    refuse_value(
        name, *value,
        low == high ? fmt::format("{}", low) : fmt::format("a whole number from {} to {}", low, high));
    return fallback;
  }

  std::uint64_t seed(std::uint64_t fallback) {
    const Json* value = find("seed");
    if (value == nullptr) return fallback;
    if (value->is_number_unsigned()) return value->get<std::uint64_t>();
    if (value->is_number_integer()) return static_cast<std::uint64_t>(value->get<std::int64_t>());
    refuse_value("seed", *value, "a whole number of at most 64 bits");
    return fallback;
  }

  void refuse_value(const char* name, const Json& value, const std::string& wanted) {
    refuse({400, fmt::format("{} is {}: give {}", name, shown(value), wanted), name, "invalid_value"});
  }
  void refuse(HttpError error) {
    if (!error_) error_ = std::move(error);
  }

  [[nodiscard]] const Json& body() const { return body_; }
  [[nodiscard]] std::optional<HttpError>& error() { return error_; }

 private:
  const Json body_;
  std::optional<HttpError> error_;
};

void check_names(Fields& fields) {
  for (const auto& [name, value] : fields.body().items())
    if (std::find(known_fields.begin(), known_fields.end(), name) == known_fields.end())
      return fields.refuse({400,
                            fmt::format("there is no parameter {}: there are {}", written(name),
                                        fmt::join(known_fields, ", ")),
                            name, "unknown_parameter"});
}

void check_model(Fields& fields) {
  const Json* const model = fields.find("model");
  if (model == nullptr || *model == model_id) return;
  if (!model->is_string()) return fields.refuse_value("model", *model, fmt::format("\"{}\"", model_id));
  fields.refuse({404, fmt::format("there is no model {}: there is \"{}\"", written(*model), model_id),
                 "model", "model_not_found"});
}

/// Refuses parameters that the protocol has and this server does not, unless their value has no effect.
void check_unsupported(Fields& fields) {
  (void)fields.whole("n", 1, 1, 1);
  (void)fields.whole("best_of", 1, 1, 1);
  (void)fields.number("presence_penalty", 0, 0, 0);
  (void)fields.number("frequency_penalty", 0, 0, 0);
  for (const char* const name : {"logprobs", "suffix", "logit_bias"}) {
    const Json* const value = fields.find(name);
    if (value == nullptr || (value->is_structured() && value->empty())) continue;
    if (value->is_string() && value->get_ref<const std::string&>().empty()) continue;
    fields.refuse(
        {400, fmt::format("{} is not supported: leave it out", name), name, "unsupported_parameter"});
  }
}

std::vector<std::int64_t> bytes_of(const std::string& text) {
  std::vector<std::int64_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

bool is_token(const Json& value) { return value.is_number_unsigned() && value.get<std::uint64_t>() < 256; }

std::vector<std::int64_t> read_prompt(Fields& fields) {
  constexpr const char* wanted = "a text, a list with one text, or a list of bytes (0 to 255)";
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr)
    return fields.refuse(
               {400, fmt::format("there is no prompt: give {}", wanted), "prompt", "missing_parameter"}),
           std::vector<std::int64_t>();
  if (prompt->is_array() && prompt->size() > 1 && prompt->front().is_string())
    return fields.refuse({400, fmt::format("{} prompts: give one a request", prompt->size()), "prompt",
                          "invalid_value"}),
           std::vector<std::int64_t>();
  if (prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number()) prompt = &prompt->front();
  std::vector<std::int64_t> tokens;
  if (prompt->is_string()) {
    tokens = bytes_of(prompt->get_ref<const std::string&>());
  } else if (prompt->is_array() && std::all_of(prompt->begin(), prompt->end(), is_token)) {
    tokens = prompt->get<std::vector<std::int64_t>>();
  } else {
    fields.refuse({400, fmt::format("the prompt is of the type {}: give {}", prompt->type_name(), wanted),
                   "prompt", "invalid_value"});
  }
  if (tokens.empty())
    fields.refuse({400, "the prompt is empty: give at least one byte", "prompt", "invalid_value"});
  return tokens;
}

std::vector<std::string> read_stop(Fields& fields) {
  const Json* const stop = fields.find("stop");
  if (stop == nullptr) return {};
  const Json words = stop->is_array() ? *stop : Json::array({*stop});
  const auto fits = [](const Json& word) {
    return word.is_string() && !word.get_ref<const std::string&>().empty() &&
           word.get_ref<const std::string&>().size() <= longest_stop;
  };
  if (words.size() <= most_stops && std::all_of(words.begin(), words.end(), fits))
    return words.get<std::vector<std::string>>();
  fields.refuse(
      {400,
       fmt::format("stop is not valid: give a text or a list of up to {} texts, each of 1 to {} bytes",
                   most_stops, longest_stop),
       "stop", "invalid_value"});
  return {};
}

bool read_include_usage(Fields& fields, bool stream) {
  const Json* const options = fields.find("stream_options");
  if (options == nullptr) return false;
  if (!stream || !options->is_object()) {
    fields.refuse({400, "stream_options must be an object, and needs \"stream\": true", "stream_options",
                   "invalid_value"});
    return false;
  }
  Fields inner(*options);
  const bool wanted = inner.flag("include_usage");
  if (inner.error()) fields.refuse(std::move(*inner.error()));
  return wanted;
}

void check_length(Fields& fields, const CompletionRequest& request, std::size_t context) {
  if (request.prompt.size() + request.max_tokens <= context) return;
  fields.refuse({400,
                 fmt::format("{} tokens of prompt and {} to generate are more than the model's context of "
                             "{}: shorten the prompt or lower max_tokens",
                             request.prompt.size(), request.max_tokens, context),
                 "prompt", "context_length_exceeded"});
}

std::variant<Json, HttpError> read_object(std::string_view body) try {
  Json json = Json::parse(body);
  if (json.is_object()) return json;
  return HttpError{
      400,
      fmt::format(
          "the body is JSON of the type {}: give an object, as in {{\"prompt\": \"In the beginning\"}}",
          json.type_name()),
      "", "invalid_json"};
} catch (const Json::parse_error& error) {
  const std::string where =
      error.byte > body.size() ? "it ends too early" : fmt::format("byte {} is not expected", error.byte);
  return HttpError{400, fmt::format("the body is not JSON: {}", where), "", "invalid_json"};
} catch (const Json::exception&) {
  return HttpError{400, "the body has a number that is too large for any parameter", "", "invalid_json"};
}

}  // namespace

std::variant<CompletionRequest, HttpError> read_completion_request(std::string_view body, std::size_t context,
                                                                   const Sampling& defaults) {
  auto object = read_object(body);
  if (auto* const error = std::get_if<HttpError>(&object)) return std::move(*error);
  Fields fields(std::move(std::get<Json>(object)));
  CompletionRequest request;
  check_names(fields);
  check_model(fields);
  check_unsupported(fields);
  request.prompt = read_prompt(fields);
  request.max_tokens = fields.whole("max_tokens", 1, context - 1, request.max_tokens);
  request.sampling.temperature = fields.number("temperature", 0, 2, defaults.temperature);
  request.sampling.top_p = fields.number("top_p", 0, 1, defaults.top_p);
  request.sampling.seed = fields.seed(defaults.seed);
  request.stop = read_stop(fields);
  request.echo = fields.flag("echo");
  request.stream = fields.flag("stream");
  request.include_usage = read_include_usage(fields, request.stream);
  check_length(fields, request, context);
  if (fields.error()) return std::move(*fields.error());
  return request;
}

// --- answers

Json CompletionObjects::object() const {
  return {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", model_id}};
}

Json CompletionObjects::choice(const std::string& text, const std::optional<std::string>& finish_reason) {
  Json one{{"index", 0}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (finish_reason) one["finish_reason"] = *finish_reason;
  return one;
}

namespace {
Json usage_object(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

Json model_object(std::int64_t created) {
  return {{"id", model_id}, {"object", "model"}, {"created", created}, {"owned_by", "headrace"}};
}
}  // namespace

std::string CompletionObjects::whole(const std::string& text, const std::string& finish_reason,
                                     const Usage& usage) const {
  Json json = object();
  json["choices"] = Json::array({choice(text, finish_reason)});
  json["usage"] = usage_object(usage);
  return written(json);
}

std::string CompletionObjects::part(const std::string& text,
                                    const std::optional<std::string>& finish_reason) const {
  Json json = object();
  json["choices"] = Json::array({choice(text, finish_reason)});
  return written(json);
}

std::string CompletionObjects::usage_part(const Usage& usage) const {
  Json json = object();
  json["choices"] = Json::array();
  json["usage"] = usage_object(usage);
  return written(json);
}

std::string model_body(std::int64_t created) { return written(model_object(created)); }

std::string models_body(std::int64_t created) {
  return written({{"object", "list"}, {"data", Json::array({model_object(created)})}});
}

std::string error_body(const HttpError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  const Json inner{{"message", error.message},
                   {"type", error.status >= 500 ? "server_error" : "invalid_request_error"},
                   {"param", or_null(error.parameter)},
                   {"code", or_null(error.code)}};
  return written({{"error", inner}});
}

}  // namespace headrace::cli::demo
