// SPDX-License-Identifier: Apache-2.0
// Two agents: one owns pages, the other reads some of them and notifies the owner. Here both are in one
// process. In two processes they exchange the metadata strings over any channel, or with
// Agent::fetch_metadata.
#include <headrace/headrace.hpp>

#include <cstdio>
#include <cstring>
#include <vector>

using namespace headrace;

namespace {

int fail(const Error& error) {
  std::fprintf(stderr, "%s: %s\n", std::string(code_name(error.code)).c_str(), error.message.c_str());
  return 1;
}

}  // namespace

int main() {
  constexpr std::size_t page = 4096;
  auto prefill = Agent::open("prefill");
  auto decode = Agent::open("decode");
  if (!prefill) return fail(prefill.error());
  if (!decode) return fail(decode.error());

  // Memory from `allocate` has the fastest path on one host. Any other memory is registered in place.
  auto cache = prefill->allocate(1024 * page);
  if (!cache) return fail(cache.error());
  std::memset(cache->bytes().data(), 42, cache->length_bytes);
  std::vector<std::byte> ours(64 * page);
  auto mine = decode->register_memory({ours.data(), ours.size()});
  if (!mine) return fail(mine.error());

  // Metadata is a string: all that a peer needs to know.
  auto metadata = prefill->export_metadata();
  if (!metadata) return fail(metadata.error());
  if (auto imported = decode->import_metadata(*metadata); !imported) return fail(imported.error());

  // Prepare once, then pick pages by index: page 7 of the peer into page 0 of ours, page 3 into page 1.
  auto local = decode->prepare(UniformPages{mine->id, 0, 0, page, 64});
  auto remote = decode->prepare("prefill", UniformPages{cache->id, 0, 0, page, 1024});
  if (!local) return fail(local.error());
  if (!remote) return fail(remote.error());
  const std::vector<std::uint32_t> to{0, 1}, from{7, 3};
  auto request = decode->make_request(Op::read, {*local, *remote, to, from});
  if (!request) return fail(request.error());
  request->post({"took pages 7 and 3", {}});
  if (!request->wait(std::chrono::seconds(10)).ok()) return fail(request->error());

  auto told = prefill->wait_notification(std::chrono::seconds(10));
  if (!told) return fail(told.error());
  std::printf("%s: %s\n%s\n", told->peer.c_str(), told->payload.c_str(), request->explain().c_str());
  return ours[0] == std::byte{42} && ours[2 * page - 1] == std::byte{42} && ours[2 * page] == std::byte{0}
             ? 0
             : 1;
}
