// SPDX-License-Identifier: Apache-2.0
// The contract suite of stores. A new store joins with a factory at the end of this file.
#include "metadata/open_store.hpp"
#include "metadata/store.hpp"
#include "tests/support/etcd_server.hpp"
#include "tests/support/store_watcher.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

namespace headrace::metadata {
namespace {

using ::headrace::test::EtcdServer;
using ::headrace::test::TemporaryFolder;
using ::headrace::testing::StoreWatcher;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;
using namespace std::chrono_literals;

/// A location at which several stores can be opened.
class Place {
 public:
  virtual ~Place() = default;
  [[nodiscard]] virtual std::string url() const = 0;
};

struct Implementation {
  const char* name;
  std::function<std::unique_ptr<Place>()> make;
};

class StoreContract : public ::testing::TestWithParam<Implementation> {
 protected:
  StoreContract() : place_(GetParam().make()) {}

  std::unique_ptr<Store> open() {
    StoreOptions options;
    options.poll = 20ms;
    auto store = open_store(place_->url(), options, logger_);
    if (!store) throw std::runtime_error(store.error().message);
    return std::move(store).value();
  }
  static Deadline soon() { return Deadline::after(30s); }
  static void publish(Store& store, std::string_view name, std::string_view bytes,
                      std::string_view label = "") {
    const auto published = store.publish(name, label, bytes, 10s, soon());
    ASSERT_TRUE(published.ok()) << published.error().message;
  }
  static std::string fetch(Store& store, std::string_view name, std::string_view label = "") {
    auto bytes = store.fetch(name, label, soon());
    return bytes ? *bytes : "error: " + bytes.error().message;
  }

