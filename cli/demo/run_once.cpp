// SPDX-License-Identifier: Apache-2.0
#include "cli/common/errors.hpp"
#include "cli/common/table.hpp"
#include "cli/demo/demo_options.hpp"
#include "cli/demo/expert_model.hpp"
#include "cli/demo/rank_model.hpp"
#include "cli/demo/stop_signals.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <system_error>

namespace headrace::cli::demo {
namespace {

using Clock = std::chrono::steady_clock;

struct Generated {
  std::vector<std::int64_t> tokens;
  std::string worker;  ///< the decode worker that wrote them
  PrefillReport report;
  double seconds = 0;
  std::vector<std::uint64_t> logits;  ///< checksums, with several ranks
  bool checked = false;               ///< one process alone generated the same tokens
};

std::string as_text(std::span<const std::int64_t> tokens) {
  std::string text;
  for (const std::int64_t token : tokens) text += static_cast<char>(token);
  return text;
}

/// Prints and flushes. If stdout takes no more, it throws: the command ends (see run_action) and does not
/// generate the rest of the text.
void print_now(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  throw std::system_error(errno == 0 ? EIO : errno, std::generic_category());
}

Result<Generated> generate(Front& front, const TextRequest& request, bool print) {
  const auto begin = Clock::now();
  HEADRACE_CLI_TRY(stream, front.submit(request));
  Generated generated;
  while (true) {
    HEADRACE_CLI_TRY(token, stream.next());
    if (!token) break;
    generated.tokens.push_back(*token);
    if (print) print_now(as_text(std::span(&*token, 1)));
  }
  generated.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  generated.report = stream.report();
  generated.logits = stream.logits();
  generated.worker = stream.worker();
  return generated;
}

double share_before_end(const PrefillReport& report) {
  return report.bytes == 0 ? 0
                           : static_cast<double>(report.bytes_before_end) / static_cast<double>(report.bytes);
}

double gigabytes_per_second(const PrefillReport& report) {
  return report.transfer_seconds > 0 ? static_cast<double>(report.bytes) / report.transfer_seconds * 1e-9 : 0;
}

/// Counts from the first token, whose time belongs to the prompt.
double tokens_per_second(const Generated& generated) {
  const double rest = generated.seconds - generated.report.first_token_seconds;
  return rest > 0 ? static_cast<double>(generated.tokens.size() - 1) / rest : 0;
}

/// The device of the worker that wrote the text.
const std::string& decode_device(const DemoOptions& options, const Generated& generated) {
  std::size_t worker = 0;
  while (worker + 1 < options.front.decode_workers && decode_name(worker) != generated.worker) ++worker;
  return options.front.placement.of_decode(worker);
}

Message summary(const DemoOptions& options, const Generated& generated) {
  const PrefillReport& report = generated.report;
  return {{"shape", options.shape},
          {"prompt", options.prompt},
          {"text", options.has_text() ? as_text(generated.tokens) : ""},
          {"token_ids", generated.tokens},
          {"prompt_tokens", options.prompt.size()},
          {"tokens", generated.tokens.size()},
          {"first_token_seconds", report.first_token_seconds},
          {"prefill_seconds", report.prefill_seconds},
          {"seconds", generated.seconds},
          {"tokens_per_second", tokens_per_second(generated)},
          {"bytes", report.bytes},
          {"pages", report.pages},
          {"page_tokens", options.front.page_tokens},
          {"share_before_prefill_ended", share_before_end(report)},
          {"GB/s", gigabytes_per_second(report)},
          {"path", report.path},
          {"prefill_device", options.front.placement.prefill},
          {"decode_device", decode_device(options, generated)},
          {"worker", generated.worker},
          {"decode_workers", options.front.decode_workers},
          {"tensor_parallel", options.front.ranks},
          {"expert_parallel", std::max(options.front.expert_ranks, 1)},
          {"checked", generated.checked}};
}

std::string writers(const FrontOptions& front) {
  if (front.ranks > 1) return fmt::format("and the other ranks: each has 1/{} of the heads", front.ranks);
  if (front.expert_ranks > 0)
    return fmt::format("one of {} ranks that share the experts", front.expert_ranks);
  if (front.decode_workers > 1) return fmt::format("one of {} decode workers", front.decode_workers);
  return "the decode worker";
}

void print_table(const DemoOptions& options, const Generated& generated) {
  const PrefillReport& report = generated.report;
  Table table({{"what"}, {"", Table::Align::right}, {""}});
  table.add({"tokens", fmt::format("{} + {}", options.prompt.size(), generated.tokens.size()),
             fmt::format("prompt + generated, at {:.0f} tokens/s", tokens_per_second(generated))});
  table.add({"time to first token", seconds_text(report.first_token_seconds),
             fmt::format("running the prompt took {} of it", seconds_text(report.prefill_seconds))});
  table.add({"keys and values moved", amount_text(report.bytes),
             fmt::format("in {} pages; a page holds {} tokens of one layer", report.pages,
                         options.front.page_tokens)});
  table.add({"before prefill ended", fmt::format("{:.0f} %", 100 * share_before_end(report)),
             "of these bytes had moved"});
  table.add({"rate", amount_text(static_cast<std::uint64_t>(1e9 * gigabytes_per_second(report))) + "/s",
             "while pages were moving"});
  table.add({"path", report.path,
             fmt::format("from the prefill worker's memory ({}) to the decode worker's ({})",
                         options.front.placement.prefill, decode_device(options, generated))});
  table.add({"written by", generated.worker, writers(options.front)});
  std::fprintf(stderr, "\n%s", table.text().c_str());
}

/// Where two lists differ first; nullopt if they are equal.
template <class T>
std::optional<std::size_t> first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (in_a == a.end() && in_b == b.end()) return std::nullopt;
  return static_cast<std::size_t>(in_a - a.begin());
}

/// Whether ranks compute a token together: then one process computes their parts for --check.
bool has_ranks(const FrontOptions& front) { return front.ranks > 1 || front.expert_ranks > 0; }

/// Generates the text in this process alone, by all ranks, and compares tokens and logits.
Result<void> compare_with_ranks(const DemoOptions& options, const TextRequest& request,
                                const Generated& generated) {
  const FrontOptions& front = options.front;
  const auto by_ranks = front.expert_ranks > 0 ? generate_by_experts : generate_by_ranks;
  const int ranks = front.expert_ranks > 0 ? front.expert_ranks : front.ranks;
  HEADRACE_CLI_TRY(alone, by_ranks(front.model, ranks, request.prompt, request.count, request.sampling,
                                   front.chunk_tokens, front.page_tokens));
  if (const auto at = first_difference(alone.logits, generated.logits))
    return fail(Code::corrupt,
                "--check: the logits of token {} are not bit for bit those of one process that computes the "
                "parts of all {} ranks and adds them in the order of the ranks",
                *at + 1, ranks);
  if (const auto at = first_difference(alone.tokens, generated.tokens))
    return fail(Code::corrupt, "--check: token {} differs from that of one process that computes all ranks",
                *at);
  return {};
}

/// Generates the text in this process alone and compares all tokens.
Result<void> compare_with_one_process(const DemoOptions& options, const TextRequest& request,
                                      const Generated& generated) {
  if (has_ranks(options.front)) HEADRACE_CLI_CHECK(compare_with_ranks(options, request, generated));
  // The whole model adds the experts of a token in another order, and a token that is nearly between two
  // experts may go to the other one.
  if (options.front.expert_ranks > 0) return {};
  HEADRACE_CLI_TRY(model, TextModel::open(options.front.model, options.front.placement.prefill));
  HEADRACE_CLI_TRY(alone, generate_alone(model, request.prompt, request.count, request.sampling,
                                         options.front.chunk_tokens, options.front.page_tokens));
  const auto at = first_difference(alone, generated.tokens);
  if (!at) return {};
  return fail(Code::corrupt, "--check: token {} differs from the one that a single process generates{}", *at,
              has_ranks(options.front)
                  ? " with the whole model, though the logits are those of all ranks: sums in parts are "
                    "rounded otherwise, which decides between two tokens that are nearly as likely"
                  : "");
}

const char* shared_text(const FrontOptions& front) {
  if (front.expert_ranks > 0) return " that share the experts";
  return front.ranks > 1 ? " that share the heads" : "";
}

void say_start(const DemoOptions& options) {
  const std::size_t workers = options.front.decode_workers;
  std::fprintf(stderr, "starting a prefill worker, %zu decode worker%s%s%s\n", workers,
               workers == 1 ? "" : "s", shared_text(options.front),
               options.front.model.weights.empty() ? "" : " and a server for the model's weights");
}

Result<void> run_text(const DemoOptions& options, int stop) {
  TextRequest request;
  for (const char c : options.prompt) request.prompt.push_back(static_cast<unsigned char>(c));
  request.count = options.count;
  request.sampling = options.sampling;
  if (!options.json) say_start(options);
  HEADRACE_CLI_TRY(front, Front::start(options.front, stop));
  const bool print = !options.json && options.has_text();
  if (print) print_now(options.prompt);
  HEADRACE_CLI_TRY(generated, generate(*front, request, print));
  if (print) print_now("\n");
  if (options.check) {
    HEADRACE_CLI_CHECK(compare_with_one_process(options, request, generated));
    generated.checked = true;
  }
  if (options.json) {
    print_now(summary(options, generated).dump(-1, ' ', false, Message::error_handler_t::replace) + "\n");
    return {};
  }
  print_table(options, generated);
  if (options.check)
    std::fprintf(stderr, "checked: a single process generates the same %zu tokens%s\n",
                 generated.tokens.size(),
                 has_ranks(options.front) ? ", and the same bits of logits where it computes all ranks" : "");
  return {};
}

}  // namespace

Result<void> run_once(const DemoOptions& options) {
  HEADRACE_CLI_TRY(stop, StopSignals::open());
  auto done = run_text(options, stop.event());
  StopSignals::pass_on();
  return done;
}

}  // namespace headrace::cli::demo
