// SPDX-License-Identifier: Apache-2.0
// `headrace bench fabric`: a server and a client measure every operation over two network cards, with the
// data checked, and say what is wrong when they do not find or understand each other.
#include "command/command.hpp"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <sstream>
#include <thread>

namespace headrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

constexpr const char* two_cards = "127.0.0.1,127.0.0.2";

Words bench_fabric(const Words& more) {
  Words words{"bench", "fabric"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct Server {
  Server() : command(bench_fabric({"-", "2", "--nics", two_cards, "--json"})) {
    const Json told = Json::parse(command.first_line(), nullptr, false);
    if (told.is_object()) address = told.at("address");
    EXPECT_NE(address, "") << command.out << command.err;
  }
  Command command;
  std::string address;
};

Words client_of(const std::string& address, const Words& more) {
  Words words = bench_fabric({"-", "0", address, "--nics", two_cards, "--iterations", "2"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(CliBenchFabric, EveryOperationIsMeasuredAndItsDataIsRight) {
  Server server;
  const Outcome outcome = run_command(
      client_of(server.address, {"--ops", "write,read,write-pages,read-pages,scatter,immediate,round-trip",
                                 "--size", "64,10M", "--page", "1K", "--count", "3,20", "--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::map<std::string, std::set<std::string>> metrics;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    EXPECT_EQ(row.at("table"), "fabric");
    EXPECT_EQ(row.at("checked"), true) << row;
    EXPECT_GE(row.at("value").get<double>(), 0) << row;
    metrics[row.at("case")].insert(row.at("metric"));
  }
  for (const char* name : {"write/64", "write/10485760", "read/64", "write-pages/1024x3",
                           "read-pages/1024x20", "scatter/1024x3", "immediate/x1000", "round-trip/asleep"})
    EXPECT_TRUE(metrics.contains(name)) << name << " is not in " << outcome.out;
  for (const char* metric :
       {"mean_us", "deviation_us", "p50_us", "p99_us", "Gbit/s", "op/s", "counter_mean_us", "counter_Gbit/s"})
    EXPECT_TRUE(metrics["write/64"].contains(metric)) << metric;
  EXPECT_FALSE(metrics["read/64"].contains("counter_mean_us"));  // the server's CPU takes no part
  EXPECT_FALSE(metrics["immediate/x1000"].contains("Gbit/s"));
  // Both carry parts of what is large.
  EXPECT_TRUE(metrics.contains("write/10485760/127.0.0.1")) << outcome.out;
  EXPECT_TRUE(metrics.contains("write/10485760/127.0.0.2"));
  server.command.signal(SIGINT);
  EXPECT_EQ(server.command.wait(), 0) << server.command.err;
}

TEST(CliBenchFabric, TheTableFitsTheTerminalAndAServerServesOneClientAfterTheOther) {
  Server server;
  for (int client = 0; client < 2; ++client) {
    const Outcome outcome = run_command(
        client_of(server.address, {"--ops", "write-pages", "--page", "8", "--count", "9", "--idle", "0.1"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_LE(widest_line(outcome.out), 120U) << outcome.out;
    for (const char* text :
         {"here: host memory: 127.0.0.1 (tcp", "there: host memory: 127.0.0.1 (tcp", "barrier: every byte",
          "deviation", "at counter", "write-pages 8 B x 9", "% of a core here"})
      EXPECT_THAT(outcome.out, HasSubstr(text));
  }
}

TEST(CliBenchFabric, AServerThatGoesEndsItsClient) {
  Server server;
  Command client(client_of(server.address, {"--ops", "round-trip", "--idle", "600"}));
  EXPECT_THAT(client.first_line(), HasSubstr("here: host memory"));
  server.command.signal(SIGKILL);
  EXPECT_EQ(client.wait(), 1);
  EXPECT_THAT(client.err, testing::ContainsRegex("has gone|lost"));
}

/// A port at which somebody answers with these bytes, once.
struct Stranger {
  explicit Stranger(std::string answer) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&at), length), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
    EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length), 0);
    address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    thread = std::jthread([this, answer = std::move(answer)] {
      const int client = ::accept(listener, nullptr, nullptr);
      EXPECT_EQ(::send(client, answer.data(), answer.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(answer.size()));
      std::array<char, 4096> rest{};
      while (::recv(client, rest.data(), rest.size(), 0) > 0) {
      }
      ::close(client);
    });
  }
  ~Stranger() {
    thread.join();
    ::close(listener);
  }
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string address;
  std::jthread thread;
};

std::string frame(const Json& json) {
  const auto bytes = Json::to_msgpack(json);
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::string text(reinterpret_cast<const char*>(&length), sizeof length);
  return text.append(bytes.begin(), bytes.end());
}

TEST(CliBenchFabric, AnotherProgramAndAnotherVersionAreNamed) {
  for (const auto& [answer, text] : std::vector<std::pair<std::string, const char*>>{
           {"HTTP/1.1 400 Bad Request\r\n", "is not `headrace bench fabric`"},
           {frame({{"program", "headrace bench fabric"}, {"version", "0.0.1"}}), "is of version 0.0.1"}}) {
    const Stranger stranger(answer);
    const Outcome outcome = run_command(client_of(stranger.address, {}));
    EXPECT_EQ(outcome.code, 1) << outcome.out;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(stranger.address), HasSubstr(text)));
  }
}

TEST(CliBenchFabric, WhatCannotBeMeasuredIsRefusedWithASentence) {
  for (const auto& [arguments, text] : std::vector<std::pair<Words, const char*>>{
           {{"-", "0", "127.0.0.1:1"}, "without an address there first"},
           {{"-", "0", "127.0.0.1"}, "write HOST:PORT"},
           {{"-", "0", "127.0.0.1:1", "--ops", "writes"}, "there is no \"writes\"; there are write, read"},
           {{"-", "0", "127.0.0.1:1", "--page", "100"}, "multiple of 8 bytes"},
           {{"-", "0", "127.0.0.1:1", "--count", "0"}, "from 1 to"},
           {{"-", "0", "127.0.0.1:1", "--listen", "127.0.0.1:0"}, "--listen is for the server"},
           {{"--page", "4K"}, "without the address of a server this is the server"},
           {{"gpu"}, "GPUs are numbers"},
           {{"--nics", "127.0.0.1", "--nics", "127.0.0.2"}, "given 2 times for 1 group"},
           {{"--nics", "none0"}, "none0"},
           {{"--option", "tcp.sockets=2"}, "no option \"tcp.sockets\""}}) {
    const Outcome outcome = run_command(bench_fabric(arguments));
    EXPECT_EQ(outcome.code, 1) << testing::PrintToString(arguments) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(text)) << testing::PrintToString(arguments);
  }
}

}  // namespace
}  // namespace headrace::test
