// SPDX-License-Identifier: Apache-2.0
// A prefill process hands its KV cache over to a decode process, layer by layer: each layer travels while the
// next one is computed. The decode process counts each layer, and begins with the first one before the last
// one is there. docs/fabric.md explains the calls.
#include <headrace/fabric.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <future>
#include <string>
#include <vector>

using namespace headrace;

namespace {

constexpr std::uint64_t layers = 16;
constexpr std::uint64_t pages_of_cache = 64;  // of each layer, on both sides
constexpr std::uint64_t words_of_page = 2048;
constexpr std::uint64_t page_bytes = words_of_page * sizeof(std::uint32_t);
constexpr std::uint64_t layer_bytes = pages_of_cache * page_bytes;
constexpr auto limit = std::chrono::seconds(60);
constexpr std::uint32_t request = 7;  // the scope of its immediates: several requests may travel at once

// The pages of the request, in order: where prefill has them, and where decode has room.
constexpr std::array<std::uint32_t, 6> ours{40, 3, 12, 63, 5, 6};
constexpr std::array<std::uint32_t, 6> theirs{9, 8, 0, 33, 62, 1};

using Cache = std::vector<std::uint32_t>;

std::uint32_t word_of(std::uint64_t layer, std::size_t page, std::uint64_t word) {
  return static_cast<std::uint32_t>(layer << 24 | page << 16 | word) + 1;
}

std::uint32_t* page_at(Cache& cache, std::uint64_t layer, std::uint32_t page) {
  return cache.data() + (layer * pages_of_cache + page) * words_of_page;
}

int fail(const Error& error) {
  std::fprintf(stderr, "%s: %s\n", std::string(code_name(error.code)).c_str(), error.message.c_str());
  return 1;
}

// --- prefill

/// Writes a layer as soon as it is computed.
class LayerSender {
 public:
  LayerSender(Fabric& fabric, const FabricMemory& cache, FabricDescriptor to)
      : fabric_(fabric), cache_(cache), to_(std::move(to)) {}

  /// On the callback thread: `before` layers were computed earlier, `now` are. Returns whether more will
  /// come.
  bool computed(std::uint64_t before, std::uint64_t now) {
    for (std::uint64_t layer = before; layer < now; ++layer) send(layer);
    if (now == layers) all_sent_.set_value();
    return now < layers;
  }

  /// Waits until decode has all layers.
  Result<void> wait() {
    if (all_sent_.get_future().wait_for(limit) != std::future_status::ready)
      return Error{Code::timed_out, "not all layers were computed"};
    for (const auto& work : works_) {
      if (!work) return work.error();
      if (!work->wait(limit).ok()) return work->error();
    }
    return {};
  }

 private:
  void send(std::uint64_t layer) {
    const std::uint64_t begin = layer * layer_bytes;
    const FabricPages from{.indices = ours, .offset_bytes = begin};
    const FabricPages to{.indices = theirs, .offset_bytes = begin};
    FabricPost post;
    post.immediate = Immediate{static_cast<std::uint32_t>(layer), request};
    post.timeout = limit;
    works_.push_back(fabric_.write_pages(cache_, from, to_, to, page_bytes, ours.size(), post));
  }

  Fabric& fabric_;
  FabricMemory cache_;
  FabricDescriptor to_;
  std::vector<Result<FabricWork>> works_;
  std::promise<void> all_sent_;
};

/// A model would do this on a GPU, whose stream writes the word after each layer: cuStreamWriteValue64 at
/// FabricWatcher::address, in graphs too.
void compute(Cache& cache, const FabricWatcher& done) {
  for (std::uint64_t layer = 0; layer < layers; ++layer) {
    for (std::size_t page = 0; page < ours.size(); ++page)
      for (std::uint64_t word = 0; word < words_of_page; ++word)
        page_at(cache, layer, ours[page])[word] = word_of(layer, page, word);
    done.store(layer + 1);
  }
}

int run_prefill(int from_decode) {
  std::uint8_t length = 0;
  std::string bytes(255, '\0');
  if (::read(from_decode, &length, 1) != 1 || ::read(from_decode, bytes.data(), length) != length) return 1;
  auto to = FabricDescriptor::from_bytes(bytes.substr(0, length));
  if (!to) return fail(to.error());

  auto fabric = Fabric::open();
  if (!fabric) return fail(fabric.error());
  Cache cache(layers * pages_of_cache * words_of_page);
  const auto memory =
      fabric->register_memory({.address = cache.data(), .length_bytes = layers * layer_bytes});
  if (!memory) return fail(memory.error());
  LayerSender sender(*fabric, *memory, *to);
  const auto done =
      fabric->watch([&](std::uint64_t before, std::uint64_t now) { return sender.computed(before, now); });
  if (!done) return fail(done.error());

  compute(cache, *done);
  const auto handed_over = sender.wait();
  fabric->close();  // no function of ours runs any more
  if (!handed_over) return fail(handed_over.error());
  std::printf("handed over %zu pages of %d layers\n", ours.size(), static_cast<int>(layers));
  return 0;
}

// --- decode

/// Whether the pages of the request have this layer.
bool layer_is_right(Cache& cache, std::uint64_t layer) {
  for (std::size_t page = 0; page < theirs.size(); ++page)
    for (std::uint64_t word = 0; word < words_of_page; ++word)
      if (page_at(cache, layer, theirs[page])[word] != word_of(layer, page, word)) return false;
  return true;
}

/// Of all pages, those that are not zero.
std::size_t pages_in_use(Cache& cache) {
  std::size_t used = 0;
  for (std::uint64_t layer = 0; layer < layers; ++layer)
    for (std::uint32_t page = 0; page < pages_of_cache; ++page) {
      const auto* const words = page_at(cache, layer, page);
      used += std::any_of(words, words + words_of_page, [](std::uint32_t word) { return word != 0; }) ? 1 : 0;
    }
  return used;
}

int run_decode(int to_prefill) {
  auto fabric = Fabric::open();
  if (!fabric) return fail(fabric.error());
  Cache cache(layers * pages_of_cache * words_of_page);
  const auto memory = fabric->register_memory({.address = cache.data(), .length_bytes = layers * layer_bytes},
                                              FabricAccess::writable);
  if (!memory) return fail(memory.error());
  const std::string descriptor = memory->descriptor().bytes();
  const auto length = static_cast<std::uint8_t>(descriptor.size());
  if (::write(to_prefill, &length, 1) != 1 || ::write(to_prefill, descriptor.data(), length) != length)
    return 1;

  for (std::uint64_t layer = 0; layer < layers; ++layer) {
    // A layer that came before it was expected counts, too.
    const auto arrival = fabric->expect({static_cast<std::uint32_t>(layer), request}, 1);
    if (!arrival) return fail(arrival.error());
    if (!arrival->wait(limit).ok() || !layer_is_right(cache, layer)) return 1;
  }
  return pages_in_use(cache) == layers * theirs.size() ? 0 : 1;
}

}  // namespace

int main() {
  int ends[2];
  if (::pipe(ends) != 0) return 1;
  const pid_t decode = ::fork();  // before any fabric: a child opens its own
  if (decode == 0) ::_exit(run_decode(ends[1]));
  const int failed = run_prefill(ends[0]);
  int status = 0;
  ::waitpid(decode, &status, 0);
  return failed == 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
