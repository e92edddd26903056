// SPDX-License-Identifier: Apache-2.0
// Both sides of the metadata socket after a correct handshake: a client whose request is the input, and a
// server whose answer is the input, in chunks whose length the input gives.
#include "metadata/metadata_session.hpp"

#include <cstdlib>
#include <string>
#include <string_view>

using namespace headrace;
using namespace headrace::metadata;

namespace {

wire::Handshake handshake(wire::HelloRole role) {
  wire::Handshake::Config config;
  config.role = role;
  config.mine.name = "fuzz";
  config.mine.incarnation = 7;
  config.mine.purpose = wire::Purpose::metadata;
  config.nonce.emplace();
  return std::move(wire::Handshake::begin(std::move(config))).value();
}

template <class Session>
void feed_in_pieces(Session& session, std::string_view input, std::size_t piece) {
  for (; !input.empty(); input.remove_prefix(std::min(piece, input.size())))
    session.feed(input.substr(0, piece));
}

void serve(std::string_view input, std::size_t piece) {
  constexpr std::size_t most = 1 << 16;
  ByteBudget budget(most);
  {
    const MetadataHandlers handlers{[](const std::string& label, std::uint64_t since) -> Result<std::string> {
                                      if (since % 2 == 1) return make_error(Code::not_found, "no {}", label);
                                      return label;
                                    },
                                    [](const wire::Hello&, std::string_view metadata) -> Result<void> {
                                      if (metadata.size() > most) std::abort();
                                      return {};
                                    },
                                    {}};
    ServerSession server(handshake(wire::HelloRole::accepting), handlers, budget);
    wire::Handshake client = handshake(wire::HelloRole::connecting);
    server.feed(client.to_send());
    client.feed(server.to_send());
    server.sent(server.to_send().size());
    if (server.phase() != ServerSession::Phase::request) std::abort();
    feed_in_pieces(server, input, piece);
    // If the server answers, a client must be able to read the answer.
    if (server.phase() == ServerSession::Phase::answer) {
      const std::string_view answer = server.to_send().substr(4);
      const Code code = wire::decode_fetch_answer(answer).code();
      if (code == Code::corrupt && wire::decode_send_answer(answer).code() == Code::corrupt &&
          !server.error())
        std::abort();
      server.sent(server.to_send().size());
      if (server.phase() != ServerSession::Phase::closing) std::abort();
    }
  }
  if (budget.left() != most) std::abort();
}

void ask(std::string_view input, std::size_t piece) {
  ClientSession client(handshake(wire::HelloRole::connecting),
                       *wire::encode(wire::MetadataRequest(wire::FetchRequest{"label", 1})));
  wire::Handshake server = handshake(wire::HelloRole::accepting);
  server.feed(client.to_send());
  client.sent(client.to_send().size());
  client.feed(server.to_send());
  feed_in_pieces(client, input, piece);
  if (client.state() != ClientSession::State::done) return;
  const std::string answer = std::move(client).take_answer();
  (void)wire::decode_fetch_answer(answer).ok();
  (void)wire::decode_send_answer(answer).ok();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t piece = 1 + data[0] / 2U;
  if (data[0] % 2 == 0) {
    serve(input, piece);
  } else {
    ask(input, piece);
  }
  if (const auto request = wire::decode_metadata_request(input); request.ok()) {
    const auto again = wire::encode(*request);
    if (!again.ok() || !(*wire::decode_metadata_request(std::string_view(*again).substr(4)) == *request))
      std::abort();
  }
  return 0;
}
