// The keys and values that FASTER stores for the bench. FASTER is a template over both; these are two pairs of them.
//
// Words: keys and values of 8 bytes, as in FASTER's own benchmark. A record has 24 bytes: header, key, value.
// Bytes: keys and values of any size. A record has 20 bytes besides them, padded to a multiple of 8.
//
// A `Lookup` is a key as an operation has it. It points to the caller's bytes, which stay where they are until the operation is
// through, also if that takes a read from the device.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

#include "core/faster.h"

namespace kiln {

inline uint64_t ReadWord(const uint8_t* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

struct Words {
  class Key {
   public:
    Key(const uint8_t* bytes, uint64_t)
      : word_{ ReadWord(bytes) } {
    }
    static constexpr uint32_t size() {
      return sizeof(Key);
    }
    FASTER::core::KeyHash GetHash() const {
      return FASTER::core::KeyHash{ FASTER::core::Utility::GetHashCode(word_) };
    }
    bool operator==(const Key& other) const {
      return word_ == other.word_;
    }
    bool operator!=(const Key& other) const {
      return word_ != other.word_;
    }
    const uint8_t* bytes() const {
      return reinterpret_cast<const uint8_t*>(&word_);
    }
    uint64_t length() const {
      return sizeof(word_);
    }

   private:
    uint64_t word_;
  };
  typedef Key Lookup;

  class Value {
   public:
    static constexpr uint32_t SizeFor(uint64_t) {
      return sizeof(Value);
    }
    static constexpr uint32_t size() {
      return sizeof(Value);
    }
    uint64_t length() const {
      return sizeof(word_);
    }
    void Read(uint8_t* out) const {
      uint64_t word = word_.load(std::memory_order_acquire);
      std::memcpy(out, &word, sizeof(word));
    }
    void ReadAtomic(uint8_t* out) const {
      Read(out);
    }
    void Initialize(const uint8_t* bytes, uint64_t) {
      word_.store(ReadWord(bytes), std::memory_order_release);
    }
    bool Replace(const uint8_t* bytes, uint64_t length) {
      Initialize(bytes, length);
      return true;
    }
    bool Add(uint64_t delta) {
      word_.fetch_add(delta);
      return true;
    }
    void AddTo(const Value& old, uint64_t delta) {
      word_.store(old.word_.load() + delta);
    }

   private:
    std::atomic<uint64_t> word_;
  };

  static bool Fits(uint64_t key_length, uint64_t value_length) {
    return key_length == sizeof(uint64_t) && value_length == sizeof(uint64_t);
  }
};
static_assert(FASTER::core::Record<Words::Key, Words::Value>::size(8, 8) == 24, "a record of words has 24 bytes");

struct Bytes {
  class Lookup;

  /// A key in the log: its length and its bytes.
  class Key {
   public:
    uint32_t size() const {
      return sizeof(Key) + length_;
    }
    FASTER::core::KeyHash GetHash() const {
      return Hash(bytes(), length_);
    }
    bool operator==(const Key& other) const {
      return length_ == other.length_ && std::memcmp(bytes(), other.bytes(), length_) == 0;
    }
    bool operator!=(const Key& other) const {
      return !(*this == other);
    }
    const uint8_t* bytes() const {
      return reinterpret_cast<const uint8_t*>(this + 1);
    }
    uint64_t length() const {
      return length_;
    }

   private:
    friend class Lookup;
    uint32_t length_;
  };

  class Lookup {
   public:
    Lookup(const uint8_t* bytes, uint64_t length)
      : bytes_{ bytes }
      , length_{ static_cast<uint32_t>(length) } {
    }
    uint32_t size() const {
      return sizeof(Key) + length_;
    }
    FASTER::core::KeyHash GetHash() const {
      return Hash(bytes_, length_);
    }
    bool operator==(const Key& other) const {
      return length_ == other.length() && std::memcmp(bytes_, other.bytes(), length_) == 0;
    }
    bool operator!=(const Key& other) const {
      return !(*this == other);
    }
    void write_deep_key_at(Key* key) const {
      key->length_ = length_;
      std::memcpy(reinterpret_cast<uint8_t*>(key + 1), bytes_, length_);
    }

   private:
    const uint8_t* bytes_;
    uint32_t length_;
  };

  /// A value in the log: a lock with a count of changes, the length, which never changes, and the bytes.
  class Value {
   public:
    static uint32_t SizeFor(uint64_t length) {
      return static_cast<uint32_t>(sizeof(Value) + length);
    }
    uint32_t size() const {
      return SizeFor(length_);
    }
    uint64_t length() const {
      return length_;
    }
    void Read(uint8_t* out) const {
      std::memcpy(out, bytes(), length_);
    }
    /// Reads a value that another thread may be changing: again, until nobody did meanwhile.
    void ReadAtomic(uint8_t* out) const {
      while(true) {
        uint32_t before = control_.load(std::memory_order_acquire);
        if(!(before & kLocked)) {
          std::memcpy(out, bytes(), length_);
          std::atomic_thread_fence(std::memory_order_acquire);
          if(control_.load(std::memory_order_relaxed) == before) {
            return;
          }
        }
        std::this_thread::yield();
      }
    }
    void Initialize(const uint8_t* from, uint64_t length) {
      control_.store(0, std::memory_order_relaxed);
      length_ = static_cast<uint32_t>(length);
      std::memcpy(bytes(), from, length);
    }
    /// Changes the value in place. False if another record must take its place, as for another length.
    bool Replace(const uint8_t* from, uint64_t length) {
      if(!Lock()) {
        return false;
      }
      if(length != length_) {
        Unlock(kReplaced);
        return false;
      }
      std::memcpy(bytes(), from, length);
      Unlock(0);
      return true;
    }
    bool Add(uint64_t delta) {
      if(!Lock()) {
        return false;
      }
      AddToFirstWord(delta);
      Unlock(0);
      return true;
    }
    void AddTo(const Value& old, uint64_t delta) {
      Initialize(old.bytes(), old.length_);
      AddToFirstWord(delta);
    }

   private:
    static constexpr uint32_t kLocked = 1;
    static constexpr uint32_t kReplaced = 2;
    static constexpr uint32_t kChange = 4;

    /// False if the value has been replaced and must not be changed any more.
    bool Lock() {
      while(true) {
        uint32_t seen = control_.load(std::memory_order_relaxed);
        if(seen & kReplaced) {
          return false;
        }
        if(!(seen & kLocked) && control_.compare_exchange_weak(seen, seen | kLocked, std::memory_order_acquire)) {
          // A reader that sees any of the change must see the lock, too.
          std::atomic_thread_fence(std::memory_order_release);
          return true;
        }
        std::this_thread::yield();
      }
    }
    void Unlock(uint32_t replaced) {
      uint32_t seen = control_.load(std::memory_order_relaxed);
      control_.store(((seen & ~kLocked) + kChange) | replaced, std::memory_order_release);
    }
    void AddToFirstWord(uint64_t delta) {
      uint64_t word = ReadWord(bytes()) + delta;
      std::memcpy(bytes(), &word, sizeof(word));
    }
    const uint8_t* bytes() const {
      return reinterpret_cast<const uint8_t*>(this + 1);
    }
    uint8_t* bytes() {
      return reinterpret_cast<uint8_t*>(this + 1);
    }

    std::atomic<uint32_t> control_;
    uint32_t length_;
  };

  static bool Fits(uint64_t key_length, uint64_t value_length) {
    // Both must fit a page of the log; a value needs a first word to add to.
    return key_length <= (1 << 20) && value_length >= sizeof(uint64_t) && value_length <= (1 << 24);
  }

 private:
  /// FASTER's own hash of bytes takes one at a time; this takes eight, and ends with FASTER's hash of a word.
  static FASTER::core::KeyHash Hash(const uint8_t* bytes, uint64_t length) {
    uint64_t hash = length;
    for(; length >= sizeof(uint64_t); bytes += sizeof(uint64_t), length -= sizeof(uint64_t)) {
      hash = Mix(hash ^ ReadWord(bytes));
    }
    if(length > 0) {
      uint64_t rest = 0;
      std::memcpy(&rest, bytes, length);
      hash = Mix(hash ^ rest);
    }
    return FASTER::core::KeyHash{ FASTER::core::Utility::GetHashCode(hash) };
  }
  static uint64_t Mix(uint64_t word) {
    word *= 0x9E3779B97F4A7C15;
    return word ^ (word >> 32);
  }
};
static_assert(sizeof(Bytes::Key) == 4 && sizeof(Bytes::Value) == 8, "lengths and locks are as small as they can be");

} // namespace kiln
