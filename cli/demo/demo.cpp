// SPDX-License-Identifier: Apache-2.0
// `headrace demo`: one process runs a prompt; its keys and values move page by page to another process, which
// generates the text.
#include "cli/command.hpp"
#include "cli/common/file_descriptor.hpp"
#include "cli/common/gpu_count.hpp"
#include "cli/common/number_option.hpp"
#include "cli/common/tcp_door.hpp"
#include "cli/demo/demo_options.hpp"

#include <headrace/agent.hpp>

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>

namespace headrace::cli {
namespace {

constexpr const char* default_prompt =
    "And it came to pass in those days, that there went out a decree from the king, and all the people "
    "gathered themselves together at the gate of the city. ";

// The shapes that have a weights file, and that file.
constexpr const char* dense = "book";
constexpr const char* with_experts = "experts";
constexpr const char* dense_file = "weights.safetensors";
constexpr const char* experts_file = "experts.safetensors";

constexpr std::size_t random_prompt = 2048;      // tokens of the default prompt of random weights
constexpr std::size_t random_texts_at_once = 4;  // a token of shape 8b takes 128 KiB of cache

struct DemoArguments {
  demo::DemoOptions demo;
  std::string device = "cpu";
  std::string prompt_file;
  std::string python;
  std::optional<std::uint16_t> port;
  bool moe = false;
  int expert_ranks = 2;  // with `moe`