  Logger logger_;
  std::unique_ptr<Place> place_;
};

TEST_P(StoreContract, AnEntryIsFetchedByAnotherStore) {
  const auto a = open(), b = open();
  publish(*a, "agent", "bytes");
  EXPECT_EQ(fetch(*b, "agent"), "bytes");
  EXPECT_EQ(fetch(*a, "agent"), "bytes");
  EXPECT_THAT(*b->list(soon()), ElementsAre("agent"));
}

TEST_P(StoreContract, AnEntryThatWasNeverPublishedIsNotFound) {
  const auto store = open();
  publish(*store, "agent", "bytes");
  for (const auto& [name, label] : {std::pair("nobody", ""), std::pair("agent", "other"),
                                    std::pair("agen", ""), std::pair("agent/", "")}) {
    const auto bytes = store->fetch(name, label, soon());
    EXPECT_EQ(bytes.code(), Code::not_found) << name;
    EXPECT_THAT(bytes.error().message, HasSubstr(name));
  }
}

TEST_P(StoreContract, ALaterPublishReplacesAnEarlierOne) {
  const auto a = open(), b = open();
  publish(*a, "agent", "one");
  publish(*a, "agent", "two");
  EXPECT_EQ(fetch(*b, "agent"), "two");
  publish(*a, "agent", "");
  EXPECT_EQ(fetch(*b, "agent"), "");
}

TEST_P(StoreContract, LabelsOfOneNameAreSeparateEntries) {
  const auto a = open(), b = open();
  publish(*a, "agent", "all");
  publish(*a, "agent", "some", "decode");
  EXPECT_EQ(fetch(*b, "agent"), "all");
  EXPECT_EQ(fetch(*b, "agent", "decode"), "some");
  EXPECT_THAT(*b->list(soon()), ElementsAre("agent"));
  ASSERT_TRUE(a->remove("agent", "", soon()).ok());
  EXPECT_EQ(b->fetch("agent", "", soon()).code(), Code::not_found);
  EXPECT_EQ(fetch(*b, "agent", "decode"), "some");
}

TEST_P(StoreContract, ARemovedEntryIsNotFound) {
  const auto a = open(), b = open();
  publish(*a, "agent", "bytes");
  ASSERT_TRUE(a->remove("agent", "", soon()).ok());
  EXPECT_EQ(b->fetch("agent", "", soon()).code(), Code::not_found);
  EXPECT_THAT(*b->list(soon()), ElementsAre());
  EXPECT_EQ(a->remove("agent", "", soon()).code(), Code::not_found);
}

TEST_P(StoreContract, ADestroyedStoreRemovesItsEntries) {
  auto a = open();
  const auto b = open();
  publish(*a, "agent", "bytes");
  publish(*a, "agent", "bytes", "label");
  publish(*b, "other", "stays");
  a.reset();
  EXPECT_EQ(b->fetch("agent", "", soon()).code(), Code::not_found);
  EXPECT_THAT(*b->list(soon()), ElementsAre("other"));
}

TEST_P(StoreContract, AStoreWhoseCallsAreCanceledKeepsItsEntriesUntilItIsDestroyed) {
  auto canceled = open();
  const auto other = open();
  publish(*canceled, "agent", "bytes");
  canceled->cancel_calls();
  EXPECT_EQ(fetch(*other, "agent"), "bytes");
  publish(*other, "other", "theirs");
  canceled.reset();
  EXPECT_EQ(other->fetch("agent", "", soon()).code(), Code::not_found);
  EXPECT_EQ(fetch(*other, "other"), "theirs");
}

TEST_P(StoreContract, NamesAreListedOnceAndInOrder) {
  const auto a = open(), b = open();
  for (const char* name : {"c", "a", "b10", "b9"}) publish(*a, name, "x");
  publish(*b, "a", "y", "label");
  EXPECT_THAT(*b->list(soon()), ElementsAre("a", "b10", "b9", "c"));
}

TEST_P(StoreContract, TheLastPublisherOwnsTheEntry) {
  // As when an agent restarts under its name while the old process hangs.
  auto predecessor = open();
  auto successor = open();
  const auto reader = open();
  publish(*predecessor, "agent", "old");
  publish(*successor, "agent", "new");
  EXPECT_EQ(fetch(*reader, "agent"), "new");
  EXPECT_EQ(predecessor->remove("agent", "", soon()).code(), Code::not_found);
  EXPECT_EQ(fetch(*reader, "agent"), "new");
  predecessor.reset();
  EXPECT_EQ(fetch(*reader, "agent"), "new");
  successor.reset();
  EXPECT_EQ(reader->fetch("agent", "", soon()).code(), Code::not_found);
}

TEST_P(StoreContract, TheOwnershipOfAnEntryMayAlternate) {
  const auto a = open(), b = open();
  for (int round = 0; round < 5; ++round) {
    publish(*a, "agent", "a" + std::to_string(round));
    EXPECT_EQ(fetch(*b, "agent"), "a" + std::to_string(round));
    publish(*b, "agent", "b" + std::to_string(round));
    EXPECT_EQ(fetch(*a, "agent"), "b" + std::to_string(round));
  }
}

TEST_P(StoreContract, ANameALabelAndAnEntryMayHaveAnyBytes) {
  const auto a = open(), b = open();
  const std::string name("\x01 %2F/../\xff\xfe", 11);
  const std::string long_name(255, '/');
  const std::string bytes("\0\n\xff{}", 5);
  publish(*a, name, bytes, "..");
  publish(*a, long_name, "long", long_name);
  publish(*a, ".", "dot");
  EXPECT_EQ(fetch(*b, name, ".."), bytes);
  EXPECT_EQ(fetch(*b, long_name, long_name), "long");
  EXPECT_EQ(fetch(*b, "."), "dot");
  EXPECT_THAT(*b->list(soon()), ::testing::UnorderedElementsAre(name, long_name, "."));
}

TEST_P(StoreContract, AnEntryOfMegabytesIsFetchedWholeAndMayBeReplacedByASmallOne) {
  const auto a = open(), b = open();
  std::string blob(2 * 1024 * 1024 + 17, '\0');
  for (std::size_t i = 0; i < blob.size(); ++i) blob[i] = static_cast<char>(i * 2654435761U >> 16);
  publish(*a, "agent", blob);
  EXPECT_TRUE(fetch(*b, "agent") == blob);
  publish(*a, "agent", "small");
  EXPECT_EQ(fetch(*b, "agent"), "small");
  std::ranges::reverse(blob);
  publish(*b, "agent", blob);
  EXPECT_TRUE(fetch(*a, "agent") == blob);
  EXPECT_EQ(a->remove("agent", "", soon()).code(), Code::not_found);
  ASSERT_TRUE(b->remove("agent", "", soon()).ok());
  EXPECT_EQ(a->fetch("agent", "", soon()).code(), Code::not_found);
}

TEST_P(StoreContract, AReaderSeesWholeVersionsWhileTheEntryIsReplaced) {
  const auto writer = open(), reader = open();
  const auto version = [](std::size_t number) {
    return std::string(1200 * 1024 + number, static_cast<char>('a' + number % 26));
  };
  publish(*writer, "agent", version(0));
  // Each read begins together with one publication. The numbers of the newest version whose publication may
  // begin, has begun and has ended.
  std::atomic<std::size_t> wanted = 0, begun = 0, published = 0;
  const std::jthread writing([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (begun == wanted) {
        std::this_thread::yield();
        continue;
      }
      const std::size_t number = ++begun;
      publish(*writer, "agent", version(number));
      published = number;
    }
  });
  // A read counts if the publication ran during a part of it.
  const Deadline deadline = Deadline::after(90s);
  for (int counted = 0; counted < 2;) {
    const std::size_t oldest = published;
    wanted = oldest + 1;
    const auto bytes = reader->fetch("agent", "", soon());
    const std::size_t newest = begun;
    ASSERT_TRUE(bytes.ok()) << bytes.error().message;
    ASSERT_GE(bytes->size(), version(oldest).size());
    ASSERT_LE(bytes->size(), version(newest).size());
    ASSERT_TRUE(*bytes == version(bytes->size() - version(0).size()));
    if (newest > oldest) ++counted;
    ASSERT_FALSE(deadline.expired()) << counted << " reads met a publication";
  }
}

TEST_P(StoreContract, AnInvalidNameLabelOrTimeToLiveIsRefused) {
  const auto store = open();
  EXPECT_EQ(store->publish("", "", "x", 10s, soon()).code(), Code::invalid_argument);
  EXPECT_EQ(store->publish(std::string(256, 'n'), "", "x", 10s, soon()).code(), Code::invalid_argument);
  EXPECT_EQ(store->publish("n", std::string(256, 'l'), "x", 10s, soon()).code(), Code::invalid_argument);
  EXPECT_EQ(store->publish("n", "", "x", 999ms, soon()).code(), Code::invalid_argument);
  EXPECT_THAT(*store->list(soon()), ElementsAre());
}

TEST_P(StoreContract, AWatchReportsPresentJoiningUpdatedAndLeavingAgents) {
  auto a = open();
  const auto b = open();
  publish(*a, "early", "x");
  StoreWatcher watcher(*b);
  EXPECT_TRUE(watcher.joined("early"));
  publish(*a, "late", "x");
  EXPECT_TRUE(watcher.joined("late"));
  publish(*a, "late", "y");
  EXPECT_TRUE(watcher.updated("late"));
  ASSERT_TRUE(a->remove("late", "", soon()).ok());
  EXPECT_TRUE(watcher.left("late"));
  a.reset();
  EXPECT_TRUE(watcher.left("early"));
  EXPECT_THAT(watcher.rest(), ElementsAre());
}

TEST_P(StoreContract, ANameHasLeftWhenItsLastLabelIsRemoved) {
  const auto store = open();
  StoreWatcher watcher(*store);
  publish(*store, "agent", "x");
  EXPECT_TRUE(watcher.joined("agent"));
  publish(*store, "agent", "y", "label");
  EXPECT_TRUE(watcher.updated("agent"));
  ASSERT_TRUE(store->remove("agent", "", soon()).ok());
  EXPECT_TRUE(watcher.updated("agent"));
  ASSERT_TRUE(store->remove("agent", "label", soon()).ok());
  EXPECT_TRUE(watcher.left("agent"));
}

TEST_P(StoreContract, ASuccessorIsReportedAsAnUpdate) {
  const auto reader = open();
  auto predecessor = open();
  const auto successor = open();
  StoreWatcher watcher(*reader);
  publish(*predecessor, "agent", "old");
  EXPECT_TRUE(watcher.joined("agent"));
  publish(*successor, "agent", "new");
  EXPECT_THAT(watcher.until(StoreEvent::Kind::updated, "agent"), Optional(ElementsAre()));
  predecessor.reset();
  // The end of the predecessor must not be reported as "left". A store may look at one entry after the other:
  // an event of the second agent shows that it has looked at all entries since the end.
  for (const char* later : {"later", "last"}) {
    publish(*successor, later, "x");
    EXPECT_THAT(watcher.until(StoreEvent::Kind::joined, later),
                Optional(Each(StoreEvent{StoreEvent::Kind::updated, "agent"})));
  }
  EXPECT_EQ(fetch(*reader, "agent"), "new");
  ASSERT_TRUE(successor->remove("agent", "", soon()).ok());
  EXPECT_TRUE(watcher.left("agent"));
}

TEST_P(StoreContract, AnEndedWatchReportsNothing) {
  const auto store = open();
  StoreWatcher ended(*store);
  StoreWatcher watcher(*store);
  publish(*store, "one", "x");
  EXPECT_TRUE(ended.joined("one"));
  EXPECT_TRUE(watcher.joined("one"));
  ended.end();
  publish(*store, "two", "x");
  EXPECT_TRUE(watcher.joined("two"));
  EXPECT_THAT(ended.rest(), ElementsAre());
}

/// Threads of this process that read a store for its watches.
int reading_threads() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    if (name == "headrace-watch") ++count;
  }
  return count;
}

