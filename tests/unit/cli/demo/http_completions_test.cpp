// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/http_completions.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace::cli::demo {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t context = 100;

std::variant<CompletionRequest, HttpError> read(const std::string& body) {
  return read_completion_request(body, context, {0.5, 0.9, 7});
}

CompletionRequest good(const std::string& body) {
  auto result = read(body);
  if (const auto* error = std::get_if<HttpError>(&result)) {
    ADD_FAILURE() << body << ": " << error->message;
    return {};
  }
  return std::get<CompletionRequest>(result);
}

HttpError bad(const std::string& body) {
  auto result = read(body);
  if (const auto* error = std::get_if<HttpError>(&result)) return *error;
  ADD_FAILURE() << body << " was taken";
  return {};
}

TEST(CompletionRequest, AMissingParameterHasItsDefault) {
  const auto request = good(R"({"prompt": "ab", "model": "headrace-demo"})");
  EXPECT_THAT(request.prompt, ElementsAre('a', 'b'));
  EXPECT_EQ(request.max_tokens, 64u);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.9);
  EXPECT_EQ(request.sampling.seed, 7u);
  EXPECT_FALSE(request.stream || request.echo || request.include_usage);
  EXPECT_THAT(request.stop, ElementsAre());
}

TEST(CompletionRequest, EveryParameterIsRead) {
  const auto request =
      good(R"({"prompt": ["x"], "max_tokens": 3, "temperature": 0, "top_p": 1, "seed": 12, "stream": true,
                                "stream_options": {"include_usage": true}, "stop": ["a", "b"], "echo": true, "n": 1, "user": "me"})");
  EXPECT_THAT(request.prompt, ElementsAre('x'));
  EXPECT_EQ(request.max_tokens, 3u);
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.sampling.seed, 12u);
  EXPECT_TRUE(request.stream && request.echo && request.include_usage);
  EXPECT_THAT(request.stop, ElementsAre("a", "b"));
}

TEST(CompletionRequest, ANullParameterHasItsDefault) {
  const auto request = good(
      R"({"prompt": "x", "max_tokens": null, "seed": null, "stop": null, "logprobs": null, "suffix": null, "n": null})");
  EXPECT_EQ(request.max_tokens, 64u);
  EXPECT_EQ(request.sampling.seed, 7u);
}

TEST(CompletionRequest, APromptMayBeAListOfBytes) {
  EXPECT_THAT(good(R"({"prompt": [0, 255, 65]})").prompt, ElementsAre(0, 255, 65));
  EXPECT_THAT(good(R"({"prompt": [[1]]})").prompt, ElementsAre(1));
  EXPECT_THAT(good("{\"prompt\": \"\xE2\x82\xAC\"}").prompt, ElementsAre(0xE2, 0x82, 0xAC));
}

