// SPDX-License-Identifier: Apache-2.0
// Writes the seeds of tests/fuzz/corpus for the targets of src/wire and src/metadata: make_corpus
// <tests/fuzz/corpus>. See tests/fuzz/README.md.
#include "wire/agent_message.hpp"
#include "wire/comm_cards.hpp"
#include "wire/handshake.hpp"
#include "wire/metadata.hpp"
#include "wire/metadata_request.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

using namespace headrace;

namespace {

std::filesystem::path corpus;

void seed(const char* target, const char* name, std::string_view bytes) {
  std::filesystem::create_directories(corpus / target);
  std::ofstream(corpus / target / name, std::ios::binary) << bytes;
}

wire::Metadata empty_metadata() {
  wire::Metadata m;
  m.name = "a";
  m.incarnation = 1;
  m.end = 1;
  return m;
}

wire::Metadata full_metadata() {
  wire::Metadata m = empty_metadata();
  m.version = 9;
  m.since = 3;
  m.partial = true;
  m.end = 0;
  m.backends = {{"shm", "0.1", "socket"}, {"tcp", "0.1", std::nullopt}};
  m.ids = {2, 3, 7};
  m.addresses = {0x1000, 0x2000, 0};
  m.lengths = {4096, 8192, 0};
  m.kinds = {0, 1, 3};
  m.masks = {1, 3, 2};
  m.named = {{2, "kv/0", "bf16"}, {7, "weights", ""}};
  m.public_data = {{3, 0, "handle"}, {3, 1, ""}};
  m.gone = {{1, 1}, {4, 3}};
  return m;
}

wire::Metadata rows_of_metadata() {
  wire::Metadata m = empty_metadata();
  m.backends = {{"tcp", "0.1", "127.0.0.1:1"}};
  for (std::uint32_t i = 0; i < 8; ++i) {
    m.ids.push_back(i + 1);
    m.addresses.push_back(0x10000 + std::uint64_t{i} * 4096);
    m.lengths.push_back(4096);
    m.kinds.push_back(0);
    m.masks.push_back(1);
  }
  m.end = 9;
  return m;
}

void metadata_seeds() {
  for (const auto& [name, metadata] :
       {std::pair("empty", empty_metadata()), std::pair("full", full_metadata()),
        std::pair("rows", rows_of_metadata())}) {
    const std::string bytes = *wire::encode(metadata);
    seed("metadata_fuzz", (std::string(name) + "-whole").c_str(), "\1" + bytes);
    const std::string body = bytes.substr(wire::MetadataLimits::envelope_bytes);
    seed("metadata_fuzz", (std::string(name) + "-body").c_str(), std::string(1, '\0') + body);
    seed("metadata_fuzz", (std::string(name) + "-body-later-minor").c_str(), "\2" + body);
  }
}

void agent_message_seeds() {
  seed("agent_message_fuzz", "revoke",
       *wire::encode(wire::AgentMessage(wire::Revoke{7, 12, {{1, 3}, {9, 1}}})));
  seed("agent_message_fuzz", "revoked", *wire::encode(wire::AgentMessage(wire::Revoked{7})));
  seed("agent_message_fuzz", "ask", *wire::encode(wire::AgentMessage(wire::Ask{8})));
  seed("agent_message_fuzz", "present", *wire::encode(wire::AgentMessage(wire::Present{8})));
  seed("agent_message_fuzz", "credit", *wire::encode(wire::AgentMessage(wire::Credit{100, 1 << 20})));
  seed("agent_message_fuzz", "goodbye", *wire::encode(wire::AgentMessage(wire::Goodbye{})));
  seed("agent_message_fuzz", "unknown", std::string_view("\x93\x2a\xa1x\xc0", 5));
  seed("agent_message_fuzz", "notification", *wire::encode(wire::UserMessage{1, 2, "layer 3"}));
}

void hello_seeds() {
  wire::Hello hello;
  hello.incarnation = 7;
  hello.purpose = wire::Purpose::metadata;
  hello.name = "peer";
  const std::string bytes = *wire::encode(hello);
  // The form against one side: after the choice, each chunk has its length before it.
  const std::string piece = std::string(1, static_cast<char>(bytes.size() - 1)) + bytes;
  const std::string welcome = wire::encode(wire::HelloVerdict{});
  const std::string refusal = wire::encode(wire::HelloVerdict{Code::exhausted, "full"});
  seed("hello_fuzz", "to-connecting-welcome",
       std::string(1, '\0') + piece + std::string(1, static_cast<char>(welcome.size() - 1)) + welcome);
  seed("hello_fuzz", "to-connecting-refusal",
       std::string(1, '\0') + piece + std::string(1, static_cast<char>(refusal.size() - 1)) + refusal);
  seed("hello_fuzz", "to-accepting", "\1" + piece);
  seed("hello_fuzz", "to-accepting-token", "\5" + piece + std::string(1, 31) + std::string(32, 'p'));
  seed("hello_fuzz", "conversation", std::string("\2\xff\0\xff\0\xff\0\xff\0", 9));
  seed("hello_fuzz", "conversation-token", std::string("\6\xff\0\xff\0\xff\0\xff\0\xff\0", 11));
  seed("hello_fuzz", "conversation-token-changed", std::string("\6\xff\1\x40\xff\0\xff\0\xff\0", 10));
  seed("hello_fuzz", "hello", "\3" + bytes);
  seed("hello_fuzz", "verdict", "\3" + refusal);
}

void metadata_socket_seeds() {
  const std::string fetch = *wire::encode(wire::MetadataRequest(wire::FetchRequest{"label", 2}));
  const std::string refused = *wire::encode(wire::MetadataRequest(wire::FetchRequest{"", 3}));
  const std::string send = *wire::encode(wire::MetadataRequest(wire::SendRequest{"metadata"}));
  seed("metadata_socket_fuzz", "fetch", "\xfe" + fetch);
  seed("metadata_socket_fuzz", "fetch-in-bytes", std::string(1, '\0') + fetch);
  seed("metadata_socket_fuzz", "fetch-refused", "\xfe" + refused);
  seed("metadata_socket_fuzz", "send", "\xfe" + send);
  seed("metadata_socket_fuzz", "request-without-length", "\xfe" + fetch.substr(4));
  seed("metadata_socket_fuzz", "answer", "\xff" + wire::encode_fetch_answer(std::string("metadata")));
  seed("metadata_socket_fuzz", "answer-refused",
       "\xff" + wire::encode_fetch_answer(Error{Code::not_found, "no such label"}));
  seed("metadata_socket_fuzz", "answer-send", "\1" + wire::encode_send_answer({}));
}

void comm_cards_seeds() {
  const auto card = [](const char* name, unsigned char which, const std::string& bytes) {
    seed("comm_cards_fuzz", name, static_cast<char>(which) + bytes);
  };
  const wire::Seat seat{"agent", "metadata"};
  card("seat", 0, seat.encode());
  card("rank", 1, wire::RankCard{77, 1 << 20, 1 << 16, 5, true, false, seat}.encode());
  card("split", 2, wire::SplitCard{{2, 0, 1}, "group", "card"}.encode());
  card("outcome_good", 3, wire::Outcome::encode({}) + "rest");
  card("outcome_bad", 3, wire::Outcome::encode(Error{Code::exhausted, "no memory"}));
  card("window", 4, wire::WindowCard{3, 77, 5, 6, 1000, 4096, DType::int64, true, seat}.encode());
  card("call", 5,
       wire::CallCard{"all_reduce of 10 float32 with sum",
                      "all_reduce float32 sum -1",
                      "one_shot",
                      CommOperation::all_reduce,
                      -1,
                      {10},
                      {10}}
           .encode());
  card("call_of_splits", 5,
       wire::CallCard{"all_to_all_v_single of 6 float32",
                      "all_to_all float32 -1",
                      "",
                      CommOperation::all_to_all,
                      -1,
                      {1, 2, 3},
                      {2, 2, 2}}
           .encode());
  card("entry", 6, wire::MeetingEntry{1, 2, true, "card"}.encode());
  card("table_of_two", 7 + 2 * 9, wire::MeetingTable{9, {{1, 0, false, "a"}, {2, 0, false, "b"}}}.encode());
  card("store", 8, wire::StoreEntry{"world/0", "entry"}.encode());
  card("piece", 8 + 14 * 9, wire::CardPiece{1, 2, 0, 3, "part"}.encode());
  card("gpu", 8 + 1 * 9, wire::GpuCard{32, 1 << 18, 1 << 17, 64, 1 << 26, "GPU-7a1c"}.encode());
  card("box", 8 + 2 * 9, wire::BoxCard{44, "metadata"}.encode());
  card("tensor", 8 + 4 * 9, wire::TensorCard{4096, "metadata"}.encode());
  card("tensor_places", 8 + 5 * 9, wire::TensorPlaces{{0, 4096, 8192}}.encode());
  card("saying", 8 + 3 * 9, wire::Saying{wire::Saying::Kind::aborted, 0, "enough"}.encode());
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: %s tests/fuzz/corpus\n", arguments[0]);
    return 2;
  }
  corpus = arguments[1];
  metadata_seeds();
  agent_message_seeds();
  hello_seeds();
  metadata_socket_seeds();
  comm_cards_seeds();
  return 0;
}
