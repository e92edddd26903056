// SPDX-License-Identifier: Apache-2.0
// The program of README.md: two pages from one agent to another. tests/python/test_readme.py compares the two
// texts. examples/two_peers.cpp is the same with every error handled.
#include <headrace/headrace.hpp>

#include <cstdio>
using namespace headrace;

int main() {  // value() ends the program with the error's text; look at ok() and error() to go on
  std::vector<std::byte> mine(4 * 65536);
  auto prefill = Agent::open("prefill").value(), decode = Agent::open("decode").value();
  auto cache = prefill.allocate(256 * 65536).value();
  cache.bytes()[7 * 65536] = std::byte{42};
  auto region = decode.register_memory({mine.data(), mine.size()}).value();
  decode.import_metadata(prefill.export_metadata().value()).value();  // a string, sent in any way you like
  const UniformPages four{.region = region.id, .page_bytes = 65536, .count = 4};
  const UniformPages all{.region = cache.id, .page_bytes = 65536, .count = 256};
  auto local = decode.prepare(four).value(), remote = decode.prepare("prefill", all).value();
  const std::vector<std::uint32_t> to{0, 1}, from{7, 3};
  auto request = decode.make_request(Op::read, {local, remote, to, from}).value();
  request.post({.notification = "took pages 7 and 3"});
  if (!request.wait(std::chrono::seconds(10)).ok() || mine[0] != std::byte{42}) return 1;
  std::printf("%s\n%s\n", prefill.wait_notification().value().payload.c_str(), request.explain().c_str());
}
