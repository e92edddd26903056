// SPDX-License-Identifier: Apache-2.0
// What torchcomms' RdmaTransportTest shows, over host memory; the bad input that is refused; ends.
#include "unit/compat/two_transports.hpp"

#include <algorithm>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

namespace headrace::test_compat {
namespace {

/// The sentence of the exception of a call.
template <class Call>
std::string thrown_by(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_words(const std::string& sentence, const std::string& words) {
  EXPECT_NE(sentence.find(words), std::string::npos) << sentence;
}

TEST(CompatRdmaTransport, it_is_supported_without_an_rdma_device) {
  EXPECT_TRUE(RdmaTransport::supported());
  EXPECT_GT(RdmaTransport(0).getNumNics(), 0);
  EXPECT_EQ(RdmaTransport(0, nullptr, 77).getMaxCqe(), 77);
}

TEST(CompatRdmaTransport, a_write_that_notifies_is_waited_for) {
  TwoTransports two;
  Block from(fresh(100'000)), to(100'000);
  auto arrival = two.client.waitForWrite();
  EXPECT_FALSE(arrival.isReady());
  EXPECT_EQ(end_of(two.server.write(from.memory.createView(), to.remote(), true, long_enough)), commSuccess);
  EXPECT_EQ(end_of(arrival), commSuccess);
  EXPECT_EQ(to.bytes, from.bytes);
}

TEST(CompatRdmaTransport, each_write_that_notifies_ends_one_wait) {
  TwoTransports two;
  Block from(fresh(64)), to(64);
  auto first = two.client.waitForWrite();
  auto second = two.client.waitForWrite();
  for (const bool notify : {true, false, true, true})
    ASSERT_EQ(end_of(two.server.write(from.memory.createView(), to.remote(), notify)), commSuccess);
  EXPECT_EQ(end_of(first), commSuccess);
  EXPECT_EQ(end_of(second), commSuccess);
  EXPECT_EQ(end_of(two.client.waitForWrite()), commSuccess);
  EXPECT_FALSE(two.client.waitForWrite().wait(1ms));
  EXPECT_FALSE(two.server.waitForWrite().wait(1ms));  // they were for the client
}

TEST(CompatRdmaTransport, a_read_brings_its_bytes) {
  TwoTransports two;
  Block from(fresh(5000)), to(5000);
  auto view = to.memory.createMutableView(std::size_t{1000}, 3000);
  EXPECT_EQ(end_of(two.client.read(view, from.remote())), commSuccess);
  std::vector<std::uint8_t> expected(5000);
  std::copy_n(from.bytes.begin(), 3000, expected.begin() + 1000);
  EXPECT_EQ(to.bytes, expected);
}

TEST(CompatRdmaTransport, many_writes_run_at_once_from_several_threads) {
  TwoTransports two;
  constexpr std::size_t each = 512;
  constexpr std::size_t count = 256;
  Block from(fresh(each * count)), to(each * count);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      std::vector<CommFuture> futures;
      for (std::size_t i = thread; i < count; i += 4)
        futures.push_back(two.server.write(from.memory.createView(i * each, each),
                                           {to.bytes.data() + i * each, each, to.memory.remoteKey()}, true));
      for (const auto& future : futures) EXPECT_EQ(end_of(future), commSuccess);
    });
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(end_of(two.client.waitForWrite()), commSuccess);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(to.bytes, from.bytes);
}

TEST(CompatRdmaTransport, a_callback_hears_the_end) {
  TwoTransports two;
  Block from(fresh(10)), to(10);
  const auto write = two.server.write(from.memory.createView(), to.remote(), false);
  std::promise<commResult_t> heard;
  write.onReady([&](commResult_t result) { heard.set_value(result); });
  EXPECT_EQ(heard.get_future().get(), commSuccess);
  commResult_t again = commInProgress;
  write.onReady([&](commResult_t result) { again = result; });
  EXPECT_EQ(again, commSuccess);
}

// --- ends

TEST(CompatRdmaTransport, a_mock_of_a_timeout_ends_at_the_timeout_or_with_the_transport) {
  Block from(fresh(10)), to(10);
  auto transport = std::make_unique<RdmaTransport>(0);
  transport->setMockForTest({.type = RdmaTransport::MockType::Timeout});
  const auto late = transport->write(from.memory.createView(), to.remote(), false, 5ms);
  EXPECT_EQ(end_of(late), commTimeout);
  EXPECT_FALSE(transport->lastError().empty());
  const auto unlimited = transport->write(from.memory.createView(), to.remote(), false);
  EXPECT_FALSE(unlimited.wait(5ms));
  transport.reset();
  EXPECT_EQ(end_of(unlimited), commUserAbort);
}

TEST(CompatRdmaTransport, a_mock_of_a_failure_is_over_when_it_is_reset) {
  TwoTransports two;
  Block from(fresh(10)), to(10);
  two.server.setMockForTest({.type = RdmaTransport::MockType::Failure});
  EXPECT_EQ(end_of(two.server.write(from.memory.createView(), to.remote(), false)), commInternalError);
  two.server.setMockForTest({});
  EXPECT_EQ(end_of(two.server.write(from.memory.createView(), to.remote(), false)), commSuccess);
}

TEST(CompatRdmaTransport, a_broken_one_ends_every_call_at_once) {
  TwoTransports two;
  Block from(fresh(10)), to(10);
  const auto waits = two.server.waitForWrite();
  two.server.markBrokenForTest();
  EXPECT_EQ(end_of(waits), commInternalError);
  EXPECT_EQ(end_of(two.server.write(from.memory.createView(), to.remote(), false)), commInternalError);
  EXPECT_EQ(end_of(two.server.read(to.memory.createMutableView(), from.remote())), commInternalError);
  EXPECT_EQ(end_of(two.server.waitForWrite()), commInternalError);
  EXPECT_EQ(end_of(two.client.write(from.memory.createView(), to.remote(), false)), commSuccess);
}

TEST(CompatRdmaTransport, the_end_of_a_transport_ends_its_waits) {
  auto two = std::make_unique<TwoTransports>();
  const auto waits = two->client.waitForWrite();
  two.reset();
  EXPECT_EQ(end_of(waits), commUserAbort);
}

TEST(CompatRdmaTransport, memory_that_is_gone_breaks_the_transport) {
  TwoTransports two;
  Block from(fresh(10));
  auto to = std::make_unique<Block>(std::size_t{10});
  std::vector<std::uint8_t> other(10);
  const RdmaRemoteBuffer remote{to->bytes.data(), 10, to->memory.remoteKey()};
  to.reset();
  EXPECT_EQ(end_of(two.server.write(from.memory.createView(), remote, false)), commInternalError);
  expect_words(two.server.lastError(), "no such memory");
}

// --- another process

/// Connects to the transport of the test, writes, and waits to be killed.
[[noreturn]] void run_peer(int in, int out) {
  RdmaTransport transport(0);
  Block mine(std::vector<std::uint8_t>(100, 7));
  say(out, transport.bind());
  transport.connect(hear(in));
  const auto key = hear(in);
  const RdmaRemoteBuffer remote{reinterpret_cast<void*>(std::stoull(hear(in))), 100, key};
  if (transport.write(mine.memory.createView(), remote, true).get() != commSuccess) ::_exit(2);
  for (;;) ::pause();
}

TEST(CompatRdmaTransport, a_peer_that_is_killed_ends_the_waits) {
  PeerProcess peer(run_peer);

  RdmaTransport transport(0);
  Block mine(std::size_t{100});
  ASSERT_EQ(transport.connect(hear(peer.from)), commSuccess);
  say(peer.to, transport.bind());
  say(peer.to, mine.memory.remoteKey());
  say(peer.to, std::to_string(reinterpret_cast<std::uintptr_t>(mine.bytes.data())));
  EXPECT_EQ(end_of(transport.waitForWrite()), commSuccess);
  EXPECT_EQ(mine.bytes, std::vector<std::uint8_t>(100, 7));

  const auto never = transport.waitForWrite();
  peer.kill();
  EXPECT_EQ(end_of(never), commInternalError);
  expect_words(transport.lastError(), "the peer has ended");
}

// --- bad input

TEST(CompatRdmaTransport, what_is_not_connected_says_so) {
  RdmaTransport transport(0);
  Block block(std::size_t{10});
  EXPECT_FALSE(transport.connected());
  auto view = block.memory.createMutableView();
  expect_words(thrown_by([&] { (void)transport.write(view, block.remote(), false); }), "not connected");
  expect_words(thrown_by([&] { (void)transport.read(view, block.remote()); }), "not connected");
  expect_words(thrown_by([&] { (void)transport.waitForWrite(); }), "not connected");
}

TEST(CompatRdmaTransport, urls_and_keys_that_are_cut_or_changed_are_refused) {
  TwoTransports two;
  Block from(fresh(10)), to(std::size_t{10});
  const auto url = two.client.bind();
  for (std::size_t length = 0; length < url.size(); ++length)
    EXPECT_THROW(RdmaTransport(0).connect(url.substr(0, length)), std::invalid_argument) << length;
  EXPECT_THROW(two.server.connect(url), std::runtime_error);  // connected already
  const auto key = to.memory.remoteKey();
  for (std::size_t length = 0; length < key.size(); ++length)
    EXPECT_THROW(
        (void)two.server.write(from.memory.createView(), {to.bytes.data(), 10, key.substr(0, length)}, false),
        std::invalid_argument)
        << length;
  auto of_another = key;
  of_another[0] = of_another[0] == '0' ? '1' : '0';
  expect_words(thrown_by([&] {
                 (void)two.server.write(from.memory.createView(), {to.bytes.data(), 10, of_another}, false);
               }),
               "not of the peer");
}

TEST(CompatRdmaTransport, ranges_outside_of_the_peers_memory_are_refused) {
  TwoTransports two;
  Block from(fresh(10)), to(std::size_t{10});
  const auto view = from.memory.createView();
  const auto key = to.memory.remoteKey();
  expect_words(thrown_by([&] {
                 (void)two.server.write(view, {to.bytes.data(), 9, key}, false);
               }),
               "the view has 10 bytes, and the remote buffer only 9");
  for (const std::ptrdiff_t shift : {1, -1, 1000})
    EXPECT_THROW((void)two.server.write(view, {to.bytes.data() + shift, 10, key}, false),
                 std::invalid_argument);
}

}  // namespace
}  // namespace headrace::test_compat
