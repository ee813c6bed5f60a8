// FASTER behind a few C functions, for the module `store` of Rust.
//
// FASTER's own C interface, which the crate faster-rs wraps, is not used: it takes ownership of a heap allocation for each key
// and value, allocates for each read, has records of 64 bytes where FASTER's own benchmark has 24, and writes a key behind the
// end of its allocation when an operation goes to the device. Here keys and values stay where the caller has them, every
// operation is through when it returns, and no exception leaves C++.

#include <libaio.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <vector>

#include "device/file_system_disk.h"
#include "types.h"

namespace kiln {

using namespace FASTER::core;

/// What the functions below return. The numbers are known to `store.rs`.
enum Outcome : uint8_t {
  kDone = 0,
  kMissing = 1,
  kSize = 2,
  kThreads = 3,
  kFailed = 4,
};

typedef void (*KeyVisitor)(void* target, const uint8_t* key, uint64_t length);

/// A store, whatever its keys and values.
class Store {
 public:
  virtual ~Store() = default;
  virtual void Start() = 0;
  virtual void Stop() = 0;
  virtual void Refresh() = 0;
  virtual Outcome Read(const uint8_t* key, uint64_t key_length, uint8_t* value, uint64_t capacity, uint64_t* length) = 0;
  virtual Outcome Upsert(const uint8_t* key, uint64_t key_length, const uint8_t* value, uint64_t length) = 0;
  virtual Outcome Add(const uint8_t* key, uint64_t key_length, uint64_t delta) = 0;
  virtual Outcome Checkpoint() = 0;
  virtual Outcome VisitKeys(KeyVisitor visit, void* target) = 0;
};

/// What an operation found, also if it had to wait for the device.
struct Result {
  Status status = Status::Pending;
  uint64_t length = 0;
  bool created = false;
};

/// What all operations have: a key, and where the result goes. FASTER copies it to the heap if the operation has to wait.
template <class T>
class Operation : public IAsyncContext {
 public:
  typedef typename T::Key key_t;
  typedef typename T::Value value_t;

  Operation(const typename T::Lookup& key, Result* result)
    : key_{ key }
    , result_{ result } {
  }
  const typename T::Lookup& key() const {
    return key_;
  }
  Result* result() const {
    return result_;
  }

 protected:
  typename T::Lookup key_;
  Result* result_;
};

template <class T>
class ReadOperation : public Operation<T> {
 public:
  typedef typename T::Value value_t;

  ReadOperation(const typename T::Lookup& key, Result* result, uint8_t* out, uint64_t capacity)
    : Operation<T>{ key, result }
    , out_{ out }
    , capacity_{ capacity } {
  }
  void Get(const value_t& value) {
    this->result_->length = value.length();
    if(value.length() <= capacity_) {
      value.Read(out_);
    }
  }
  void GetAtomic(const value_t& value) {
    this->result_->length = value.length();
    if(value.length() <= capacity_) {
      value.ReadAtomic(out_);
    }
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) final {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }

 private:
  uint8_t* out_;
  uint64_t capacity_;
};

template <class T>
class UpsertOperation : public Operation<T> {
 public:
  typedef typename T::Value value_t;

  UpsertOperation(const typename T::Lookup& key, Result* result, const uint8_t* value, uint64_t length)
    : Operation<T>{ key, result }
    , value_{ value }
    , length_{ length } {
  }
  uint32_t value_size() const {
    return value_t::SizeFor(length_);
  }
  void Put(value_t& value) {
    value.Initialize(value_, length_);
  }
  bool PutAtomic(value_t& value) {
    return value.Replace(value_, length_);
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) final {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }

 private:
  const uint8_t* value_;
  uint64_t length_;
};

template <class T>
class AddOperation : public Operation<T> {
 public:
  typedef typename T::Value value_t;

  AddOperation(const typename T::Lookup& key, Result* result, uint64_t delta)
    : Operation<T>{ key, result }
    , delta_{ delta } {
  }
  static uint32_t value_size() {
    return value_t::SizeFor(sizeof(uint64_t));
  }
  static uint32_t value_size(const value_t& old) {
    return old.size();
  }
  void RmwInitial(value_t& value) {
    this->result_->created = true;
    value.Initialize(reinterpret_cast<const uint8_t*>(&delta_), sizeof(delta_));
  }
  void RmwCopy(const value_t& old, value_t& value) {
    value.AddTo(old, delta_);
  }
  bool RmwAtomic(value_t& value) {
    return value.Add(delta_);
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) final {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }

 private:
  uint64_t delta_;
};

/// A page of the log that is being read from the device.
class PageRead : public IAsyncContext {
 public:
  explicit PageRead(Result* result)
    : result_{ result } {
  }
  static void Through(IAsyncContext* context, Status status, size_t bytes) {
    CallbackContext<PageRead> read{ context };
    read->result_->length = bytes;
    read->result_->status = status;
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) final {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }

