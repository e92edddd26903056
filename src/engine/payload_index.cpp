// SPDX-License-Identifier: Apache-2.0
#include "engine/payload_index.hpp"

#include "base/random.hpp"

#include <tuple>

namespace headrace::engine {
namespace {

/// Below zero: the payload comes before all that begin with the prefix; zero: it begins with it.
int against(std::string_view payload, std::string_view prefix) {
  return payload.substr(0, prefix.size()).compare(prefix);
}

/// Spreads numbers that count up; by a peer's choice of payloads the tree cannot be made deep. (splitmix64,
/// Steele and others, 2014)
std::uint64_t mixed(std::uint64_t number) {
  static const std::uint64_t secret = random_u64();
  std::uint64_t z = number * 0x9e3779b97f4a7c15U + secret;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

}  // namespace

bool PayloadIndex::before(const Entry& a, const Entry& b) {
  return std::tie(a.payload, a.number) < std::tie(b.payload, b.number);
}

PayloadIndex::Entry* PayloadIndex::older(Entry* a, Entry* b) {
  if (a == nullptr || b == nullptr) return a != nullptr ? a : b;
  return a->number < b->number ? a : b;
}

void PayloadIndex::pull(Entry& entry) {
  Entry* const left = entry.left_ != nullptr ? entry.left_->oldest_ : nullptr;
  Entry* const right = entry.right_ != nullptr ? entry.right_->oldest_ : nullptr;
  entry.oldest_ = older(&entry, older(left, right));
}

void PayloadIndex::split(Entry* tree, const Entry& at, Entry*& lower, Entry*& upper) {
  if (tree == nullptr) {
    lower = upper = nullptr;
  } else if (before(*tree, at)) {
    split(tree->right_, at, tree->right_, upper);
    lower = tree;
    pull(*tree);
  } else {
    split(tree->left_, at, lower, tree->left_);
    upper = tree;
    pull(*tree);
  }
}

PayloadIndex::Entry* PayloadIndex::merge(Entry* lower, Entry* upper) {
  if (lower == nullptr || upper == nullptr) return lower != nullptr ? lower : upper;
  Entry* const top = lower->priority_ > upper->priority_ ? lower : upper;
  if (top == lower)
    lower->right_ = merge(lower->right_, upper);
  else
    upper->left_ = merge(lower, upper->left_);
  pull(*top);
  return top;
}

PayloadIndex::Entry* PayloadIndex::insert(Entry* tree, Entry& entry) {
  if (tree == nullptr || entry.priority_ > tree->priority_) {
    split(tree, entry, entry.left_, entry.right_);
    pull(entry);
    return &entry;
  }
  Entry*& side = before(entry, *tree) ? tree->left_ : tree->right_;
  side = insert(side, entry);
  pull(*tree);
  return tree;
}

PayloadIndex::Entry* PayloadIndex::erase(Entry* tree, Entry& entry) {
  if (tree == &entry) return merge(entry.left_, entry.right_);
  Entry*& side = before(entry, *tree) ? tree->left_ : tree->right_;
  side = erase(side, entry);
  pull(*tree);
  return tree;
}

void PayloadIndex::add(Entry& entry) {
  entry.priority_ = mixed(entry.number);
  root_ = insert(root_, entry);
}

void PayloadIndex::remove(Entry& entry) { root_ = erase(root_, entry); }

/// Of a tree in which nothing comes behind those with the prefix.
PayloadIndex::Entry* PayloadIndex::oldest_from(Entry* tree, std::string_view prefix) {
  Entry* found = nullptr;
  while (tree != nullptr) {
    if (against(tree->payload, prefix) < 0) {
      tree = tree->right_;
      continue;
    }
    found = older(found, older(tree, tree->right_ != nullptr ? tree->right_->oldest_ : nullptr));
    tree = tree->left_;
  }
  return found;
}

/// Of a tree in which nothing comes before those with the prefix.
PayloadIndex::Entry* PayloadIndex::oldest_up_to(Entry* tree, std::string_view prefix) {
  Entry* found = nullptr;
  while (tree != nullptr) {
    if (against(tree->payload, prefix) > 0) {
      tree = tree->left_;
      continue;
    }
    found = older(found, older(tree, tree->left_ != nullptr ? tree->left_->oldest_ : nullptr));
    tree = tree->right_;
  }
  return found;
}

PayloadIndex::Entry* PayloadIndex::oldest(std::string_view prefix) const {
  Entry* tree = root_;
  while (tree != nullptr) {
    const int where = against(tree->payload, prefix);
    if (where == 0)
      return older(tree, older(oldest_from(tree->left_, prefix), oldest_up_to(tree->right_, prefix)));
    tree = where < 0 ? tree->right_ : tree->left_;
  }
  return nullptr;
}

}  // namespace headrace::engine