  [[nodiscard]] bool is_trained() const { return demo.shape == dense || demo.shape == with_experts; }
};

/// Reads at most one byte more than the model's context: a file may be endless.
Result<std::string> read_prompt(const std::string& path, std::size_t context) {
  FileDescriptor opened;
  if (path != "-") opened = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = path == "-" ? STDIN_FILENO : opened.get();
  std::string text;
  char bytes[4096];
  while (text.size() <= context) {
    const ssize_t got = fd < 0 ? -1 : ::read(fd, bytes, sizeof bytes);
    if (got == 0) return text;
    if (got > 0)
      text.append(bytes, static_cast<std::size_t>(got));
    else if (errno != EINTR)
      return fail(Code::not_found, "read the prompt from {}: {}", path, system_text());
  }
  return fail(Code::invalid_argument,
              "the prompt in {} is longer than the model's context of {} tokens: a token is a byte", path,
              context);
}

/// The weights of the installed package, beside the command's folder.
Result<std::string> installed_weights(const char* file) {
  std::error_code error;
  const auto command = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto weights = command.parent_path().parent_path() / "demo_model" / file;
  if (!error && std::filesystem::exists(weights, error)) return weights.string();
  return fail(Code::not_found,
              "there is no file {}: name the model's weights with --model-weights, or run the `headrace` "
              "that `pip install headrace` installed",
              weights.string());
}

Result<std::string> option_value(const std::vector<OptionInfo>& all, std::string_view name) {
  for (const OptionInfo& option : all)
    if (option.name == name) return option.value;
  return fail(Code::internal, "there is no option {}", name);
}

/// Compiles the model's packages if they are missing or made for another torch or processor. Returns their
/// folder.
Result<std::string> export_packages(const DemoArguments& wanted, const Invocation& invocation) {
  std::string python = wanted.python;
  if (python.empty()) {
    HEADRACE_CLI_TRY(options, list_options(invocation.options));
    HEADRACE_CLI_TRY(said, option_value(options, "python"));
    python = said;
  }
  const demo::FrontOptions& front = wanted.demo.front;
  std::vector<std::string> command{python,
                                   "-m",
                                   "headrace.demo_model.export",
                                   "--shape",
                                   wanted.demo.shape,
                                   "--device",
                                   front.placement.kind()};
  if (front.ranks > 1) command.insert(command.end(), {"--tensor-parallel", std::to_string(front.ranks)});
  if (!front.model.packages.empty()) command.insert(command.end(), {"--output", front.model.packages});
  auto folder = demo::run_program(command);
  if (!folder) return std::move(folder).error().within("compile the demo's model");
  if (folder->empty())
    return fail(Code::backend_failed,
                "{} printed no folder: check that it has the same version as this command", command[2]);
  return folder;
}

/// A shape with random weights reads no weights from a file and writes no text to serve; 8b is too large for
/// a CPU.
Result<void> check_shape(const DemoArguments& wanted) {
  if (wanted.is_trained()) return {};
  const std::string& shape = wanted.demo.shape;
  if (!wanted.demo.front.model.weights.empty())
    return fail(Code::invalid_argument, "--shape {} has random weights: leave --model-weights out", shape);
  if (wanted.port)
    return fail(Code::invalid_argument,
                "--shape {} has random weights, which write no text to serve: leave --serve out", shape);
  if (shape == "8b" && wanted.demo.front.placement.kind() == "cpu")
    return fail(Code::invalid_argument,
                "--shape 8b takes 20 GB of a GPU for each worker: add --device cuda, or try --shape small on "
                "the CPU");
  return {};
}

/// Ranks share the trained model on the CPU, and are the only decode workers.
Result<void> check_ranks(const DemoArguments& wanted) {
  const demo::FrontOptions& front = wanted.demo.front;
  if (front.ranks == 1) return {};
  const auto refuse = [&](const std::string& why) -> Result<void> {
    return fail(Code::not_supported, "--tensor-parallel {}: {}", front.ranks, why);
  };
  if (!wanted.is_trained()) return refuse("only the model of shape book is split: leave --shape out");
  if (front.placement.kind() != "cpu") return refuse("ranks run on the CPU so far: leave --device out");
  if (front.decode_workers != 1)
    return refuse("the ranks are one decode worker, which is the only one: leave --workers out");
  if (front.retry)
    return refuse("a rank that dies ends the text, because the others cannot go on: leave --retry out");
  return {};
}

/// Ranks share the experts of the trained model on the CPU, and are the decode workers.
Result<void> check_moe(const DemoArguments& wanted) {
  if (!wanted.moe) return {};
  const demo::FrontOptions& front = wanted.demo.front;
  const auto refuse = [](const char* why) -> Result<void> {
    return fail(Code::not_supported, "--moe: {}", why);
  };
  if (front.placement.kind() != "cpu") return refuse("ranks run on the CPU so far: leave --device out");
  if (front.decode_workers != 1)
    return refuse("its ranks are the decode workers: leave --workers out, and say how many with --ranks");
  if (front.retry)
    return refuse("a rank that dies ends the texts, because the others lack its experts: leave --retry out");
  if (!front.backends.empty() && std::ranges::find(front.backends, "shm") == front.backends.end())
    return refuse("ranks map one another's memory, which backend shm does: add --backend shm");
  return {};
}

/// Every rank has at least one expert. A model without experts does not run with --moe, and no other one
/// without.
Result<void> check_experts(const DemoArguments& wanted) {
  const demo::FrontOptions& front = wanted.demo.front;
  if (!wanted.is_trained()) return {};
  HEADRACE_CLI_TRY(sizes, demo::read_model_sizes(front.model));
  if (wanted.moe && sizes.experts == 0)
    return fail(Code::invalid_argument, "--moe: the model in {} has no experts: leave --moe out",
                front.model.weights);
  if (!wanted.moe && sizes.experts > 0)
    return fail(Code::invalid_argument, "the model in {} has {} experts in each layer: add --moe",
                front.model.weights, sizes.experts);
  if (wanted.moe && wanted.expert_ranks > sizes.experts)
    return fail(
        Code::invalid_argument,
        "--ranks {}: the model has {} experts in each layer, and each rank has at least one: choose 1 "
        "to {}",
        wanted.expert_ranks, sizes.experts, sizes.experts);
  return {};
}

/// Every rank has as many heads of keys and values.
Result<void> check_heads(const demo::FrontOptions& front) {
  if (front.ranks == 1) return {};
  HEADRACE_CLI_TRY(sizes, demo::read_model_sizes(front.model));
  if (sizes.kv_heads % front.ranks == 0) return {};
  std::string possible;
  for (std::int64_t ranks = 1; ranks <= sizes.kv_heads; ++ranks)
    if (sizes.kv_heads % ranks == 0) possible += fmt::format("{}{}", possible.empty() ? "" : ", ", ranks);
  return fail(
      Code::invalid_argument,
      "--tensor-parallel {}: the model has {} heads of keys and values, and each rank takes as many of "
      "them: possible are {}",
      front.ranks, sizes.kv_heads, possible);
}

/// Finds the model's files, and compiles those that are missing.
Result<void> find_model(DemoArguments& wanted, const Invocation& invocation) {
  demo::ModelFiles& model = wanted.demo.front.model;
  if (wanted.is_trained() && model.weights.empty()) {
    HEADRACE_CLI_TRY(weights, installed_weights(wanted.moe ? experts_file : dense_file));
    model.weights = weights;
  }
  HEADRACE_CLI_CHECK(check_experts(wanted));
  HEADRACE_CLI_CHECK(check_heads(wanted.demo.front));
  if (wanted.is_trained() && !wanted.prompt_file.empty()) {  // before the export, which takes long
    HEADRACE_CLI_TRY(sizes, demo::read_model_sizes(model));
    HEADRACE_CLI_TRY(prompt, read_prompt(wanted.prompt_file, static_cast<std::size_t>(sizes.context)));
    wanted.demo.prompt = prompt;
  }
  HEADRACE_CLI_TRY(packages, export_packages(wanted, invocation));
  model.packages = packages;
  return {};
}

/// The prompt for random weights: the file's bytes, or the default prompt repeated to `random_prompt` bytes.
Result<void> find_random_prompt(DemoArguments& wanted) {
  HEADRACE_CLI_TRY(sizes, demo::read_model_sizes(wanted.demo.front.model));
  const auto context = static_cast<std::size_t>(sizes.context);
  std::string& prompt = wanted.demo.prompt;
  if (!wanted.prompt_file.empty()) {
    HEADRACE_CLI_TRY(read, read_prompt(wanted.prompt_file, context));
    prompt = read;
  } else if (prompt == default_prompt) {
    const std::size_t room = context > wanted.demo.count ? context - wanted.demo.count : 1;
    while (prompt.size() < random_prompt) prompt += default_prompt;
    prompt.resize(std::min(random_prompt, room));
  }
  return {};
}

Result<void> run_demo(DemoArguments wanted, const Invocation& invocation) {
  demo::DemoOptions& demo = wanted.demo;
  demo.port = wanted.port;
  if (wanted.moe) demo.shape = with_experts;
  if (demo.front.chunk_tokens % static_cast<std::size_t>(demo.front.page_tokens) != 0)
    return fail(Code::invalid_argument,
                "a page of {} tokens does not divide the chunk of {}: choose 1, 16, 64 or another divisor",
                demo.front.page_tokens, demo.front.chunk_tokens);
  HEADRACE_CLI_TRY(placement, demo::place(wanted.device, count_gpus()));
  demo.front.placement = placement;
  HEADRACE_CLI_CHECK(check_shape(wanted));
  HEADRACE_CLI_CHECK(check_ranks(wanted));
  HEADRACE_CLI_CHECK(check_moe(wanted));
  demo.front.options = invocation.options;
  // All processes of the demo are on this host.
  HEADRACE_CLI_CHECK(keep_tcp_door_at("127.0.0.1:0", demo.front.backends, demo.front.options));
  HEADRACE_CLI_CHECK(find_model(wanted, invocation));
  if (wanted.moe) demo.front.expert_ranks = wanted.expert_ranks;
  if (const int ranks = wanted.moe ? wanted.expert_ranks : demo.front.ranks; wanted.moe || ranks > 1)
    demo.front.decode_workers = static_cast<std::size_t>(ranks);
  if (!wanted.is_trained()) {
    HEADRACE_CLI_CHECK(find_random_prompt(wanted));
    demo.front.texts_at_once = random_texts_at_once;
  }
  return demo.port ? demo::serve_http(demo) : demo::run_once(demo);
}

void add_worker(const Command& app, Invocation& invocation) {
  auto options = std::make_shared<demo::WorkerOptions>();
  auto kind = std::make_shared<std::string>();
  const Command command = app.add_subcommand("demo-worker", "A process of `headrace demo`, which starts it.");
  command.hide();
  command.add_option("kind", *kind).required().check(one_of({"prefill", "decode"}), "{prefill,decode}");
  command.add_option("--name", options->name).required();
  command.add_option("--store", options->store).required();
  command.add_option("--weights", options->weights);
  command.add_option("--device", options->device).required();
  command.add_option("--packages", options->packages).required();
  command.add_option("--folder", options->folder).required();
  command.add_option("--page", options->page_tokens).required();
  command.add_option("--pages", options->pages).required();
  command.add_option("--chunk", options->chunk_tokens).required();
  command.add_option("--backend", options->backends).one_value_a_time();
  command.add_option("--ranks", options->rank.of);
  command.add_option("--rank", options->rank.number);
  command.add_option("--expert-ranks", options->expert_ranks);
  command.add_flag("--retry", options->retry);
  command.add_flag("--go-on", options->go_on);
  command.callback([options, kind, &invocation] {
    invocation.action = [options, kind, &invocation]() -> Result<void> {
      options->options = invocation.options;
      auto ended =
          *kind == "prefill" ? demo::run_prefill_worker(*options) : demo::run_decode_worker(*options);
      if (!ended) return std::move(ended).error().within(options->name);
      return {};
    };
  });
}

}  // namespace

void add_demo(const Command& app, Invocation& invocation) {
  add_worker(app, invocation);
  auto wanted = std::make_shared<DemoArguments>();
  demo::DemoOptions& demo = wanted->demo;
  demo.prompt = default_prompt;
  const Command command =
      app.add_subcommand("demo", "Generate text with a prefill worker and a decode worker");
  command.footer(
      "The prefill worker runs the prompt. The keys and values of its tokens move layer by layer to the "
      "decode worker,\n"
      "which writes the text. The processes find one another by exchanged metadata alone. The model is "
      "small: it was\n"
      "trained on one book.\n"
      "--shape 8b has the shapes of a model of eight billion parameters, with random weights that each "
      "worker makes\n"
      "itself: it writes no text and shows how much moves and how fast.\n"
      "--json prints one object: shape, prompt, text, token_ids, prompt_tokens, tokens, first_token_seconds, "
      "prefill_seconds,\n"
      "seconds, tokens_per_second, bytes, pages, page_tokens, share_before_prefill_ended, GB/s, path, "
      "prefill_device,\n"
      "decode_device, worker, decode_workers, tensor_parallel, expert_parallel, checked.\n"
      "Examples:\n"
      "  headrace demo                                          print a text, and what moved for it\n"
      "  headrace demo --prompt \"In the beginning\" --check      compare every token with those of one "
      "process\n"
      "  headrace demo --backend tcp --workers 3 --page 64      another path, three decode workers, larger "
      "pages\n"
      "  headrace demo --tensor-parallel 2 --check              two ranks that share the heads and add in "
      "every layer\n"
      "  headrace demo --moe --ranks 2 --check                  two ranks that share the experts of a model "
      "that has some\n"
      "  headrace demo --serve 8000                             serve OpenAI's completions protocol over "
      "HTTP\n"
      "  headrace demo --device cuda --shape 8b                 prefill and decode on two GPUs, at real "
      "size"

  );
  const Argument prompt =
      command.add_option("--prompt", demo.prompt, "Text to continue; a token is a byte").type_name("TEXT");
  const Argument prompt_file = command
                                   .add_option("--prompt-file", wanted->prompt_file,
                                               "File with the text to continue; - is the standard input")
                                   .type_name("FILE")
                                   .excludes(prompt);
  const Argument tokens = command.add_option("--tokens", demo.count, "Tokens (bytes) to generate")
                              .type_name("COUNT")
                              .check(whole_number(1, 1'000'000'000))
                              .show_default();
  command.add_option("--temperature", demo.sampling.temperature, "Randomness; 0 takes the likeliest token")
      .type_name("NUMBER")
      .check(real_number(0, 100))
      .show_default();
  command.add_option("--top-p", demo.sampling.top_p, "Choose among the likeliest tokens that hold this share")
      .type_name("SHARE")
      .check(real_number(0, 1))
      .show_default();
  command
      .add_option("--seed", demo.sampling.seed,
                  "Seed of the random choice; the same seed gives the same text")
      .type_name("NUMBER")
      .check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      .show_default();
  command
      .add_option("-d,--device", wanted->device,
                  "cpu, cuda:N for all workers, or cuda: prefill on the first GPU, decode on the others")
      .type_name("DEVICE")
      .show_default();
  const Argument shape =
      command.add_option("--shape", demo.shape, "Model: book is trained; 8b and small have random weights")
          .type_name("SHAPE")
          .check(one_of({"book", "8b", "small"}), "{book,8b,small}")
          .show_default();
  command
      .add_option("--backend", demo.front.backends,
                  "Only this backend; `headrace plugins` lists them; repeatable")
      .type_name("NAME")
      .one_value_a_time();
  command.add_option("--page", demo.front.page_tokens, "Tokens of a page: 1, 2, 4, 8, 16, 32, 64, 128 or 256")
      .type_name("TOKENS")
      .check(whole_number(1, 256))
      .show_default();
  command
      .add_option("--workers", demo.front.decode_workers,
                  "Decode workers; with --serve the server continues while one of them is left")
      .type_name("COUNT")
      .check(whole_number(1, 64))
      .show_default();
  const Argument heads =
      command
          .add_option("--tensor-parallel", demo.front.ranks,
                      "Ranks that write each text together, each with its share of every layer: 1 or 2")
          .type_name("RANKS")
          .check(whole_number(1, 64))
          .show_default();
  const Argument moe =
      command
          .add_flag("--moe", wanted->moe, "The trained model with 8 experts in each layer, which ranks share")
          .excludes(shape)
          .excludes(heads);
  command
      .add_option("--ranks", wanted->expert_ranks,
                  "With --moe: decode workers, each with its share of the experts: 1 to 8")
      .type_name("COUNT")
      .check(whole_number(1, 64))
      .needs(moe)
      .show_default();
  const Argument check = command.add_flag(
      "--check", demo.check, "Generate the text a second time in one process, and fail if a token differs");
  command.add_flag(
      "--retry", demo.front.retry,
      "Restart processes that die, except the prefill worker; a decode worker gets its pages again");
  command
      .add_option("--patience", demo.front.patience_seconds,
                  "A worker that sends nothing for this time counts as lost")
      .type_name("SECONDS")
      .check(whole_number(1, 3600))
      .show_default();
  const Argument json =
      command.add_flag("--json", demo.json, "Print one JSON object instead of text and table");
  const Argument serve =
      command.add_option("--serve", wanted->port, "Serve HTTP at this port; 0 picks a free one")
          .type_name("PORT")
          .check(whole_number(0, 65535));
  for (const Argument of_one_text : {prompt, prompt_file, tokens, check, json})
    serve.excludes(of_one_text);  // each HTTP request has its own
  command.add_option("--host", demo.host, "Address to serve HTTP at").type_name("ADDRESS").show_default();
  command
      .add_option("--packages", demo.front.model.packages,
                  "Folder of the compiled model; missing packages are exported into it")
      .type_name("DIR");
  command
      .add_option("--model-weights", demo.front.model.weights,
                  "The model's weights (default: those installed with the package)")
      .type_name("FILE");
  command
      .add_option("--python", wanted->python,
                  "Python with torch and headrace, to export the model (default: option `python`)")
      .type_name("PROGRAM");
  command.callback([wanted, &invocation] {
    invocation.action = [wanted, &invocation] { return run_demo(std::move(*wanted), invocation); };
  });
}

}  // namespace headrace::cli
