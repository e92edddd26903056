// SPDX-License-Identifier: Apache-2.0
// The provider of one fake NIC: checks what it is given, and hands it to the network.
#include "base/errors.hpp"
#include "support/fake_nics/state.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace headrace::test::fake_nics {
namespace {

using rail::PeerId;
constexpr std::string_view scheme = "fake:";
constexpr std::string_view key_magic = "fakekey:";

class FakeProvider final : public rail::Provider {
 public:
  FakeProvider(std::shared_ptr<State> state, Nic& nic) : state_(std::move(state)), nic_(nic) {}
  ~FakeProvider() override;

  [[nodiscard]] const rail::ProviderInfo& info() const override { return nic_.info; }
  [[nodiscard]] std::string address() const override { return std::string(scheme) + nic_.info.name; }
  [[nodiscard]] rail::Health health() const override {
    const std::lock_guard lock(state_->mutex);
    return {!nic_.down, nic_.down ? nic_.info.name + " is dead" : ""};
  }

  Result<rail::Registered> register_memory(const rail::Memory& memory) override;
  void deregister(rail::MemoryId memory) override {
    const std::lock_guard lock(state_->mutex);
    nic_.memories.erase(static_cast<std::uint32_t>(memory));
  }
  Result<PeerId> add_peer(std::string_view address, std::string_view hello) override;
  void drop_peer(PeerId peer) override {
    const std::lock_guard lock(state_->mutex);
    if (const auto found = find(peer); found.first) state_->drop(found.first, found.second);
  }
  Result<rail::RemoteId> load_memory(PeerId peer, std::string_view key) override;
  void unload_memory(PeerId, rail::RemoteId) override {}

  Status post_write(const rail::Write& write) override;
  Status post_read(const rail::Read& read) override;
  Status post_message(PeerId peer, const rail::LocalRange& bytes, std::uint64_t token) override;
  Status post_receive(const rail::LocalRange& room, std::uint64_t token) override;
  void cancel(PeerId, std::uint64_t) override {}  // as most NICs
  bool heard_from(PeerId) override { return false; }

  std::size_t poll(std::span<rail::Event> events) override;

 private:
  using Place = std::pair<std::shared_ptr<Connection>, int>;

  [[nodiscard]] Place find(PeerId peer) const {
    const auto at = nic_.peers.find(static_cast<std::uint64_t>(peer));
    if (at == nic_.peers.end()) return {};
    const End& first = at->second->ends[0];
    return {at->second, first.nic == &nic_ && first.peer == peer ? 0 : 1};
  }
  Status take_moves(PeerId peer, std::span<const rail::Move> moves, bool mark, Post& post,
                    Place& place) const;

  std::shared_ptr<State> state_;
  Nic& nic_;
};

FakeProvider::~FakeProvider() {
  const std::lock_guard lock(state_->mutex);
  const auto peers = nic_.peers;
  for (const auto& [number, connection] : peers) {
    const int side = find(PeerId{number}).second;
    connection->silent = true;
    const auto posts = connection->posts;
    for (const auto& post : posts)
      if (post->side == side) state_->end(*connection, post, Code::canceled);
    connection->ends[side].life = End::Life::dropped;
    state_->lose(connection, 1 - side, nic_.info.name + " was closed");
  }
  nic_.peers.clear();
  nic_.memories.clear();
  nic_.events.clear();
  nic_.open = false;
}

Result<rail::Registered> FakeProvider::register_memory(const rail::Memory& memory) {
  if (memory.device) return make_error(Code::not_supported, "fake NICs have no GPU memory");
  if (memory.bytes == 0) return make_error(Code::invalid_argument, "0 bytes cannot be registered");
  const std::lock_guard lock(state_->mutex);
  const std::uint32_t id = nic_.next_memory++;
  nic_.memories.emplace(id, memory);
  return rail::Registered{rail::MemoryId{id}, std::string(key_magic) + std::to_string(id)};
}

Result<PeerId> FakeProvider::add_peer(std::string_view address, std::string_view hello) {
  if (!address.starts_with(scheme)) return make_error(Code::corrupt, "{} is no fake NIC's address", address);
  const std::lock_guard lock(state_->mutex);
  const auto made = std::make_shared<Connection>();
  made->ends[0] = {&nic_, PeerId{nic_.next_peer++}, End::Life::unknown, {}};
  nic_.peers.emplace(static_cast<std::uint64_t>(made->ends[0].peer), made);
  state_->connect(made, std::string(address.substr(scheme.size())), std::string(hello));
  return made->ends[0].peer;
}

Result<rail::RemoteId> FakeProvider::load_memory(PeerId peer, std::string_view key) {
  const auto digits = key.substr(std::min(key.size(), key_magic.size()));
  const bool numeric = !digits.empty() && digits.size() < 10 &&
                       std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!key.starts_with(key_magic) || !numeric) return make_error(Code::corrupt, "this is no fake NIC's key");
  const std::lock_guard lock(state_->mutex);
  const auto [connection, side] = find(peer);
  if (!connection || connection->ends[side].life != End::Life::usable)
    return make_error(Code::not_found, "the peer is not ready");
  auto& loaded = connection->ends[side].loaded;
  loaded.push_back(std::stoul(std::string(digits)));
  return rail::RemoteId{static_cast<std::uint32_t>(loaded.size() - 1)};
}

