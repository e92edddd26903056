// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_coll.hpp"
#include "cli/bench/bench_fabric.hpp"
#include "cli/bench/bench_moe.hpp"
#include "cli/bench/bench_pages.hpp"
#include "cli/bench/peer_process.hpp"
#include "cli/command.hpp"

#include <memory>

namespace headrace::cli {
namespace {

/// Other subcommands start it.
void add_peer(const Command& bench, Invocation& invocation) {
  struct Descriptors {
    int control = -1, ping = -1, pong = -1;
  };
  auto fds = std::make_shared<Descriptors>();
  const Command peer = bench.add_subcommand("peer", "The other process of a benchmark");
  peer.hide();
  peer.add_option("--control", fds->control).required();
  peer.add_option("--ping", fds->ping).required();
  peer.add_option("--pong", fds->pong).required();
  peer.callback([fds, &invocation] {
    invocation.action = [fds] { return run_bench_peer(fds->control, fds->ping, fds->pong); };
  });
}

}  // namespace

void add_bench(const Command& app, Invocation& invocation) {
  const Command bench = app.add_subcommand("bench", "Measure how fast this machine moves data");
  bench.require_subcommand();
  bench.footer(
      "Examples:\n"
      "  headrace bench pages --page 4K,64K,1M --op both\n"
      "  headrace bench pages --single\n"
      "  headrace bench coll --ops all --ranks 2\n"
      "  headrace bench fabric\n"
      "  headrace bench moe --tokens 1,128");
  add_bench_pages(bench, invocation);
  add_bench_coll(bench, invocation);
  add_bench_fabric(bench, invocation);
  add_bench_moe(bench, invocation);
  add_peer(bench, invocation);
}

}  // namespace headrace::cli
