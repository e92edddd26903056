// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/control_messages.hpp"

#include "base/errors.hpp"

#include <cstring>
#include <optional>
#include <string_view>

namespace headrace::shm {
namespace {

constexpr std::uint32_t control_magic = 0x4d535248;  // "HRSM"
constexpr std::uint32_t info_magic = 0x49535248;     // "HRSI"
constexpr std::uint16_t version = 1;                 // both ends must speak the same
constexpr std::size_t max_boot_id_bytes = 64;
constexpr std::size_t max_socket_name_bytes = 100;

enum class Type : std::uint16_t {
  hello = 1,
  welcome = 2,
  refusal = 3,
  share = 4,
  unshare = 5,
  settled = 6,
  goodbye = 7
};

class Writer {
 public:
  Writer(std::uint32_t magic, std::uint16_t type) {
    put(magic);
    put(version);
    put(type);
  }
  template <class T>
  void put(T value) {
    static_assert(std::is_integral_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);  // one host: its own byte order
  }
  void put(const Nonce& nonce) {
    put(nonce.address);
    put(nonce.value);
  }
  void put_text(std::string_view text, std::size_t most) {
    text = text.substr(0, most);
    put(static_cast<std::uint16_t>(text.size()));
    bytes_.append(text);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    T value{};
    if (bytes_.size() - at_ < sizeof value) {
      good_ = false;
      at_ = bytes_.size();
      return value;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  Nonce get_nonce() {
    Nonce nonce;
    nonce.address = get<std::uint64_t>();
    nonce.value = get<std::uint64_t>();
    return nonce;
  }
  std::string get_text(std::size_t least, std::size_t most) {
    const auto length = get<std::uint16_t>();
    if (length < least || length > most || bytes_.size() - at_ < length) {
      good_ = false;
      return {};
    }
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return text;
  }
  void fail() { good_ = false; }
  /// Everything was there and nothing is left over.
  [[nodiscard]] bool complete() const { return good_ && at_ == bytes_.size(); }
  [[nodiscard]] bool good() const { return good_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool good_ = true;
};

Writer begin(Type type) { return {control_magic, static_cast<std::uint16_t>(type)}; }

struct Encoder {
  std::string operator()(const Hello& hello) const {
    Writer out = begin(Type::hello);
    out.put(hello.incarnation);
    out.put(hello.expected_incarnation);
    out.put(hello.nonce);
    out.put_text(hello.name, max_name_bytes);
    return out.take();
  }
  std::string operator()(const Welcome& welcome) const {
    Writer out = begin(Type::welcome);
    out.put(welcome.incarnation);
    out.put(welcome.nonce);
    out.put_text(welcome.name, max_name_bytes);
    return out.take();
  }
  std::string operator()(const Refusal& refusal) const {
    Writer out = begin(Type::refusal);
    out.put(static_cast<std::int32_t>(refusal.code));
    out.put_text(refusal.text, max_refusal_bytes);
    return out.take();
  }
  std::string operator()(const Share& share) const {
    Writer out = begin(Type::share);
    out.put(static_cast<std::uint32_t>(share.regions.size()));
    for (const SharedRegion& region : share.regions) {
      out.put(region.region_id);
      out.put(region.offset_bytes);
      out.put(region.length_bytes);
    }
    return out.take();
  }
  std::string operator()(const Unshare& unshare) const {
    Writer out = begin(Type::unshare);
    out.put(static_cast<std::uint32_t>(unshare.region_ids.size()));
    for (const std::uint32_t id : unshare.region_ids) out.put(id);
    return out.take();
  }
  std::string operator()(const Settled& /*message*/) const { return begin(Type::settled).take(); }
  std::string operator()(const Goodbye& /*message*/) const { return begin(Type::goodbye).take(); }
};

Share read_share(Reader& in) {
  Share share;
  const auto count = in.get<std::uint32_t>();
  if (count == 0 || count > max_regions_in_message) in.fail();
  for (std::uint32_t i = 0; i < count && in.good(); ++i) {
    SharedRegion region;
    region.region_id = in.get<std::uint32_t>();
    region.offset_bytes = in.get<std::uint64_t>();
    region.length_bytes = in.get<std::uint64_t>();
    share.regions.push_back(region);
  }
  return share;
}

Unshare read_unshare(Reader& in) {
  Unshare unshare;
  const auto count = in.get<std::uint32_t>();
  if (count > max_ids_in_message) in.fail();
  for (std::uint32_t i = 0; i < count && in.good(); ++i)
    unshare.region_ids.push_back(in.get<std::uint32_t>());
  return unshare;
}

std::optional<ControlMessage> read_body(Type type, Reader& in) {
  switch (type) {
    case Type::hello: {
      Hello hello;
      hello.incarnation = in.get<std::uint64_t>();
      hello.expected_incarnation = in.get<std::uint64_t>();
      hello.nonce = in.get_nonce();
      hello.name = in.get_text(1, max_name_bytes);
      return hello;
    }
    case Type::welcome: {
      Welcome welcome;
      welcome.incarnation = in.get<std::uint64_t>();
      welcome.nonce = in.get_nonce();
      welcome.name = in.get_text(1, max_name_bytes);
      return welcome;
    }
    case Type::refusal: {
      Refusal refusal;
      const auto code = in.get<std::int32_t>();
      if (code <= 0 || code > static_cast<std::int32_t>(Code::internal)) in.fail();
      refusal.code = static_cast<Code>(code);
      refusal.text = in.get_text(0, max_refusal_bytes);
      return refusal;
    }
    case Type::share:
      return read_share(in);
    case Type::unshare:
      return read_unshare(in);
    case Type::settled:
      return Settled{};
    case Type::goodbye:
      return Goodbye{};
  }
  return std::nullopt;
}

std::size_t descriptors_of(const ControlMessage& message) {
  if (std::holds_alternative<Hello>(message)) return 4;
  if (std::holds_alternative<Welcome>(message)) return 1;
  if (const auto* const share = std::get_if<Share>(&message)) return share->regions.size();
  return 0;
}

}  // namespace

std::string encode(const ControlMessage& message) { return std::visit(Encoder{}, message); }

Result<ControlMessage> decode(std::span<const std::byte> packet, std::size_t descriptors) {
  Reader in(packet);
  const auto magic = in.get<std::uint32_t>();
  const auto their_version = in.get<std::uint16_t>();
  const auto type = in.get<std::uint16_t>();
  if (!in.good() || magic != control_magic) {
    return make_error(Code::corrupt, "a control message of {} bytes begins with {:#x}, expected {:#x}",
                      packet.size(), magic, control_magic);
  }
  if (their_version != version) {
    return make_error(
        Code::not_supported,
        "the peer speaks version {} of shm and we speak {}: run one version of Headrace on a host",
        their_version, version);
  }
  std::optional<ControlMessage> message = read_body(static_cast<Type>(type), in);
  if (!message || !in.complete())
    return make_error(Code::corrupt, "a control message of type {} has {} bytes that do not fit it", type,
                      packet.size());
  if (descriptors_of(*message) != descriptors) {
    return make_error(Code::corrupt, "a control message of type {} came with {} descriptors, expected {}",
                      type, descriptors, descriptors_of(*message));
  }
  return std::move(*message);
}

std::string encode(const ConnectionInfo& info) {
  Writer out(info_magic, 0);
  out.put_text(info.boot_id, max_boot_id_bytes);
  out.put_text(info.socket_name, max_socket_name_bytes);
  return out.take();
}

Result<ConnectionInfo> decode_connection_info(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const auto magic = in.get<std::uint32_t>();
  const auto their_version = in.get<std::uint16_t>();
  (void)in.get<std::uint16_t>();
  if (!in.good() || magic != info_magic) {
    return make_error(Code::corrupt,
                      "connection information of shm has {} bytes and begins with {:#x}, expected {:#x}",
                      bytes.size(), magic, info_magic);
  }
  if (their_version != version) {
    return make_error(
        Code::not_supported,
        "the peer speaks version {} of shm and we speak {}: run one version of Headrace on a host",
        their_version, version);
  }
  ConnectionInfo info;
  info.boot_id = in.get_text(0, max_boot_id_bytes);
  info.socket_name = in.get_text(1, max_socket_name_bytes);
  if (!in.complete())
    return make_error(Code::corrupt, "connection information of shm has {} bytes that do not fit it",
                      bytes.size());
  // The name becomes part of a path: it must not lead out of the directory.
  if (info.socket_name.find('/') != std::string::npos || info.socket_name.find('\0') != std::string::npos ||
      info.socket_name.front() == '.') {
    return make_error(Code::corrupt,
                      "connection information of shm names a socket outside of the runtime directory");
  }
  return info;
}

}  // namespace headrace::shm