TEST(CompletionRequest, ASeedMayBeNegativeAndHave64Bits) {
  EXPECT_EQ(good(R"({"prompt": "x", "seed": -1})").sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(good(R"({"prompt": "x", "seed": 18446744073709551615})").sampling.seed, ~std::uint64_t{0});
}

TEST(CompletionRequest, APromptAndItsAnswerMayFillTheContextButNotExceedIt) {
  const auto body = [](std::size_t count) {
    return json{{"prompt", std::string(60, 'a')}, {"max_tokens", count}}.dump();
  };
  EXPECT_EQ(good(body(40)).max_tokens, 40u);
  EXPECT_EQ(bad(body(41)).code, "context_length_exceeded");
}

TEST(CompletionRequest, AWrongParameterIsRefusedWithItsNameAndTheExpectedValue) {
  const struct {
    const char *body, *parameter, *words;
  } cases[] = {
      {"", "", "not JSON: it ends too early"},
      {R"({"prompt": "x"} x)", "", "byte 17 is not expected"},
      {"\xFF", "", "not JSON"},
      {"[1]", "", "give an object"},
      {R"({"prompt": "x", "max_tokens": 1e999})", "", "too large"},
      {"{}", "prompt", "there is no prompt"},
      {R"({"prompt": ""})", "prompt", "at least one byte"},
      {R"({"prompt": []})", "prompt", "at least one byte"},
      {R"({"prompt": {"a": 1}})", "prompt", "type object: give a text"},
      {R"({"prompt": [256]})", "prompt", "0 to 255"},
      {R"({"prompt": [-1]})", "prompt", "0 to 255"},
      {R"({"prompt": ["a", "b"]})", "prompt", "2 prompts"},
      {R"({"prompt": ["a", 1]})", "prompt", "2 prompts"},
      {R"({"prompt": [["a"]]})", "prompt", "type array"},
      {R"({"prompt": "x", "max_tokens": 0})", "max_tokens",
       "max_tokens is 0: give a whole number from 1 to 99"},
      {R"({"prompt": "x", "max_tokens": -5})", "max_tokens", "from 1 to 99"},
      {R"({"prompt": "x", "max_tokens": 1.5})", "max_tokens", "from 1 to 99"},
      {R"({"prompt": "x", "max_tokens": "5"})", "max_tokens", "of the type string"},
      {R"({"prompt": "x", "max_tokens": 18446744073709551615})", "max_tokens", "from 1 to 99"},
      {R"({"prompt": "x", "temperature": -0.1})", "temperature", "a number from 0 to 2"},
      {R"({"prompt": "x", "temperature": true})", "temperature", "a number from 0 to 2"},
      {R"({"prompt": "x", "top_p": 1.01})", "top_p", "a number from 0 to 1"},
      {R"({"prompt": "x", "seed": 1.5})", "seed", "64 bits"},
      {R"({"prompt": "x", "seed": 18446744073709551616})", "seed", "64 bits"},
      {R"({"prompt": "x", "stream": 1})", "stream", "true or false"},
      {R"({"prompt": "x", "echo": "no"})", "echo", "true or false"},
      {R"({"prompt": "x", "stop": ""})", "stop", "1 to 256 bytes"},
      {R"({"prompt": "x", "stop": [1]})", "stop", "1 to 256 bytes"},
      {R"({"prompt": "x", "stop": ["a", "b", "c", "d", "e"]})", "stop", "up to 4"},
      {R"({"prompt": "x", "n": 2})", "n", "n is 2: give 1"},
      {R"({"prompt": "x", "best_of": 3})", "best_of", "give 1"},
      {R"({"prompt": "x", "presence_penalty": 1})", "presence_penalty", "from 0 to 0"},
      {R"({"prompt": "x", "logprobs": 5})", "logprobs", "not supported"},
      {R"({"prompt": "x", "suffix": "y"})", "suffix", "not supported"},
      {R"({"prompt": "x", "stream_options": {}})", "stream_options", "\"stream\": true"},
      {R"({"prompt": "x", "stream": true, "stream_options": {"include_usage": 1}})", "include_usage",
       "true or false"},
      {R"({"prompt": "x", "model": 1})", "model", "give \"headrace-demo\""},
      {R"({"prompt": "x", "best": 1})", "best", "no parameter \"best\": there are model, prompt"},
  };
  for (const auto& one : cases) {
    const HttpError error = bad(one.body);
    EXPECT_EQ(error.status, 400u) << one.body;
    EXPECT_EQ(error.parameter, one.parameter) << one.body;
    EXPECT_THAT(error.message, HasSubstr(one.words)) << one.body;
  }
}

TEST(CompletionRequest, AnotherModelIsNotFound) {
  const HttpError error = bad(R"({"prompt": "x", "model": "other"})");
  EXPECT_EQ(error.status, 404u);
  EXPECT_EQ(error.code, "model_not_found");
  EXPECT_THAT(error.message, HasSubstr("there is \"headrace-demo\""));
}

TEST(CompletionRequest, MoreNestedBracketsThanAStackHoldsAreRefused) {
  // A stack of 8 MiB has 42 bytes for each: no parser that calls itself gets along with so little.
  EXPECT_EQ(bad(std::string(200'000, '[')).status, 400u);
}

TEST(CompletionObjects, AWholeAnswerHasTextFinishReasonAndUsage) {
  const auto object = json::parse(CompletionObjects("cmpl-1", 5).whole("text", "length", {3, 4}));
  EXPECT_EQ(
      object,
      (json{{"id", "cmpl-1"},
            {"object", "text_completion"},
            {"created", 5},
            {"model", model_id},
            {"choices",
             json::array(
                 {{{"index", 0}, {"text", "text"}, {"logprobs", nullptr}, {"finish_reason", "length"}}})},
            {"usage", {{"prompt_tokens", 3}, {"completion_tokens", 4}, {"total_tokens", 7}}}}));
}

TEST(CompletionObjects, OnlyTheLastEventOfAStreamHasAFinishReason) {
  const CompletionObjects objects("cmpl-1", 5);
  EXPECT_EQ(json::parse(objects.part("a", {}))["choices"][0]["finish_reason"], nullptr);
  EXPECT_EQ(json::parse(objects.part("", "stop"))["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json::parse(objects.usage_part({1, 2}))["choices"], json::array());
}

TEST(ErrorBody, AnErrorBodyHasTheFormThatClientsRead) {
  EXPECT_EQ(json::parse(error_body({400, "why", "n", "invalid_value"})),
            (json{{"error",
                   {{"message", "why"},
                    {"type", "invalid_request_error"},
                    {"param", "n"},
                    {"code", "invalid_value"}}}}));
  EXPECT_EQ(
      json::parse(error_body({503, "\xFF", "", ""})),
      (json{
          {"error",
           {{"message", "\xEF\xBF\xBD"}, {"type", "server_error"}, {"param", nullptr}, {"code", nullptr}}}}));
}

}  // namespace
}  // namespace headrace::cli::demo
