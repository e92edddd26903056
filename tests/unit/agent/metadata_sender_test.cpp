// SPDX-License-Identifier: Apache-2.0
// Whose metadata an agent takes: what it asked for, of the agent that it asked for, and of a sender its own.
#include <headrace/agent.hpp>

#include "metadata/metadata_socket.hpp"
#include "metadata/open_store.hpp"
#include "wire/metadata.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::string metadata_of(const std::string& name) {
  wire::Metadata m;
  m.name = name;
  m.incarnation = 7;
  m.end = 1;
  return wire::encode(m).value();
}

metadata::SocketIdentity identity(const std::string& name) { return {name, 7, {}, {}}; }

class MetadataSenderTest : public ::testing::Test {
 protected:
  MetadataSenderTest() {
    AgentOptions options;
    options.listen = "127.0.0.1:0";
    options.store = "memory:exchange_test";
    options.options["tcp.listen"] = "127.0.0.1:0";
    agent = std::make_unique<Agent>(Agent::open("here", std::move(options)).value());
  }
  std::unique_ptr<Agent> agent;
};

TEST_F(MetadataSenderTest, an_agent_sends_its_own_metadata_alone) {
  const auto send = [&](const std::string& sender, const std::string& about) {
    return metadata::send_to(agent->listen_address(), identity(sender), metadata_of(about),
                             Deadline::after(10s));
  };
  EXPECT_TRUE(send("there", "there").ok());
  const auto refused = send("stranger", "other");
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message,
              HasSubstr("agent stranger of incarnation 0000000000000007 sends metadata "
                        "of agent other"));
  EXPECT_EQ(agent->peers().size(), 1U);
}

TEST_F(MetadataSenderTest, metadata_that_is_fetched_is_that_of_the_agent_that_answers) {
  Logger logger;
  metadata::MetadataHandlers handlers;
  handlers.fetch = [](const std::string&, std::uint64_t) -> Result<std::string> {
    return metadata_of("other");
  };
  const auto server =
      metadata::MetadataServer::open({"127.0.0.1:0", identity("stranger")}, std::move(handlers), logger)
          .value();
  const auto refused = agent->fetch_metadata(server->address(), 10s);
  EXPECT_EQ(refused.code(), Code::corrupt);
  EXPECT_THAT(refused.error().message,
              HasSubstr("of agent stranger was asked for, and that of agent other came"));
}

TEST_F(MetadataSenderTest, metadata_that_is_found_is_that_of_the_name_that_was_looked_for) {
  const auto store = metadata::open_store("memory:exchange_test", {}, Logger::process_default()).value();
  ASSERT_TRUE(store->publish("there", "", metadata_of("other"), 10s, Deadline::after(10s)).ok());
  EXPECT_EQ(agent->find("there", 10s).code(), Code::corrupt);
  EXPECT_TRUE(agent->peers().empty());
  ASSERT_TRUE(store->publish("there", "", metadata_of("there"), 10s, Deadline::after(10s)).ok());
  EXPECT_TRUE(agent->find("there", 10s).ok());
}

}  // namespace
}  // namespace headrace
