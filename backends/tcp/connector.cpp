// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/connector.hpp"

#include "backends/tcp/link.hpp"
#include "backends/tcp/socket_setup.hpp"
#include "base/errors.hpp"

#include <algorithm>
#include <cerrno>

namespace headrace::tcp {
namespace {

// How long one address may keep the next one waiting; RFC 8305 recommends a quarter of a second.
constexpr std::uint64_t stagger_ns = 250'000'000;
constexpr std::uint64_t look_again_ns = 250'000'000;  // whether the link is still wanted

/// A refusal by the peer itself says more than an address that leads nowhere.
Code worse(Code a, Code b) {
  const auto weight = [](Code code) {
    switch (code) {
      case Code::exhausted:
        return 5;  // the peer is there, and one side has no descriptors
      case Code::not_supported:
        return 4;
      case Code::invalid_argument:
        return 4;  // tokens do not fit, or the wrong port: this path cannot reach it
      case Code::corrupt:
        return 3;
      case Code::timed_out:
        return 1;
      default:
        return 2;
    }
  };
  return weight(b) > weight(a) ? b : a;
}

}  // namespace

Result<void> Connector::start(Context& context, Resolver& resolver, std::shared_ptr<Link> link,
                              std::vector<TcpAddress> addresses) {
  const std::shared_ptr<Connector> connector(new Connector(context, std::move(link)));
  HEADRACE_TRY_VOID(context.first_thread().watch(connector, -1, 0));
  context.first_thread().run(
      [connector, addresses = std::move(addresses), &resolver] { connector->begin(addresses, resolver); });
  return {};
}

Connector::Connector(Context& context, std::shared_ptr<Link> link)
    : context_(context),
      link_(std::move(link)),
      deadline_ns_(context.host.now_ns() +
                   static_cast<std::uint64_t>(context.settings.connect_timeout.count())) {}

void Connector::begin(const std::vector<TcpAddress>& addresses, Resolver& resolver) {
  for (const TcpAddress& address : addresses) {
    if (is_numeric(address)) {
      resolved(address, address.resolve(TcpAddress::Use::connect));
      continue;
    }
    ++resolving_;
    auto asked = resolver.ask(address, [me = self(), address](Result<std::vector<SocketAddress>> answer) {
      me->context_.first_thread().run([me, address, answer = std::move(answer)] {
        --me->resolving_;
        me->resolved(address, answer);
        me->give_up_if_nothing_is_left();
      });
    });
    if (!asked) {
      --resolving_;
      failed(address.text(), asked.error());
    }
  }
  give_up_if_nothing_is_left();
}

void Connector::resolved(const TcpAddress& address, Result<std::vector<SocketAddress>> answer) {
  if (done_) return;
  if (!answer) return failed(address.text(), answer.error());
  candidates_.insert(candidates_.end(), answer->begin(), answer->end());
  if (attempts_.empty()) try_next();
}

std::uint64_t Connector::on_time(std::uint64_t now_ns) {
  if (done_) return never;
  if (!link_->connecting()) return stop(), never;  // disconnected meanwhile
  if (now_ns >= deadline_ns_) {
    failures_.push_back(fmt::format("nothing came of it within {} ms",
                                    context_.settings.connect_timeout.count() / 1'000'000));
    worst_ = worse(Code::timed_out, worst_ == Code::peer_lost ? Code::timed_out : worst_);
    candidates_.clear();
    resolving_ = 0;
    stop_attempts();
    give_up_if_nothing_is_left();
    return never;
  }
  if (!candidates_.empty() && now_ns >= next_try_ns_) try_next();
  if (done_) return never;
  return std::min({deadline_ns_, candidates_.empty() ? never : next_try_ns_, now_ns + look_again_ns});
}

/// Starts with the next address, past those at which that fails at once.
void Connector::try_next() {
  while (!done_ && !candidates_.empty()) {
    const SocketAddress address = candidates_.front();
    candidates_.pop_front();
    auto greeting = greet(address, 0, [me = self(), address](Greeting::Outcome outcome) {
      me->tried(address, std::move(outcome));
    });
    if (!greeting) {
      failed(address.text(), greeting.error());
      continue;
    }
    attempts_.push_back({address, std::move(greeting).value()});
    next_try_ns_ = context_.host.now_ns() + stagger_ns;
    context_.first_thread().hurry(shared_from_this());
    return;
  }
}

Result<std::shared_ptr<Greeting>> Connector::greet(const SocketAddress& address, unsigned channel,
                                                   Greeting::Done done) {
  HEADRACE_TRY_VOID(context_.descriptors.check());
  HEADRACE_TRY(fd, open_socket(address, context_.settings));
  if (context_.calls->connect(fd.get(), address.get(), address.length) < 0 && errno != EINPROGRESS &&
      errno != EINTR)
    return make_error(Code::peer_lost, "{}", os_error_text(errno));
  wire::Handshake::Config config;
  config.role = wire::HelloRole::connecting;
  config.mine.incarnation = context_.host.incarnation();
  config.mine.name = context_.host.agent_name();
  config.mine.purpose = wire::Purpose::tcp_backend;
  config.mine.channel = static_cast<std::uint8_t>(channel);
  config.mine.link_id = link_->id();
  config.mine.expected_incarnation = link_->peer_incarnation();
  config.expected_name = link_->peer_name();
  config.token = context_.settings.token;
  config.hmac = context_.hmac;
  return Greeting::start(context_, context_.first_thread(), std::move(fd), std::move(config), true,
                         std::move(done));
}

void Connector::tried(const SocketAddress& address, Greeting::Outcome outcome) {
  std::erase_if(attempts_, [](const Attempt& attempt) { return attempt.greeting->over(); });
  if (done_) return;
  if (!outcome.result.ok()) {
    failed(address.text(), outcome.result.error());
    if (attempts_.empty()) try_next();
    return give_up_if_nothing_is_left();
  }
  stop();
  if (link_->attach(0, std::move(outcome.fd), outcome.early)) open_others(address);
}

/// The link works with its first socket; these make it wider. One that fails is missed, not mourned.
void Connector::open_others(const SocketAddress& address) {
  const unsigned sockets = context_.settings.sockets;
  for (unsigned channel = 1; channel < sockets; ++channel) {
    const auto miss = [me = self(), channel, sockets, address](const Error& why) {
      me->context_.log(HEADRACE_LOG_WARN, "socket {} of {} to peer {} at {}: {}; the link goes on without it",
                       channel + 1, sockets, me->link_->peer_name(), address.text(), why.message);
    };
    auto greeting = greet(address, channel, [me = self(), channel, miss](Greeting::Outcome outcome) {
      if (outcome.result.ok()) {
        me->link_->attach(channel, std::move(outcome.fd), outcome.early);
      } else if (me->link_->alive()) {
        miss(outcome.result.error());
      }
    });
    if (!greeting) miss(greeting.error());
  }
}

void Connector::failed(const std::string& where, const Error& why) {
  worst_ = worse(worst_, why.code);
  failures_.push_back(fmt::format("{}: {}", where, why.message));
}

void Connector::give_up_if_nothing_is_left() {
  if (done_ || !candidates_.empty() || !attempts_.empty() || resolving_ > 0) return;
  stop();
  std::string all;
  for (const std::string& failure : failures_) all += (all.empty() ? "" : "; ") + failure;
  if (failures_.empty()) all = "it gave no address";
  const Code code = worst_ == Code::invalid_argument ? Code::not_supported : worst_;
  link_->lose({code}, "cannot connect: " + all);
}

void Connector::stop() {
  done_ = true;
  stop_attempts();
  candidates_.clear();
  context_.first_thread().forget(*this, -1);
}

void Connector::stop_attempts() {
  for (const Attempt& attempt : std::exchange(attempts_, {})) attempt.greeting->stop();
}

}  // namespace headrace::tcp
