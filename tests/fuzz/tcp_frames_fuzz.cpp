// SPDX-License-Identifier: Apache-2.0
// The frame reader and both sides of message order, with bytes of a hostile peer. The first byte gives the
// number of bytes of each read and the number of buffers that the socket gets.
#include "backends/tcp/frame_reader.hpp"
#include "backends/tcp/regions.hpp"
#include "transport/message_inbox.hpp"
#include "transport/message_outbox.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

using namespace headrace;
using namespace headrace::tcp;

/// Handles frames as a channel does: it looks up ranges and keeps messages in order.
struct Owner final : FrameReader::Handler {
  Owner(FrameReader& the_reader, Regions& the_regions) : reader(the_reader), regions(the_regions) {
    for (int i = 0; i < 3; ++i) {
      outbox.add(0, "sent", transport::OutMessage::State::ready);
      (void)outbox.next();
    }
  }

  Result<void> begin(const FrameHeader& header, const RangeList& ranges) override {
    if (header.type == FrameType::read_data && header.code == 0) reader.discard();
    if (header.type == FrameType::read) HEADRACE_TRY_VOID(ranges.total_bytes());
    if (header.type != FrameType::write) return {};
    Regions::View view(regions);
    refused = false;
    for (std::uint32_t i = 0; i < ranges.size(); ++i) {
      const auto found = view.find(ranges[i], Access::write);
      if (found.region == nullptr) {
        if (found.good_bytes > ranges[i].length) std::abort();
        refused = true;
        reader.discard();
        return {};
      }
      reader.place(found.region->base + ranges[i].offset, ranges[i].length);
    }
    return {};
  }
  void unwritable(std::uint64_t) override { std::abort(); }
  Result<void> end(const FrameHeader& header, std::span<const std::byte> payload) override {
    if (header.type == FrameType::write && (header.flags & flag_bound) != 0)
      HEADRACE_TRY_VOID(inbox.chunk(header.request, !refused));
    if (header.type == FrameType::message)
      HEADRACE_TRY_VOID(inbox.message({header.channel, inbox.next_number(header.channel), header.request,
                                       header.chunks, header.code != 0, (header.flags & flag_counted) != 0},
                                      {reinterpret_cast<const char*>(payload.data()), payload.size()}));
    if (header.type == FrameType::message_ack)
      HEADRACE_TRY_VOID(outbox.acknowledged(header.channel, header.request));
    while (inbox.next()) {
    }
    while (inbox.acknowledgement()) {
    }
    return {};
  }

  FrameReader& reader;
  Regions& regions;
  transport::MessageInbox inbox;
  transport::MessageOutbox outbox;
  bool refused = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::array<std::size_t, 8> steps{1, 3, 40, 41, 1000, 16384, 70'000, SIZE_MAX};
  const std::size_t step = steps[data[0] % steps.size()];
  const std::size_t pieces = std::size_t{1} << (data[0] / 32);
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);

  std::string memory(4096, '\0');
  Regions regions;
  if (!regions.add({{1, reinterpret_cast<std::byte*>(memory.data()), memory.size()}})) std::abort();
  FrameReader reader;
  Owner owner(reader, regions);
  while (!bytes.empty()) {
    std::size_t given = 0;
    for (const iovec& target : reader.targets(pieces)) {
      const std::size_t n = std::min({target.iov_len, bytes.size() - given, step - given});
      std::copy_n(bytes.data() + given, n, static_cast<char*>(target.iov_base));
      given += n;
      if (given == bytes.size() || given == step) break;
    }
    if (given == 0) std::abort();
    bytes.remove_prefix(given);
    if (!reader.took(given, owner)) return 0;
  }
  return 0;
}
