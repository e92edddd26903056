// SPDX-License-Identifier: Apache-2.0
// What torchcomms' StagedRdmaTransportTest shows, over host memory: sizes about the staging buffer, lists of
// buffers on either side, transfers one after the other; cancels, lost peers and bad input.
#include "unit/compat/two_transports.hpp"

#include <headrace/compat/staged_rdma_transport.hpp>

#include <memory>
#include <stdexcept>
#include <utility>

namespace headrace::test_compat {
namespace {

constexpr std::size_t staging = 4096;

StagedTransferConfig config_of(std::size_t staging_bytes, std::chrono::milliseconds timeout = long_enough) {
  StagedTransferConfig config;
  config.stagingBufSize = staging_bytes;
  config.chunkTimeout = timeout;
  return config;
}

struct TwoSides {
  explicit TwoSides(const StagedTransferConfig& of_server = config_of(staging),
                    const StagedTransferConfig& of_client = config_of(staging))
      : server(std::make_unique<StagedRdmaServerTransport>(0, nullptr, of_server)),
        client(std::make_unique<StagedRdmaClientTransport>(0, nullptr, of_client)) {
    const auto from_server = server->setupLocalTransport();
    const auto from_client = client->setupLocalTransport();
    server->connectRemoteTransport(from_client);
    client->connectRemoteTransport(from_server);
  }
  std::unique_ptr<StagedRdmaServerTransport> server;
  std::unique_ptr<StagedRdmaClientTransport> client;
};

/// The bytes in buffers of these sizes; what is left goes into the last one.
ScatterGatherDescriptor list_of(std::vector<std::uint8_t>& bytes, const std::vector<std::size_t>& sizes) {
  ScatterGatherDescriptor list;
  std::size_t begin = 0;
  for (const auto size : sizes) {
    list.entries.push_back({bytes.data() + begin, size});
    begin += size;
  }
  list.entries.push_back({bytes.data() + begin, bytes.size() - begin});
  return list;
}

void expect_transfer(TwoSides& two, std::size_t bytes, const std::vector<std::size_t>& from_sizes = {},
                     const std::vector<std::size_t>& to_sizes = {}) {
  auto from = fresh(bytes);
  std::vector<std::uint8_t> to(bytes);
  const auto sent = two.server->send(list_of(from, from_sizes));
  const auto received = two.client->recv(list_of(to, to_sizes));
  EXPECT_EQ(end_of(sent), commSuccess) << two.server->lastError();
  EXPECT_EQ(end_of(received), commSuccess) << two.client->lastError();
  EXPECT_EQ(to, from);
}

TEST(CompatStagedTransport, transfers_of_all_sizes_arrive_one_after_the_other) {
  TwoSides two;
  EXPECT_EQ(two.server->stagingBufSize(), staging);
  for (const std::size_t bytes : {std::size_t{1}, staging - 1, staging, staging + 1, 3 * staging,
                                  10 * staging + 77, std::size_t{0}, std::size_t{5}})
    expect_transfer(two, bytes);
}

TEST(CompatStagedTransport, buffers_of_both_sides_may_be_scattered) {
  TwoSides two;
  expect_transfer(two, 3 * staging, {}, {staging, staging});
  expect_transfer(two, 3 * staging, {staging, staging}, {});
  expect_transfer(two, 4 * staging + 9, {1, 0, staging - 1, 2 * staging}, {100, staging + 3, 7, 0});
}

TEST(CompatStagedTransport, the_smaller_staging_buffer_counts) {
  TwoSides small_client(config_of(4096), config_of(100));
  expect_transfer(small_client, 1000);
  TwoSides small_server(config_of(100), config_of(4096));
  expect_transfer(small_server, 1000);
}

TEST(CompatStagedTransport, queued_transfers_run_in_order) {
  TwoSides two;
  std::vector<std::vector<std::uint8_t>> from, to;
  for (std::size_t i = 0; i < 5; ++i)
    from.push_back(fresh(1000 + i * staging)), to.emplace_back(1000 + i * staging);
  std::vector<CommFuture> ends;
  for (auto& bytes : from) ends.push_back(two.server->send(list_of(bytes, {})));
  for (auto& bytes : to) ends.push_back(two.client->recv(list_of(bytes, {})));
  for (const auto& end : ends) EXPECT_EQ(end_of(end), commSuccess);
  EXPECT_EQ(to, from);
}

TEST(CompatStagedTransport, a_canceled_recv_ends_and_the_next_one_runs) {
  TwoSides two;
  std::vector<std::uint8_t> to(10);
  const auto canceled = two.client->recv(list_of(to, {}));
  const auto queued = two.client->recv(list_of(to, {}));
  two.client->cancelPendingRecv();
  EXPECT_EQ(end_of(canceled), commUserAbort);
  EXPECT_EQ(end_of(queued), commUserAbort);
  expect_transfer(two, 2 * staging);
}

TEST(CompatStagedTransport, a_side_that_waits_too_long_times_out) {
  TwoSides two(config_of(staging, 20ms), config_of(staging, 20ms));
  std::vector<std::uint8_t> bytes(2 * staging);
  EXPECT_EQ(end_of(two.client->recv(list_of(bytes, {}))), commTimeout);
  EXPECT_NE(two.client->lastError().find("chunkTimeout"), std::string::npos);
  EXPECT_EQ(end_of(two.server->send(list_of(bytes, {}))), commTimeout);  // the second chunk finds no room
}

TEST(CompatStagedTransport, sides_that_differ_say_how) {
  TwoSides two;
  std::vector<std::uint8_t> from(100), to(50);
  const auto sent = two.server->send(list_of(from, {}));
  EXPECT_EQ(end_of(two.client->recv(list_of(to, {}))), commInvalidArgument);
  EXPECT_EQ(two.client->lastError(), "byte 0 of 50 was expected, and the server sends byte 0 of 100");
  EXPECT_EQ(end_of(sent), commSuccess);
  EXPECT_EQ(end_of(two.client->recv(list_of(to, {}))), commInternalError);
}

TEST(CompatStagedTransport, the_end_of_a_side_ends_its_transfers) {
  TwoSides two;
  std::vector<std::uint8_t> bytes(3 * staging);
  const auto received = two.client->recv(list_of(bytes, {}));
  const auto queued = two.client->recv(list_of(bytes, {}));
  two.client.reset();
  EXPECT_EQ(end_of(received), commUserAbort);
  EXPECT_EQ(end_of(queued), commUserAbort);
}

/// A server that is connected, and waits to be killed.
void run_server(int in, int out) {
  StagedRdmaServerTransport server(0, nullptr, config_of(staging));
  say(out, server.setupLocalTransport());
  server.connectRemoteTransport(hear(in));
  say(out, "connected");
  for (;;) ::pause();
}

TEST(CompatStagedTransport, a_server_that_is_killed_ends_the_recv) {
  PeerProcess peer(run_server);
  StagedRdmaClientTransport client(0, nullptr, config_of(staging));
  const auto info = client.setupLocalTransport();
  client.connectRemoteTransport(hear(peer.from));
  say(peer.to, info);
  EXPECT_EQ(hear(peer.from), "connected");
  std::vector<std::uint8_t> bytes(staging);
  const auto received = client.recv(list_of(bytes, {}));
  peer.kill();
  EXPECT_EQ(end_of(received), commInternalError);
  EXPECT_NE(client.lastError().find("the peer has ended"), std::string::npos) << client.lastError();
  EXPECT_EQ(end_of(client.recv(list_of(bytes, {}))), commInternalError);
}

TEST(CompatStagedTransport, bad_input_is_refused) {
  StagedRdmaServerTransport server(0, nullptr, config_of(staging));
  EXPECT_THROW(server.connectRemoteTransport("x"), std::runtime_error);  // not set up
  const auto info = server.setupLocalTransport();
  EXPECT_THROW((void)server.setupLocalTransport(), std::runtime_error);
  EXPECT_THROW((void)server.send({}), std::runtime_error);  // not connected
  StagedRdmaClientTransport client(0, nullptr, config_of(staging));
  (void)client.setupLocalTransport();
  for (std::size_t length = 0; length < info.size(); ++length)
    EXPECT_THROW(client.connectRemoteTransport(info.substr(0, length)), std::invalid_argument) << length;
  EXPECT_THROW(server.connectRemoteTransport(info), std::invalid_argument);  // two servers
  client.connectRemoteTransport(info);
  EXPECT_THROW(client.connectRemoteTransport(info), std::runtime_error);

  StagedTransferConfig on_gpu;
  on_gpu.stagingMode = StagedTransferConfig::StagingMode::GPU;
  EXPECT_THROW((void)StagedRdmaServerTransport(0, nullptr, on_gpu).setupLocalTransport(),
               std::invalid_argument);
  EXPECT_THROW((void)StagedRdmaServerTransport(0, nullptr, config_of(0)).setupLocalTransport(),
               std::invalid_argument);
}

}  // namespace
}  // namespace headrace::test_compat