Status FakeProvider::take_moves(PeerId peer, std::span<const rail::Move> moves, bool mark, Post& post,
                                Place& place) const {
  place = find(peer);
  if (!place.first || place.first->ends[place.second].life != End::Life::usable) return {Code::peer_lost};
  if ((moves.empty() && !mark) || moves.size() > max_moves) return {Code::invalid_argument};
  const End& end = place.first->ends[place.second];
  for (rail::Move move : moves) {
    const auto remote = static_cast<std::size_t>(move.remote);
    if (move.bytes == 0 || remote >= end.loaded.size() ||
        bytes_of(nic_, static_cast<std::uint64_t>(move.local), move.local_offset, move.bytes,
                 rail::Access::local) == nullptr)
      return {Code::invalid_argument};
    move.remote = rail::RemoteId{static_cast<std::uint32_t>(end.loaded[remote])};
    post.moves.push_back(move);
  }
  if (nic_.posts >= max_posts) return {Code::would_block};
  post.side = place.second;
  return {};
}

Status FakeProvider::post_write(const rail::Write& write) {
  const std::lock_guard lock(state_->mutex);
  const auto post = std::make_shared<Post>();
  Place place;
  const auto status = take_moves(write.peer, write.moves, write.mark.has_value(), *post, place);
  if (!status.ok()) return status;
  post->kind = Post::Kind::write;
  post->token = write.token;
  post->mark = write.mark;
  state_->start(place.first, post);
  return {};
}

Status FakeProvider::post_read(const rail::Read& read) {
  const std::lock_guard lock(state_->mutex);
  const auto post = std::make_shared<Post>();
  Place place;
  const auto status = take_moves(read.peer, read.moves, false, *post, place);
  if (!status.ok()) return status;
  post->kind = Post::Kind::read;
  post->token = read.token;
  state_->start(place.first, post);
  return {};
}

Status FakeProvider::post_message(PeerId peer, const rail::LocalRange& bytes, std::uint64_t token) {
  const std::lock_guard lock(state_->mutex);
  const auto [connection, side] = find(peer);
  if (!connection || connection->ends[side].life != End::Life::usable) return {Code::peer_lost};
  if (bytes.bytes == 0 || bytes.bytes > max_message_bytes ||
      bytes_of(nic_, static_cast<std::uint64_t>(bytes.memory), bytes.offset, bytes.bytes,
               rail::Access::local) == nullptr)
    return {Code::invalid_argument};
  if (nic_.posts >= max_posts) return {Code::would_block};
  const auto post = std::make_shared<Post>();
  post->kind = Post::Kind::message;
  post->side = side;
  post->token = token;
  post->message = bytes;
  state_->start(connection, post);
  return {};
}

Status FakeProvider::post_receive(const rail::LocalRange& room, std::uint64_t token) {
  const std::lock_guard lock(state_->mutex);
  if (bytes_of(nic_, static_cast<std::uint64_t>(room.memory), room.offset, room.bytes, rail::Access::local) ==
      nullptr)
    return {Code::invalid_argument};
  nic_.receives.push_back({room, token});
  state_->serve_waiting(nic_);
  return {};
}

std::size_t FakeProvider::poll(std::span<rail::Event> events) {
  const std::lock_guard lock(state_->mutex);
  std::size_t count = 0;
  for (; count < events.size() && !nic_.events.empty(); ++count) {
    events[count] = std::move(nic_.events.front());
    nic_.events.pop_front();
  }
  return count;
}

}  // namespace

std::unique_ptr<rail::Provider> make_provider(std::shared_ptr<State> state, Nic& nic) {
  return std::make_unique<FakeProvider>(std::move(state), nic);
}

}  // namespace headrace::test::fake_nics