 private:
  Result* result_;
};

template <class T>
class StoreOf : public Store {
 public:
  StoreOf(const char* directory, uint64_t buckets, uint64_t log_bytes, double mutable_part)
    : faster_{ buckets, log_bytes, directory, mutable_part, true } {
  }

  void Start() final {
    // FASTER keeps a session in its thread; another one of the same thread shares it.
    if(sessions_[Thread::id()]++ == 0) {
      std::lock_guard<std::mutex> no_checkpoint{ checkpoint_ };
      faster_.StartSession();
    }
  }

  void Stop() final {
    if(--sessions_[Thread::id()] == 0) {
      std::unique_lock<std::mutex> no_checkpoint = NoCheckpoint();
      faster_.StopSession();
    }
  }

  void Refresh() final {
    faster_.Refresh();
  }

  Outcome Read(const uint8_t* key, uint64_t key_length, uint8_t* value, uint64_t capacity, uint64_t* length) final {
    if(!T::Fits(key_length, sizeof(uint64_t))) {
      return kSize;
    }
    Result result;
    ReadOperation<T> operation{ { key, key_length }, &result, value, capacity };
    Outcome outcome = Finish<ReadOperation<T>>(faster_.Read(operation, Through<ReadOperation<T>>, 1), result);
    *length = result.length;
    return outcome;
  }

  Outcome Upsert(const uint8_t* key, uint64_t key_length, const uint8_t* value, uint64_t length) final {
    if(!T::Fits(key_length, length)) {
      return kSize;
    }
    Result result;
    UpsertOperation<T> operation{ { key, key_length }, &result, value, length };
    return Finish<UpsertOperation<T>>(faster_.Upsert(operation, Through<UpsertOperation<T>>, 1), result);
  }

  Outcome Add(const uint8_t* key, uint64_t key_length, uint64_t delta) final {
    if(!T::Fits(key_length, sizeof(uint64_t))) {
      return kSize;
    }
    Result result;
    AddOperation<T> operation{ { key, key_length }, &result, delta };
    Outcome outcome = Finish<AddOperation<T>>(faster_.Rmw(operation, Through<AddOperation<T>>, 1), result);
    return outcome == kDone && result.created ? kMissing : outcome;
  }

  Outcome Checkpoint() final {
    Start();
    std::unique_lock<std::mutex> one_at_a_time = NoCheckpoint();
    Guid token;
    auto log_is_written = [](Status, uint64_t) {};
    // Of the log and of the index: recovery refuses an index of another version than the log's.
    bool started = faster_.Checkpoint(nullptr, log_is_written, token);
    if(started) {
      while(!faster_.CompletePending(false)) {
        std::this_thread::yield();
      }
      // The one before is not needed any more, and has a copy of the whole index.
      if(has_last_) {
        std::experimental::filesystem::remove_all(faster_.disk.index_checkpoint_path(last_));
        std::experimental::filesystem::remove_all(faster_.disk.cpr_checkpoint_path(last_));
      }
      last_ = token;
      has_last_ = true;
    }
    one_at_a_time.unlock();
    Stop();
    return started ? kDone : kFailed;
  }

  Outcome VisitKeys(KeyVisitor visit, void* target) final {
    // The session is not refreshed meanwhile, so that no page is taken away.
    Start();
    Address head = faster_.hlog.head_address.load(), tail = faster_.hlog.GetTailAddress();
    std::unique_ptr<uint8_t, decltype(&std::free)> buffer{ nullptr, &std::free };
    Outcome outcome = kDone;
    for(uint32_t page = 0; page <= tail.page() && outcome == kDone; ++page) {
      const uint8_t* bytes = faster_.hlog.Page(page);
      if(page < head.page()) {
        if(!buffer) {
          buffer.reset(static_cast<uint8_t*>(::aligned_alloc(faster_.hlog.sector_size, Log::kPageSize)));
        }
        bytes = buffer.get();
        outcome = bytes ? ReadPage(page, buffer.get()) : kFailed;
      }
      if(outcome == kDone) {
        // The first cache line of the log belongs to no record.
        uint64_t first = page == 0 ? Constants::kCacheLineBytes : 0;
        VisitPage(bytes, first, page == tail.page() ? tail.offset() : Log::kPageSize, visit, target);
      }
    }
    Stop();
    return outcome;
  }

 private:
  typedef FASTER::device::FileSystemDisk<FASTER::environment::QueueIoHandler, 1073741824L> Disk;
  typedef FasterKv<typename T::Key, typename T::Value, Disk> Faster;
  typedef typename Faster::hlog_t Log;
  typedef Record<typename T::Key, typename T::Value> LogRecord;

  /// Called when an operation that had to wait is through.
  template <class O>
  static void Through(IAsyncContext* context, Status status) {
    CallbackContext<O> operation{ context };
    operation->result()->status = status;
  }