TEST_P(StoreContract, TheWatchesOfAllStoresOfAPlaceReadItOnce) {
  std::vector<std::unique_ptr<Store>> stores;
  for (int i = 0; i < 8; ++i) stores.push_back(open());
  std::vector<std::unique_ptr<StoreWatcher>> watchers;
  for (const auto& store : stores) watchers.push_back(std::make_unique<StoreWatcher>(*store));
  for (std::size_t i = 0; i < stores.size(); ++i) publish(*stores[i], std::to_string(i), "x");
  for (const auto& watcher : watchers)
    for (std::size_t i = 0; i < stores.size(); ++i) EXPECT_TRUE(watcher->joined(std::to_string(i)));
  EXPECT_EQ(reading_threads(), 1);
  stores.front().reset();
  EXPECT_TRUE(watchers.back()->left("0"));
  EXPECT_THAT(*stores.back()->list(soon()), ElementsAre("1", "2", "3", "4", "5", "6", "7"));
}

TEST_P(StoreContract, AWatchCallbackMayFetchAndMayEndItsOwnWatch) {
  const auto store = open();
  publish(*store, "agent", "bytes");
  std::mutex mutex;
  std::condition_variable came;
  std::unique_ptr<Store::Watch> watch;
  std::string seen;
  {
    const std::scoped_lock lock(mutex);  // the callback waits until `watch` is set
    watch = *store->watch([&](const StoreEvent& event) {
      const std::scoped_lock inner(mutex);
      seen += fetch(*store, event.name);
      watch.reset();
      came.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  EXPECT_TRUE(came.wait_for(lock, 30s, [&] { return watch == nullptr; }));
  EXPECT_EQ(seen, "bytes");
}

TEST_P(StoreContract, ManyThreadsMayPublishAtOnce) {
  const auto shared = open();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i)
        publish(*shared, "agent-" + std::to_string(t), std::to_string(i), std::to_string(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared->list(soon())->size(), 4U);
  for (int t = 0; t < 4; ++t) EXPECT_EQ(fetch(*shared, "agent-" + std::to_string(t), "4"), "4");
}

// --- the stores

class MemoryPlace final : public Place {
 public:
  std::string url() const override {
    return "memory:" + std::to_string(reinterpret_cast<std::uintptr_t>(this));
  }
};

class FilePlace final : public Place {
 public:
  std::string url() const override { return "file://" + folder_.path() + "/store"; }

 private:
  TemporaryFolder folder_;
};

class EtcdPlace final : public Place {
 public:
  std::string url() const override { return server().store_url("contract-" + std::to_string(number_)); }

 private:
  static EtcdServer& server() {
    static EtcdServer shared;  // one server for all tests; each test has a namespace of its own
    return shared;
  }
  static int next() {
    static int last = 0;
    return ++last;
  }
  int number_ = next();
};

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreContract,
    ::testing::Values(Implementation{"memory", [] { return std::make_unique<MemoryPlace>(); }},
                      Implementation{"file", [] { return std::make_unique<FilePlace>(); }},
                      Implementation{"etcd", [] { return std::make_unique<EtcdPlace>(); }}),
    [](const auto& implementation) { return std::string(implementation.param.name); });

}  // namespace
}  // namespace headrace::metadata
