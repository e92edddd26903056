// SPDX-License-Identifier: Apache-2.0
// The frame reader of the tcp provider, with bytes of a hostile peer. The first byte says how many bytes come
// at a time, and whether the memory goes away in between; the second one chooses hello, key or address.
#include "rail/stream/frame_reader.hpp"
#include "rail/stream/hello.hpp"
#include "rail/tcp/address.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

using namespace headrace;
using namespace headrace::rail::stream;
using rail::tcp::read_address;

/// Places writes as a peer does, and keeps the rest where it is short.
struct Owner final : FrameReader::Handler {
  Owner(FrameReader& the_reader, const Memories& the_memories) : reader(the_reader), memories(the_memories) {}

  Result<void> begin(const FrameHeader& header, std::vector<Range> ranges) override {
    if (ranges.size() != header.ranges || open) std::abort();
    open = true;
    if (header.type == FrameType::offer) reader.keep();
    if (header.type != FrameType::write) return {};
    RangeCursor cursor(std::move(ranges), rail::Access::peers_read_and_write);
    if (cursor.left() != header.payload) std::abort();
    Memories::View view(memories);
    if (cursor.allowed(view)) reader.place(std::move(cursor));
    return {};
  }
  Result<void> end(const FrameHeader& header, std::string_view kept, bool) override {
    if (!open || kept.size() != (header.type == FrameType::offer ? header.payload : 0)) std::abort();
    open = false;
    return {};
  }

  FrameReader& reader;
  const Memories& memories;
  bool open = false;
};

void read_frames(std::uint8_t how, std::string_view bytes) {
  static const std::array<std::size_t, 8> steps{1, 3, 32, 33, 1000, 16384, 70'000, SIZE_MAX};
  const std::size_t step = steps[how % steps.size()];
  std::string memory(4096, '\0');
  Memories memories;
  const auto id = memories.add({reinterpret_cast<std::uintptr_t>(memory.data()),
                                memory.size(),
                                {},
                                rail::Access::peers_read_and_write});
  if (!id) std::abort();
  FrameReader reader(memories);
  Owner owner(reader, memories);
  for (std::size_t round = 0; !bytes.empty(); ++round) {
    if ((how & 0x80) != 0 && round == 2) memories.remove(*id);
    std::size_t given = 0;
    {
      Memories::View view(memories);
      for (const iovec& target : reader.targets(view)) {
        const std::size_t n = std::min({target.iov_len, bytes.size() - given, step - given});
        std::copy_n(bytes.data() + given, n, static_cast<char*>(target.iov_base));
        given += n;
        if (given == bytes.size() || given == step) break;
      }
    }
    if (given == 0) std::abort();
    bytes.remove_prefix(given);
    if (!reader.took(given, owner)) return;
  }
}

void read_words(std::uint8_t which, std::string_view bytes) {
  if (which % 3 == 0) {
    const auto hello = read_hello(bytes);
    if (hello ? encode(*hello) != bytes : hello.error().message.empty()) std::abort();
  } else if (which % 3 == 1) {
    const auto key = read_key(bytes);
    if (key ? encode(*key) != bytes : key.error().message.empty()) std::abort();
  } else {
    const auto address = read_address(bytes);
    if (address ? !read_address(encode(*address)) : address.error().message.empty()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (data[1] < 4)
    read_words(data[1], bytes);
  else
    read_frames(data[0], bytes);
  return 0;
}
