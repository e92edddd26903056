// SPDX-License-Identifier: Apache-2.0
// `headrace serve`: offers a file's tensors under their names until SIGINT or SIGTERM.
#include "cli/command.hpp"
#include "cli/common/checksum.hpp"
#include "cli/common/descriptor_limit.hpp"
#include "cli/common/progress_bar.hpp"
#include "cli/common/tcp_door.hpp"
#include "cli/common/tensor_note.hpp"
#include "cli/common/text.hpp"
#include "formats/tensor_file.hpp"

#include <headrace/agent.hpp>

#include <nlohmann/json.hpp>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

namespace headrace::cli {
namespace {

constexpr std::size_t longest_region_name = 255;
constexpr std::size_t longest_agent_name = 255;
// With --load smaller tensors stay in the mapped file: each allocation takes a file descriptor.
constexpr std::uint64_t least_allocated = 64 * 1024;

// The agent's own, those that it leaves to its process (reserved_descriptors), and some for each puller.
constexpr std::uint64_t enough_descriptors = 128;
constexpr std::uint64_t large_file = 1 << 30;  // whose checksums take seconds

constexpr const char* default_listen = "127.0.0.1:0";

struct ServeArguments {
  std::string file;
  std::string listen = default_listen;
  std::string name;
  std::string store;
  std::vector<std::string> backends;
  bool load = false;
  bool map = false;
  bool json = false;
};

std::string default_name(const std::string& file) {
  const std::string ending = fmt::format("-{}", ::getpid());
  return std::filesystem::path(file).filename().string().substr(0, longest_agent_name - ending.size()) +
         ending;
}

MemoryRange range_of(std::span<const std::byte> bytes) {
  // A region cannot be empty: an empty tensor is a region of one byte.
  static std::byte nothing{};
  MemoryRange range;
  range.address = bytes.empty() ? &nothing : const_cast<std::byte*>(bytes.data());
  range.length_bytes = bytes.empty() ? 1 : bytes.size();
  range.writable = false;
  return range;
}

/// Registers one tensor in the mapped file, or copies it into memory that peers map.
Result<void> offer(Agent& agent, const formats::TensorFile::Tensor& tensor, std::uint64_t index, bool load) {
  if (tensor.info.name.empty())
    return fail(Code::invalid_argument, "its name is empty, so no peer could ask for it");
  const bool long_name = tensor.info.name.size() > longest_region_name;
  RegisterOptions options;
  options.name = long_name ? fmt::format("tensor {}", index) : tensor.info.name;
  options.note = write_note({tensor.info, checksum(tensor.bytes), index, {}}, long_name);
  if (load && tensor.info.bytes >= least_allocated) {
    AllocateOptions allocation;
    allocation.writable = false;
    allocation.registration = std::move(options);
    HEADRACE_CLI_TRY(region, agent.allocate(tensor.info.bytes, allocation));
    std::memcpy(region.bytes().data(), tensor.bytes.data(), tensor.bytes.size());
    return {};
  }
  HEADRACE_CLI_TRY(region, agent.register_memory(range_of(tensor.bytes), options));
  return {};
}

Result<void> offer_header(Agent& agent, std::span<const std::byte> header) {
  if (header.empty()) return {};
  RegisterOptions options;
  options.name = header_region_name;
  options.note = write_header_note(header);
  HEADRACE_CLI_TRY(region, agent.register_memory(range_of(header), options));
  return {};
}

/// The addresses at which pullers get the bytes over tcp.
std::vector<std::string> data_ports(const Agent& agent) {
  for (const BackendInfo& backend : agent.backends())
    if (backend.name == "tcp") return backend.ports;
  return {};
}

bool is_beyond_this_host(const ServeArguments& wanted) {
  return !wanted.store.empty() ||
         !(wanted.listen.starts_with("127.") || wanted.listen.starts_with("[::1]:") ||
           wanted.listen.starts_with("localhost:"));
}

void announce(const ServeArguments& wanted, const Agent& agent, const formats::TensorFile& file) {
  const std::string address = agent.listen_address();
  if (wanted.json) {
    const nlohmann::ordered_json line{{"address", address},
                                      {"name", agent.name()},
                                      {"file", wanted.file},
                                      {"tensors", file.tensors().size()},
                                      {"bytes", file.bytes()},
                                      {"memory", wanted.load ? "allocated" : "mapped"},
                                      {"data_ports", data_ports(agent)}};
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    const std::vector<std::string> ports =
        is_beyond_this_host(wanted) ? data_ports(agent) : std::vector<std::string>();
    fmt::print("serving {} tensor{}, {} at {}{}{}; stop with Ctrl-C\n", file.tensors().size(),
               file.tensors().size() == 1 ? "" : "s", amount_text(file.bytes()), address,
               ports.empty() ? "" : ", data port ", fmt::join(ports, " and "));
  }
  std::fflush(stdout);
}

/// Says once that another agent has taken this one's entry in the store: pullers find that one from now on.
Result<void> watch_entry(Agent& agent, const std::string& store) {
  const auto said = std::make_shared<bool>(false);
  return agent.watch_namespace(
      [said, store, name = agent.name(), mine = agent.incarnation()](const PeerEvent& event) {
        if (*said || event.peer != name || event.kind == PeerEvent::Kind::left) return;
        const auto listed = list_namespace(store, std::chrono::seconds(10));
        if (!listed) return;
        const auto entry = std::ranges::find(*listed, name, &PeerInfo::name);
        if (entry == listed->end() || entry->incarnation == 0 || entry->incarnation == mine) return;
        *said = true;
        complain(
            fmt::format("another agent has published itself as {} in {}: pullers find that one now; give "
                        "one of the two another --name",
                        name, store));
      });
}

Result<void> serve(const ServeArguments& wanted, const Invocation& invocation) {
  // Blocked before other threads start, so that only the sigwait below receives these signals.
  sigset_t ending;
  ::sigemptyset(&ending);
  ::sigaddset(&ending, SIGINT);
  ::sigaddset(&ending, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  raise_descriptor_limit();
  if (const std::uint64_t limit = descriptor_limit(); limit < enough_descriptors)
    complain(fmt::format(
        "this process may open {} files, and {} are needed for some pullers at once: raise the limit "
        "(ulimit -n {}), or pullers are refused",
        limit, enough_descriptors, enough_descriptors));

  HEADRACE_CLI_TRY(file, formats::TensorFile::open(wanted.file));
  if (file.tensors().empty())
    return fail(Code::invalid_argument, "{} holds no tensors: there is nothing to serve", wanted.file);
  AgentOptions options;
  options.backends = wanted.backends;
  options.listen = wanted.listen;
  options.store = wanted.store;
  options.options = invocation.options;
  // With a store and no --listen the data port is on every interface: pullers may be on any host. Without
  // both the agent keeps it on loopback.
  if (wanted.listen != default_listen)
    HEADRACE_CLI_CHECK(keep_tcp_door_at(wanted.listen, options.backends, options.options));
  HEADRACE_CLI_TRY(
      agent, Agent::open(wanted.name.empty() ? default_name(wanted.file) : wanted.name, std::move(options)));

  if (file.bytes() >= large_file && ::isatty(STDERR_FILENO) == 0)  // a terminal gets the bar
    complain(fmt::format("reading {}, {}, before it is served", wanted.file, amount_text(file.bytes())));
  ProgressBar bar("reading", file.bytes());
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const formats::TensorFile::Tensor& tensor = file.tensors()[i];
    if (auto offered = offer(agent, tensor, i, wanted.load); !offered)
      return std::move(offered).error().within(fmt::format("tensor \"{}\"", tensor.info.name));
    bar.show(done += tensor.info.bytes);
    if (timespec none{}; ::sigtimedwait(&ending, nullptr, &none) > 0) return {};
  }
  bar.clear();
  agent.on_notification([](const Notification&) {});  // drop them: nothing here takes them from the queue
  HEADRACE_CLI_CHECK(offer_header(agent, file.header()));
  if (!wanted.store.empty()) {
    HEADRACE_CLI_CHECK(agent.publish());
    HEADRACE_CLI_CHECK(watch_entry(agent, wanted.store));
  }
  announce(wanted, agent, file);

  int signal = 0;
  ::sigwait(&ending, &signal);
  { const Agent gone = std::move(agent); }  // close the agent before the file, which holds its regions
  return {};
}

}  // namespace

void add_serve(const Command& app, Invocation& invocation) {
  auto wanted = std::make_shared<ServeArguments>();
  const Command serve_command =
      app.add_subcommand("serve", "Offer a file's tensors to other processes, until Ctrl-C");
  serve_command.add_option("FILE", wanted->file, "A .safetensors or .npz file").type_name("").required();
  serve_command
      .add_option("--listen", wanted->listen,
                  "Address for pullers; port 0 picks a free one; 0.0.0.0 or [::]: all interfaces")
      .type_name("HOST:PORT")
      .show_default();
  serve_command
      .add_option("--name", wanted->name, "Name of this agent for pullers; default: file name and process id")
      .type_name("NAME");
  const Argument load = serve_command.add_flag(
      "--load", wanted->load, "Copy the tensors into memory that pullers on this host map: the fastest");
  serve_command.add_flag("--map", wanted->map, "Serve the tensors from the mapped file: the default")
      .excludes(load);
  serve_command
      .add_option("--store", wanted->store,
                  "Publish in a store too, as in etcd://host:port; of two servers under one\n"
                  "--name the later one is found")
      .type_name("URL");
  serve_command.add_option("--backend", wanted->backends, "Only this backend; repeatable")
      .type_name("NAME")
      .one_value_a_time();
  serve_command.add_flag("--json", wanted->json, "Print the line as JSON");
  serve_command.footer(
      "Prints one line with the address to pull from when all tensors are registered, and with the data "
      "port\n"
      "if other hosts reach it. Do not write to the file while it is served.\n"
      "Examples:\n"
      "  headrace serve model.safetensors\n"
      "  headrace serve model.safetensors --load                     from shared memory: the fastest on one "
      "host\n"
      "  headrace serve arrays.npz --listen 0.0.0.0:7000             for other hosts\n"
      "  headrace serve model.safetensors --store etcd://10.0.0.1:2379 --name llama"

  );
  serve_command.callback([wanted, &invocation] {
    invocation.action = [wanted, &invocation] { return serve(*wanted, invocation); };
  });
}

}  // namespace headrace::cli