  /// Waits until no checkpoint is under way, and takes part in the one that is. FASTER refuses a session that begins meanwhile,
  /// and waits for ever for one that ended just then.
  std::unique_lock<std::mutex> NoCheckpoint() {
    std::unique_lock<std::mutex> lock{ checkpoint_, std::try_to_lock };
    while(!lock.owns_lock()) {
      faster_.CompletePending(false);
      std::this_thread::yield();
      lock.try_lock();
    }
    return lock;
  }

  template <class O>
  Outcome Finish(Status status, Result& result) {
    if(status == Status::Pending) {
      while(result.status == Status::Pending) {
        faster_.CompletePending(false);
        std::this_thread::yield();
      }
      status = result.status;
    }
    return status == Status::Ok ? kDone : status == Status::NotFound ? kMissing : kFailed;
  }

  Outcome ReadPage(uint32_t page, uint8_t* into) {
    Result result;
    PageRead read{ &result };
    Status status = faster_.hlog.file->ReadAsync(Address{ page, 0 } .control(), into, Log::kPageSize, PageRead::Through,
                    read);
    while(status == Status::Ok && result.status == Status::Pending) {
      faster_.disk.TryComplete();
    }
    return status == Status::Ok && result.status == Status::Ok && result.length == Log::kPageSize ? kDone : kFailed;
  }

  /// Visits the keys of a page as recovery does: what was not written is zero.
  static void VisitPage(const uint8_t* page, uint64_t from, uint64_t to, KeyVisitor visit, void* target) {
    while(from < to) {
      const LogRecord* record = reinterpret_cast<const LogRecord*>(page + from);
      if(record->header.IsNull()) {
        from += sizeof(record->header);
        continue;
      }
      if(!record->header.invalid) {
        visit(target, record->key().bytes(), record->key().length());
      }
      from += record->size();
    }
  }

  Faster faster_;
  /// Held while a checkpoint is made, or a session begins or ends.
  std::mutex checkpoint_;
  /// The last checkpoint, if there is one.
  Guid last_;
  bool has_last_ = false;
  /// How many sessions were asked for in each thread.
  uint32_t sessions_[Thread::kMaxNumThreads] = {};
};

/// Runs something that may run out of memory or threads.
template <class F>
Outcome Guarded(F what) {
  try {
    return what();
  } catch(const std::exception& error) {
    std::fprintf(stderr, "FASTER: %s\n", error.what());
    return kFailed;
  }
}

} // namespace kiln

extern "C" {

using kiln::Outcome;
using kiln::Store;

/// Opens a new store in an empty directory. Null if that failed; the reason is then in `reason`.
Store* kiln_faster_open(const char* directory, uint64_t buckets, uint64_t log_bytes, double mutable_part, bool words,
                        char* reason, uint64_t reason_bytes) {
  // FASTER does not look whether it gets one.
  io_context_t probe = 0;
  if(io_setup(1, &probe) != 0) {
    std::snprintf(reason, reason_bytes, "no asynchronous I/O: raise fs.aio-max-nr (sysctl)");
    return nullptr;
  }
  io_destroy(probe);
  try {
    if(words) {
      return new kiln::StoreOf<kiln::Words> { directory, buckets, log_bytes, mutable_part };
    }
    return new kiln::StoreOf<kiln::Bytes> { directory, buckets, log_bytes, mutable_part };
  } catch(const std::exception& error) {
    std::snprintf(reason, reason_bytes, "%s", error.what());
    return nullptr;
  }
}

void kiln_faster_close(Store* store) {
  delete store;
}

uint8_t kiln_faster_start(Store* store) {
  try {
    // Gives the thread its number, if it has none.
    FASTER::core::Thread::id();
  } catch(const std::exception&) {
    return Outcome::kThreads;
  }
  return kiln::Guarded([store] { store->Start(); return Outcome::kDone; });
}

void kiln_faster_stop(Store* store) {
  store->Stop();
}

void kiln_faster_refresh(Store* store) {
  store->Refresh();
}

uint8_t kiln_faster_read(Store* store, const uint8_t* key, uint64_t key_length, uint8_t* value, uint64_t capacity,
                         uint64_t* length) {
  return kiln::Guarded([=] { return store->Read(key, key_length, value, capacity, length); });
}

uint8_t kiln_faster_upsert(Store* store, const uint8_t* key, uint64_t key_length, const uint8_t* value, uint64_t length) {
  return kiln::Guarded([=] { return store->Upsert(key, key_length, value, length); });
}

uint8_t kiln_faster_add(Store* store, const uint8_t* key, uint64_t key_length, uint64_t delta) {
  return kiln::Guarded([=] { return store->Add(key, key_length, delta); });
}

uint8_t kiln_faster_checkpoint(Store* store) {
  return kiln::Guarded([=] { return store->Checkpoint(); });
}

uint8_t kiln_faster_visit_keys(Store* store, kiln::KeyVisitor visit, void* target) {
  return kiln::Guarded([=] { return store->VisitKeys(visit, target); });
}

} // extern "C"
